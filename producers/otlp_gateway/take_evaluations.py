"""What becomes of the evaluations that an export request holds: with the run's reward token records of `rewards`.

In: the pieces of a request, and whose credential it bore. Out: EvaluationRewards. Invariant: without the token, or in a
run without `[feedback]`, none is ever a reward; those are counted. Failure: none; what is refused is counted by its
reason and told.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from tracegrad.schemas.credentials import Holder, feedback_holder
from tracegrad.schemas.metrics import EVALUATIONS_IGNORED, FEEDBACK, FEEDBACK_REFUSED, Metrics
from tracegrad.schemas.otlp.signal import Signal

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

    def count_in(self, metrics: Metrics) -> None:
        """Once they are acknowledged."""
        for name, num in self.names.items():
            metrics.add(FEEDBACK, name, num=num)
        for reason, num in self.refused.items():
            metrics.add(FEEDBACK_REFUSED, reason, num=num)
        if self.num_ignored:
            metrics.add(EVALUATIONS_IGNORED, num=self.num_ignored)


_NOTHING = EvaluationRewards((), Counter(), Counter(), 0)


def evaluation_rewards(
    signal: Signal, holder: Holder | None, body: bytes, pieces: Sequence[Piece], handles: OtlpHandles
) -> EvaluationRewards:
    """What the items of a request say that were let in; its body spares a look at those of most."""
    names, run = handles.feedback_names, handles.run_hash
    if names is None:
        return _NOTHING
    items = (item for piece in pieces for item in piece.items)
    if holder != feedback_holder(run):
        num = num_evaluations(signal, items) if may_evaluate(body) else 0
        return _NOTHING._replace(num_ignored=num)
    found = read_evaluations(signal, items, names, run, at_ms=time.time_ns() // 1_000_000)
    rated = Counter(reward.name for reward in found.rewards)
    return EvaluationRewards(tuple(map(reward_record, found.rewards)), rated, found.refused, 0)
