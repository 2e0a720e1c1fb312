"""A task: one item of the user's dataset, a JSON line `{id, input, expected?}`."""

from __future__ import annotations

from typing import Any

import msgspec


class Task(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Example: Task(id="7", input="what is 26 times 3 minus 6?", expected="72")."""

    id: str
    input: Any
    expected: Any = None
    """The grader's; the agent never sees it."""
