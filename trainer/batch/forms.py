"""How a rollout lies in rows: by segments, one row a call, or all of it in one.

    segments       as credit made them: each prompt extends the last one with what was sampled; each token once
    transitions    a row for each call: its own tokens behind exactly the prompt that they were sampled after
    concatenated   a rollout's segments behind one another; from the second on their contexts are not those of sampling

In: well-formed groups. Out: the same groups with rows of another form. Invariant: each call of each row is in one row
of each form, in the same order, and its sampled tokens train there as they did. Pure; tokens stay numpy columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import msgspec
import numpy as np

from tracegrad.schemas.records.transitions import SegmentRow, Turn

from ..algorithm.recipe import Rows
from .groups import Group

__all__ = ["in_form"]


def in_form(groups: Sequence[Group], form: Rows, *, max_row_tokens: int) -> Sequence[Group]:
    """The groups with rows of this form.

    `transitions` are the paper's (arXiv:2508.03680, eq. 6), what its batches are made of; `concatenated` is the form
    of trainers that know a rollout as one sequence. No token is lost to a bound: where a segment would make a
    concatenated row longer than `max_row_tokens`, which no segment is, a new row begins with it.
    """
    if form == "segments":
        return groups
    if form == "transitions":
        return [replace(group, rows=tuple(one for row in group.rows for one in _transitions(row))) for group in groups]
    return [replace(group, rows=tuple(map(_joined, _runs(group.rows, max_row_tokens)))) for group in groups]


def _transitions(row: SegmentRow) -> Iterator[SegmentRow]:
    """Masked calls too: their returns are others' peers."""
    for turn in sorted(row.turns, key=lambda turn: turn.start):
        mask_T, logprobs_T = row.loss_mask[: turn.end].copy(), row.logprobs[: turn.end].copy()
        mask_T[: turn.start] = logprobs_T[: turn.start] = 0
        yield msgspec.structs.replace(
            row, token_ids=row.token_ids[: turn.end], loss_mask=mask_T, logprobs=logprobs_T, turns=(turn,)
        )


def _runs(rows: Iterable[SegmentRow], max_row_tokens: int) -> list[list[SegmentRow]]:
    """The segments of each rollout, as many in a run as the bound allows."""
    by_rollout: defaultdict[str, list[list[SegmentRow]]] = defaultdict(list)
    lengths: defaultdict[str, int] = defaultdict(int)
    for row in rows:
        runs = by_rollout[row.rollout_id]
        lengths[row.rollout_id] += len(row.token_ids)
        if not runs or lengths[row.rollout_id] > max_row_tokens:
            runs.append([])
            lengths[row.rollout_id] = len(row.token_ids)
        runs[-1].append(row)
    return [run for runs in by_rollout.values() for run in runs]


def _joined(run: Sequence[SegmentRow]) -> SegmentRow:
    """One row, whose number is its first segment's."""
    starts = accumulate((len(row.token_ids) for row in run), initial=0)
    return msgspec.structs.replace(
        run[0],
        token_ids=np.concatenate([row.token_ids for row in run]),
        loss_mask=np.concatenate([row.loss_mask for row in run]),
        logprobs=np.concatenate([row.logprobs for row in run]),
        turns=tuple(_moved(turn, start) for row, start in zip(run, starts, strict=False) for turn in row.turns),
    )


def _moved(turn: Turn, num_tokens: int) -> Turn:
    return msgspec.structs.replace(turn, start=turn.start + num_tokens, end=turn.end + num_tokens)
