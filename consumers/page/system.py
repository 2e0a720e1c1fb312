"""System: topics and processes, how they stand, and whether the accounts add up.

In: the board. Out: a model. Invariant: pure of the board. Failure: none.
"""

from __future__ import annotations

from typing import Any

from .board import Ask, Board
from .view import View

__all__ = ["VIEW"]


def model(board: Board, ask: Ask) -> dict[str, Any]:
    """What the template shows."""
    with board.lock:
        return {"topics": dict(board.counts), "processes": list(board.state.supervised.values())}


VIEW = View("system", "System", "system.html", model)
