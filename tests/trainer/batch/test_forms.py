"""A rollout's rows in each form, by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from tests.trainer.material import segment, summary, turn
from tracegrad.schemas.records.transitions import SegmentRow
from tracegrad.trainer.algorithm.recipe import Rows
from tracegrad.trainer.batch.groups import Group, in_form


def row_of(rollout: str, number: int, ids: list[int], mask: list[int], *turns: Any) -> SegmentRow:
    """Whose logprobs are minus a tenth of the ids."""
    row = segment(rollout, turns, num_tokens=len(ids), mask=mask, number=number, rollout_tokens=6)
    logprobs = np.where(row.loss_mask, np.array(ids) / -10, 0.0).astype(np.float32)
    return msgspec.structs.replace(row, token_ids=np.array(ids, np.int32), logprobs=logprobs)


A, B, C, D = (
    turn(2, 4, call="a"),
    turn(5, 7, call="b", index=1),
    turn(1, 2, call="c", index=2),
    turn(1, 3, call="d", index=3),
)
ROWS = (
    row_of("r0", 0, [1, 2, 3, 4, 5, 6, 7], [0, 0, 1, 1, 0, 1, 1], A, B),
    row_of("r0", 1, [8, 9], [0, 0], C),
    row_of("r0", 2, [10, 11, 12, 13], [0, 1, 1, 0], D),
)
"""Two calls that are one chain, a masked one, and one after another prompt, which something follows."""


def told(rows: tuple[SegmentRow, ...]) -> list[tuple[list[int], list[int], list[tuple[str, int, int]]]]:
    """Ids, mask and turns of each."""
    places = [[(turn.call_id, turn.start, turn.end) for turn in row.turns] for row in rows]
    return [(row.token_ids.tolist(), row.loss_mask.tolist(), at) for row, at in zip(rows, places, strict=True)]


def rows_in(form: Rows, *, bound: int = 100) -> tuple[SegmentRow, ...]:
    """Of the rollout above."""
    (group,) = in_form([Group(summary("g", ["r0"]), ROWS)], form, max_row_tokens=bound)
    return group.rows


def test_segments_are_left_as_they_are() -> None:
    """The same objects: the default costs nothing."""
    groups = [Group(summary("g", ["r0"]), ROWS)]
    assert in_form(groups, "segments", max_row_tokens=1) is groups


def test_transitions_have_their_own_tokens_behind_their_whole_prompt() -> None:
    """What an earlier call of the chain sampled is context; what follows the last one is nothing's."""
    assert told(rows_in("transitions")) == [
        ([1, 2, 3, 4], [0, 0, 1, 1], [("a", 2, 4)]),
        ([1, 2, 3, 4, 5, 6, 7], [0, 0, 0, 0, 0, 1, 1], [("b", 5, 7)]),
        ([8, 9], [0, 0], [("c", 1, 2)]),
        ([10, 11, 12], [0, 1, 1], [("d", 1, 3)]),
    ]
    assert rows_in("transitions")[1].logprobs.tolist() == pytest.approx([0, 0, 0, 0, 0, -0.6, -0.7])


def test_concatenated_segments_lie_behind_one_another() -> None:
    """Prompts masked, also those in the middle."""
    assert told(rows_in("concatenated")) == [
        (
            [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13],
            [0, 0, 1, 1, 0, 1, 1, 0, 0, 0, 1, 1, 0],
            [("a", 2, 4), ("b", 5, 7), ("c", 8, 9), ("d", 10, 12)],
        )
    ]


@pytest.mark.parametrize(("bound", "lengths"), [(13, [13]), (12, [9, 4]), (9, [9, 4]), (8, [7, 6]), (7, [7, 6])])
def test_a_concatenated_row_ends_before_the_segment_that_is_too_much(bound: int, lengths: list[int]) -> None:
    """Nothing is cut off."""
    assert [len(row.token_ids) for row in rows_in("concatenated", bound=bound)] == lengths


def test_rollouts_are_not_concatenated_with_each_other() -> None:
    """However their rows lie in the record."""
    other = msgspec.structs.replace(ROWS[0], rollout_id="r1")
    group = Group(summary("g", ["r0", "r1"]), (ROWS[0], other, ROWS[2]))
    ((first, second),) = (group.rows for group in in_form([group], "concatenated", max_row_tokens=100))
    assert (first.rollout_id, len(first.token_ids), second) == ("r0", 11, other)
