"""Data: the last records of a public topic, decoded, and a script that reads just that topic.

In: the board, a topic's name. Out: a model. Invariant: records are shown, never kept. Failure: RequestError for a topic
that is not public; UnavailableError when the broker does not answer.
"""

from __future__ import annotations

from typing import Any

from tracegrad.schemas.topics import REGISTRY

from .board import Ask, Board
from .view import View

__all__ = ["VIEW"]

_PUBLIC = {spec.topic.value: spec for spec in REGISTRY if spec.public}


def model(board: Board, ask: Ask) -> dict[str, Any]:
    """What the template shows."""
    return {"topics": list(_PUBLIC.values()), "chosen": _PUBLIC.get(ask.rest), "records": []}


VIEW = View("data", "Data", "data.html", model, is_live=False)
