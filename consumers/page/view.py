"""What a view is: a page's name, and how the board becomes its model.

A view is one file with pure functions from what it reads to a small model, one template, and one row in `app.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from .board import Board, ViewQuery


class View(NamedTuple):
    """One of the page's views."""

    name: str
    """The first part of its path; of the first view empty."""
    title: str
    template: str
    model: Callable[[Board, ViewQuery], dict[str, Any]]
    """For the template. Blocks; called in a thread. A TracegradError is shown: a RequestError with its status, an
    UnavailableError as 503, any other as 404."""
    data: Callable[[Board, ViewQuery], Any] | None = None
    """Numbers for charts, JSON-able."""
    is_live: bool = True
    """Whether a browser asks for it anew, every two seconds; else it shows what was asked for."""
    is_listed: bool = True
    """Whether the page's head leads to it."""
