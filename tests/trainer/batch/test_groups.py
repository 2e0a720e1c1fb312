"""Judging one record: what trains, what is excluded, what is a dead letter."""

from __future__ import annotations

import random
from collections import Counter

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from tests.trainer.material import (
    VOCABULARY,
    group_bytes,
    group_in,
    record,
    segment,
    summary,
    turn,
)
from tests.versions import sampled_by
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.transitions import SegmentRow, decode_group, encode_group
from tracegrad.trainer.batch.groups import Group, GroupLimits, filtered, judge, token_versions, trained_versions
from tracegrad.trainer.history.config import ReplayConfig

LIMITS = GroupLimits(policy="policy", vocabulary=VOCABULARY, max_row_tokens=64)


def row(**changes: object) -> SegmentRow:
    """A good row of rollout r0 with one change."""
    return msgspec.structs.replace(segment("r0", [turn(2, 5)]), **changes)


def test_good_record_is_a_group() -> None:
    """Rows and summary come through."""
    verdict = judge(record(group_bytes(3)), LIMITS)
    assert verdict.group is not None
    assert verdict.group_id == f"{3:024x}"
    assert not verdict.group.empty
    assert len(verdict.group.rows) == 4


BAD_ROWS = {
    "outside the vocabulary": ([row(token_ids=np.full(8, VOCABULARY, np.int32))], "vocabulary"),
    "negative id": ([row(token_ids=np.full(8, -1, np.int32))], "malformed"),
    "too long": ([segment("r0", [turn(2, 5)], num_tokens=65)], "too_long"),
    "first token trained": ([segment("r0", [turn(0, 3)])], "malformed"),
    "trained outside turns": (
        [row(loss_mask=np.array([0, 0, 1, 1, 1, 1, 0, 0], np.uint8), rollout_tokens=4)],
        "malformed",
    ),
    "turns overlap": ([segment("r0", [turn(2, 5), turn(4, 6, call="b")])], "malformed"),
    "greedy tokens trained": ([segment("r0", [turn(2, 5, temperature=0.0)])], "zero_temperature"),
    "rollout_tokens off": ([row(rollout_tokens=9)], "malformed"),
    "not a member": ([segment("r9", [turn(2, 5)])], "malformed"),
    "logprob above 0": ([row(logprobs=np.full(8, 0.5, np.float32))], "malformed"),
    "one call trained twice": (
        [
            segment("r0", [turn(2, 5)], rollout_tokens=6),
            segment("r0", [turn(2, 5)], rollout_tokens=6, number=1),
        ],
        "malformed",
    ),
    "two returns for one call": (
        [
            segment("r0", [turn(2, 5, returned=1.0)]),
            segment("r0", [turn(2, 5, returned=2.0)], number=1, mask=[0] * 8, rollout_tokens=3),
        ],
        "malformed",
    ),
}


@pytest.mark.parametrize(("rows", "reason"), BAD_ROWS.values(), ids=BAD_ROWS)
def test_bad_rows_are_a_dead_letter_that_names_its_group(rows: list[SegmentRow], reason: str) -> None:
    """The group is consumed, so admission does not wait for it for ever."""
    verdict = judge(record(encode_group(summary("g0", ["r0", "r1"]), rows)), LIMITS)
    assert verdict.group is None
    assert (verdict.reason, verdict.group_id) == (reason, "g0")


def test_another_policys_group_is_refused() -> None:
    """Its tokens are not this policy's."""
    verdict = judge(record(encode_group(summary("g0", ["r0"], policy="other"), [])), LIMITS)
    assert (verdict.group, verdict.reason) == (None, "wrong_policy")


@pytest.mark.parametrize("value", [None, b"", b"garbage", b"\xff" * 300], ids=["null", "empty", "text", "bytes"])
def test_unreadable_bytes_name_no_group(value: bytes | None) -> None:
    """They are a dead letter and nothing else."""
    verdict = judge(record(value), LIMITS)
    assert (verdict.group, verdict.group_id) == (None, None)
    assert verdict.reason


def test_nulls_below_lists_are_malformed() -> None:
    """Arrow's validation lets them pass; arithmetic on them would end the process."""
    import pyarrow as pa

    with pa.ipc.open_stream(group_bytes(1)) as reader:
        schema, batch = reader.schema, reader.read_next_batch()
    position = schema.get_field_index("token_ids")
    holes = pa.array([[1, None]] * batch.num_rows, schema.field("token_ids").type)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(batch.set_column(position, schema.field("token_ids"), holes))
    verdict = judge(record(sink.getvalue().to_pybytes()), LIMITS)
    assert (verdict.group, verdict.group_id) == (None, f"{1:024x}")


def test_mutated_records_never_raise() -> None:
    """Flipped and cut bytes give a verdict each; Arrow without validation would crash the process."""
    rng = random.Random(0)
    good = group_bytes(1)
    reasons: Counter[str] = Counter()
    for _ in range(300):
        mutant = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            mutant[rng.randrange(len(mutant))] = rng.randrange(256)
        mutated = record(bytes(mutant[: rng.randint(1, len(mutant))]))
        verdict = judge(mutated, LIMITS)
        assert verdict.record is mutated
        assert (verdict.group is None) == bool(verdict.reason)
        reasons[verdict.reason] += 1
    assert reasons["malformed"] > 250


def test_empty_group_keeps_credits_reason() -> None:
    """Excluded, not malformed."""
    group = group_in(encode_group(summary("g0", ["r0"], excluded="all_members_excluded"), []))
    assert group.empty == "all_members_excluded"


def test_versions_are_told_per_token() -> None:
    """A turn that a weight update cut in two."""
    cut = msgspec.structs.replace(turn(2, 7), versions=(sampled_by(4), sampled_by(5, start=3)))
    assert token_versions(cut) == [(2, 5, sampled_by(4)), (5, 7, sampled_by(5, start=3))]
    group = group_in(encode_group(summary("g0", ["r0"]), [segment("r0", [cut])]))
    assert trained_versions(group) == [sampled_by(4), sampled_by(5, start=3)]


def test_a_turn_without_tokens_has_no_version() -> None:
    """As of a call that was told without its tools: it cannot be rendered."""
    assert token_versions(msgspec.structs.replace(turn(2, 2), versions=())) == []


def test_masked_tokens_do_not_age_a_group() -> None:
    """Only what trains can be stale."""
    rows = [segment("r0", [turn(2, 5, version=1)], mask=[0] * 8), segment("r1", [turn(2, 5, version=6)])]
    group = group_in(encode_group(summary("g0", ["r0", "r1"]), rows))
    assert trained_versions(group) == [sampled_by(6)]


def as_texts(group: Group) -> Group:
    """Whose calls' words are known, and not the ids that were sampled."""
    rows = [
        replace(
            row,
            loss_mask=np.zeros_like(row.loss_mask),
            turns=tuple(replace(turn, masked=Reason.TEXT) for turn in row.turns),
            rollout_tokens=0,
        )
        for row in group.rows
    ]
    return Group(group.summary, tuple(rows))


def test_filter_trains_calls_of_which_the_words_are_known() -> None:
    """Their own tokens alone, each in the first row that has the call; calls that something is lacking of stay out."""
    told, rows = decode_group(group_bytes(0))
    group = as_texts(Group(told, tuple(rows)))
    again = replace(group.rows[0], segment=99)
    hidden = replace(group.rows[1], turns=tuple(replace(one, masked=Reason.NO_TOOLS_TOLD) for one in rows[1].turns))
    kept = filtered(Group(told, (group.rows[0], again, hidden, *group.rows[2:])), ReplayConfig(bound=-10.0))
    by_segment = {(row.rollout_id, row.segment): row for row in kept.rows}
    first = by_segment[rows[0].rollout_id, rows[0].segment]
    assert first.loss_mask.tolist() == rows[0].loss_mask.tolist() and first.rollout_tokens == rows[0].loss_mask.sum()
    assert not by_segment[again.rollout_id, 99].loss_mask.any()
    assert not by_segment[hidden.rollout_id, hidden.segment].loss_mask.any()
    assert [turn.masked for turn in first.turns] == [""] * len(first.turns)


@pytest.mark.parametrize(("unrated", "num"), [("drop", 0), ("train", 1)])
def test_episodes_that_nobody_rated_train_where_that_is_asked_for(unrated: str, num: int) -> None:
    """Below the bound they are not."""
    told, rows = decode_group(group_bytes(0))
    members = (replace(told.members[0], reward=None), *(replace(one, reward=0.0) for one in told.members[1:]))
    config = ReplayConfig(bound=1.0, unrated=unrated)  # type: ignore[arg-type]
    kept = filtered(Group(replace(told, members=members), tuple(rows)), config)
    assert len({row.rollout_id for row in kept.rows}) == num
