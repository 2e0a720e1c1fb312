"""Run: how training goes, and what is going on now.

In: the board. Out: a model, and the charts' numbers. Invariant: pure of the board. Failure: none.
"""

from __future__ import annotations

from typing import Any

from .board import Ask, Board
from .view import View

__all__ = ["VIEW"]


def model(board: Board, ask: Ask) -> dict[str, Any]:
    """What the template shows."""
    with board.lock:
        steps = board.state.steps
        return {"newest": steps[-1] if steps else None, "num_steps": len(steps)}


def numbers(board: Board, ask: Ask) -> dict[str, Any]:
    """Of the charts."""
    with board.lock:
        steps = board.state.steps
    return {"step": [one.step for one in steps], "reward": [one.reward for one in steps]}


VIEW = View("", "Run", "run.html", model, numbers)
