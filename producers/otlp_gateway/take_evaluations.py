"""What becomes of the evaluations that an export request holds: with the run's reward token records of `rewards`.

In: the pieces of a request, and whose credential it bore. Out: EvaluationRewards, then its records' acknowledgements.
Invariant: without the token, or in a run without `[feedback]`, none is ever a reward; those are counted. Failure:
that of the writer; what is refused is counted by its reason and told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple

from tracegrad.schemas.credentials import Holder, feedback_holder
from tracegrad.schemas.log.protocol import LogWriter, Position
from tracegrad.schemas.metrics import EVALUATIONS_IGNORED, FEEDBACK, FEEDBACK_REFUSED, Metrics
from tracegrad.schemas.otlp.signal import Signal
from tracegrad.schemas.topics import Topic, Topics

from ..read_feedback import reward_record
from .config import OtlpHandles
from .evaluations.read import may_evaluate, num_evaluations, read_evaluations
from .split import Piece

_RECORD_BYTES = 500
"""Of a record beside its key and value."""


class EvaluationRewards(NamedTuple):
    """Of one request."""

    records: tuple[tuple[bytes, bytes], ...]
    """Keys and values."""
    names: Counter[str]
    """What they rate, and how many of each."""
    refused: Counter[str]
    """Reason -> how many."""
    num_ignored: int
    """Without the token."""

    @property
    def num_bytes(self) -> int:
        """What the records hold."""
        return sum(len(key) + len(value) + _RECORD_BYTES for key, value in self.records)

    @property
    def words(self) -> str:
        """What to tell of those that were refused; empty: none was."""
        reasons = ", ".join(f"{num} by {reason}" for reason, num in sorted(self.refused.items()))
        return f"{self.refused.total()} evaluations refused ({reasons})" if reasons else ""


_NOTHING = EvaluationRewards((), Counter(), Counter(), 0)


class EvaluationTaker:
    """Of one gateway. `now_ms` says when a request came."""

    def __init__(
        self,
        handles: OtlpHandles,
        *,
        topics: Topics,
        writer: LogWriter,
        metrics: Metrics,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._names, self._run = handles.feedback_names, handles.run_hash
        self._topic = topics.name(Topic.REWARDS)
        self._writer = writer
        self._metrics = metrics
        self._now_ms = now_ms

    def read(self, signal: Signal, holder: Holder | None, body: bytes, pieces: Sequence[Piece]) -> EvaluationRewards:
        """What the items of a request say that were let in; its body spares a look at those of most."""
        if self._names is None:
            return _NOTHING
        items = (item for piece in pieces for item in piece.items)
        if holder != feedback_holder(self._run):
            num = num_evaluations(signal, items) if may_evaluate(body) else 0
            return _NOTHING._replace(num_ignored=num)
        found = read_evaluations(signal, items, self._names, self._run, at_ms=self._now_ms())
        names = Counter(reward.name for reward in found.rewards)
        return EvaluationRewards(tuple(map(reward_record, found.rewards)), names, found.refused, 0)

    def append(self, taken: EvaluationRewards) -> list[Future[Position]]:
        """Appends what was taken."""
        return [self._writer.append(self._topic, key=key, value=value) for key, value in taken.records]

    def count(self, taken: EvaluationRewards) -> None:
        """Counts what was taken, once it is acknowledged."""
        for name, num in taken.names.items():
            self._metrics.add(FEEDBACK, name, num=num)
        for reason, num in taken.refused.items():
            self._metrics.add(FEEDBACK_REFUSED, reason, num=num)
        if taken.num_ignored:
            self._metrics.add(EVALUATIONS_IGNORED, num=taken.num_ignored)
