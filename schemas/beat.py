"""A process's sign of life, given by its own work loop: that it still turns, or why it will be silent for a while.

    beat()                             in the loop, each time round: the work goes on, or there is none
    waiting("an acknowledgement")      in a bounded wait, now and then: still there
    with busy("micro-batch", tokens):  around what takes long; how long, it learns
    for tensor in units("loading", tensors):    around what takes long in pieces, and is done once

In: calls from the thread that does the process's work; those of other threads count for nothing, since a thread lives
on beside a loop that hangs. Out: Beats, to whoever keeps them (`kept`; in a run a file that the supervisor reads, so
that neither a broker that is away nor a full disk looks like a frozen process). Invariant: each Beat says within how
many seconds the next one comes. Failure: none; without a keeper nothing happens. The keeper is global, as logging is:
whatever waits must be able to say so, however deep it lies.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import NamedTuple, TypeVar

from .errors import UnavailableError

WITHIN_S = 45.0
"""The next beat comes within this, unless the last one says otherwise: no wait for a broker goes on for more than 30 s
without one, and a process that is stopped for 10 s meanwhile must be in time."""
START_S = 300.0
"""While a process starts, until its loop turns, and for one piece of what it loads: libraries take a minute from a cold
disk, a tensor of 3 GB is there by then at 10 MB/s."""
FIRST_S = 3600.0
"""For work that was not done before in this process and has no pieces: a first micro-batch, a first checkpoint."""
_SLOWER = 10.0
"""How much slower than ever before work may be."""
_SLICE_S = 5.0

T = TypeVar("T")


class Beat(NamedTuple):
    """What the work loop says. Example: Beat(num_turns=41, within_s=45.0, doing="")."""

    num_turns: int
    """Times that the loop came round; 0: it was not reached yet."""
    within_s: float
    """The next beat comes within this."""
    doing: str
    """What takes long now, for people; empty in the loop."""


class _Keeper:
    """Of one process: who is told, and how long what took."""

    def __init__(self, keep: Callable[[Beat], None], clock: Callable[[], float]) -> None:
        self.clock = clock
        self.slowest_s: dict[str, float] = {}
        """Longest time so far, by what was done, of one unit of it."""
        self.not_before = clock() + START_S
        """Until then no beat is due, whatever waits say meanwhile: what began is not over."""
        self._keep = keep
        self.thread = threading.get_ident()
        self._num_turns = 0

    def tell(self, doing: str, within_s: float, *, is_turn: bool = False) -> None:
        if threading.get_ident() != self.thread:
            return
        if is_turn:
            self._num_turns += 1
            self.not_before = 0.0
        self._keep(Beat(self._num_turns, max(within_s, self.not_before - self.clock()), doing))


_keeper: _Keeper | None = None


@contextlib.contextmanager
def kept(keep: Callable[[Beat], None], *, clock: Callable[[], float] = time.monotonic) -> Iterator[None]:
    """Hands the beats of the calling thread to `keep`, which must be quick and raise nothing. Not to be nested."""
    global _keeper
    _keeper = _Keeper(keep, clock)
    waiting("starting")
    try:
        yield
    finally:
        _keeper = None


def beat() -> None:
    """The work loop came round."""
    if _keeper is not None:
        _keeper.tell("", WITHIN_S, is_turn=True)


def waiting(doing: str, within_s: float = WITHIN_S) -> None:
    """Not at work, but there: called again within `within_s`, or the wait is over then."""
    if _keeper is not None:
        _keeper.tell(doing, within_s)


@contextlib.contextmanager
def busy(doing: str, size: float = 1.0, *, under_way_s: float = 0.0) -> Iterator[None]:
    """Around work that gives no beat: it may take ten times as long as the longest so far, and an hour at first.

    Args:
        doing: what, one of few; the longest time is kept under this name.
        size: what its time grows with, such as tokens.
        under_way_s: of what another thread does, and this one begins to wait for: how long it has been at it.
    """
    keeper = _keeper
    if keeper is None or threading.get_ident() != keeper.thread:
        yield
        return
    began, before, slowest_s = keeper.clock() - under_way_s, keeper.not_before, keeper.slowest_s.get(doing)
    within_s = FIRST_S if slowest_s is None else WITHIN_S + max(under_way_s, _SLOWER * slowest_s * size)
    keeper.not_before = max(before, began + within_s)
    keeper.tell(doing, within_s - under_way_s)
    try:
        yield
    finally:
        keeper.not_before = before
        keeper.slowest_s[doing] = max(slowest_s or 0.0, (keeper.clock() - began) / size)
        keeper.tell(doing, WITHIN_S)


def units(doing: str, pieces: Iterable[T]) -> Iterator[T]:
    """The pieces of work, with a beat for each; neither a piece nor what follows the last takes `START_S`."""
    for piece in pieces:
        waiting(doing, START_S)
        yield piece
    waiting(doing, START_S)


def acknowledged(future: Future[T], timeout_s: float, doing: str) -> T:
    """The future's result, waited for with beats.

    Raises:
        UnavailableError: it did not come within `timeout_s`.
        Exception: the future's own.
    """
    deadline = time.monotonic() + timeout_s
    while not future.done():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise UnavailableError(f"expected Kafka to {doing} within {timeout_s:g} s, got no answer; try again")
        waiting(doing)
        wait([future], min(left_s, _SLICE_S))
    return future.result()
