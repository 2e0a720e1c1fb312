"""What a step made of returns, for who looks: the advantage of each call that trains, by group.

In: the groups of a batch in the form of its rows, and the rows that were made of them. Out: numbers by call. Pure;
nothing of the step depends on it. Invariant: what is told is what the loss was given, in float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tracegrad.schemas.records.training import CallAdvantage

from .groups import Group
from .rows import TrainingRow

__all__ = ["told_advantages"]


def told_advantages(
    groups: Sequence[Group], rows: Sequence[TrainingRow]
) -> Iterator[tuple[str, tuple[CallAdvantage, ...]]]:
    """(group, its calls with a trained token); `rows` are those of the groups that train a token, in order."""
    left = iter(rows)
    for group in groups:
        calls: list[CallAdvantage] = []
        for segment in group.rows:
            if not segment.loss_mask.any():
                continue
            row = next(left)
            for turn in segment.turns:
                mask_T = row.loss_mask_T[turn.start : turn.end]
                values_N = row.advantages_T[turn.start : turn.end][mask_T]
                if len(values_N):
                    calls.append(
                        CallAdvantage(
                            call_id=turn.call_id,
                            mean=float(values_N.mean(dtype="float64")),
                            low=float(values_N.min()),
                            high=float(values_N.max()),
                            num_tokens=len(values_N),
                        )
                    )
        yield group.summary.group_id, tuple(calls)
