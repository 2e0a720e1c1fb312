"""What the page asks compose for, which rooms do not know: the run's rewards gateway, its tasks, where its
metrics are.

In: compose makes them. Out: records of functions; each says whether it blocks and what it raises.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.schemas.records.tasks import Task

__all__ = ["NOTHING", "Asked", "Rater", "Rating", "Target"]


class Rating(NamedTuple):
    """One piece of feedback, by the names of the gateway's route."""

    target: Mapping[str, str]
    """The one id that it is about, by its field."""
    name: str
    value: float
    reason: str
    key: str
    """Idempotency key."""


class Rater(NamedTuple):
    """The run's rewards gateway."""

    names: Mapping[str, tuple[float, float]]
    """What can be rated -> from, to."""
    is_trained_on: bool
    """Whether the run waits for scores; else a close ends all."""
    wait_s: float
    """How long it does, from an episode's close."""
    send: Callable[[Rating], None]
    """Blocks. Raises RequestError, UnavailableError."""
    receipts: Callable[[str], Sequence[Mapping[str, Any]]]
    """What became of what was said under a key; none: nothing was. Blocks. Raises UnavailableError."""


class Target(NamedTuple):
    """Where a process's metrics are."""

    process: str
    url: str


class Asked(NamedTuple):
    """All of it."""

    targets: Callable[[], Sequence[Target]] = lambda: ()
    """Where the metrics of the run's processes are now."""
    scrape: str = ""
    """What Prometheus' settings need to find them, at each start anew."""
    rater: Rater | None = None
    """Takes scores; None: the run takes no feedback."""
    find_task: Callable[[str], Task | None] = lambda id_: None
    """One of the run's tasks by its id, while its file has it. Blocks. Raises RequestError."""


NOTHING = Asked()
"""Of a page beside which nothing is."""
