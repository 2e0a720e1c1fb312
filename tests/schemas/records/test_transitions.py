"""Arrow bytes from anywhere: a checked group, or a RecordError; never a crash, never nonsense."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from tests.schemas.released import GOLDEN, ROW, SUMMARY
from tests.versions import sampled_by
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records import transitions
from tracegrad.schemas.records.episodes import AppliedReward
from tracegrad.schemas.records.transitions import (
    TRANSITIONS_SCHEMA,
    MemberSummary,
    SegmentRow,
    Turn,
    decode_group,
    encode_group,
    group_id_of,
)
from tracegrad.schemas.records.versions import VersionSpan

TEXT = st.text(max_size=12)
BIG = st.integers(0, 2**40)
FLOATS = st.floats(-1e6, 1e6)


@st.composite
def turns(draw: st.DrawFn, num_tokens: int) -> Turn:
    """A turn that lies in a row of so many tokens."""
    start = draw(st.integers(0, num_tokens))
    end = draw(st.integers(start, num_tokens))
    starts = [0, *sorted(draw(st.sets(st.integers(1, end - start), max_size=2)))] if end > start else [0]
    return Turn(
        start=start,
        end=end,
        turn=draw(st.integers(0, 100)),
        call_id=draw(TEXT),
        agent=draw(st.none() | TEXT),
        temperature=draw(st.just(0.0) | st.floats(0.125, 2, width=32)),
        reward_parts=tuple(draw(st.lists(st.builds(AppliedReward, rule=TEXT, value=FLOATS), max_size=3))),
        return_=draw(FLOATS),
        peers=draw(TEXT),
        weight=draw(FLOATS),
        versions=tuple(
            draw(st.builds(VersionSpan, start=st.just(at), version=BIG, epoch=BIG, run=TEXT)) for at in starts
        ),
        masked=draw(TEXT),
    )


@st.composite
def rows(draw: st.DrawFn) -> SegmentRow:
    """A row whose columns agree."""
    count = draw(st.integers(0, 12))
    return SegmentRow(
        rollout_id=draw(TEXT),
        attempt_id=draw(TEXT),
        segment=draw(st.integers(0, 10)),
        token_ids=draw(arrays(np.int32, count, elements=st.integers(0, 2**31 - 1))),
        loss_mask=draw(arrays(np.uint8, count, elements=st.integers(0, 1))),
        logprobs=draw(arrays(np.float32, count, elements=st.floats(-50, 0, width=32))),
        turns=tuple(draw(st.lists(turns(count), max_size=3))),
        rollout_tokens=draw(st.integers(0, 100)),
    )


@pytest.mark.slow
@given(st.lists(rows(), max_size=4))
def test_group_survives_and_its_bytes_are_its_own(group: list[SegmentRow]) -> None:
    """Also a group without rows, which says why in its summary."""
    data = encode_group(SUMMARY, group)
    assert decode_group(data) == (SUMMARY, group)
    assert encode_group(*decode_group(data)) == data


def test_decoded_tokens_are_views_of_the_records_bytes() -> None:
    """Not copied, not writable, of the column's own type, each row its own slice."""
    data = encode_group(SUMMARY, [ROW, msgspec.structs.replace(ROW, token_ids=ROW.token_ids[::-1])])
    _, rows = decode_group(data)
    assert [row.token_ids.tolist() for row in rows] == [[5, 6, 9, 10, 7], [7, 10, 9, 6, 5]]
    for row in rows:
        columns = (row.token_ids, row.loss_mask, row.logprobs)
        assert [column.dtype for column in columns] == [np.int32, np.uint8, np.float32]
        assert all(np.shares_memory(column, np.frombuffer(data, np.uint8)) for column in columns)
        assert not any(column.flags.writeable for column in columns)


def test_mutants_only_ever_raise_record_errors() -> None:
    """Unvalidated, such bytes end the process after a handful of mutants."""
    golden = (GOLDEN / "transitions-1.arrow").read_bytes()
    chance = random.Random(0)
    num_refused = 0
    for _ in range(400):
        mutant = bytearray(golden)
        for _ in range(chance.randint(1, 6)):
            mutant[chance.randrange(len(mutant))] = chance.randrange(256)
        if chance.random() < 0.2:
            del mutant[chance.randrange(len(mutant)) :]
        try:
            decode_group(bytes(mutant))
        except RecordError:
            num_refused += 1
            assert isinstance(group_id_of(bytes(mutant)), str | None)
    assert num_refused > 100


def test_what_is_refused_may_still_name_its_group() -> None:
    """By the summary alone, whatever the columns are; other bytes name none."""
    refused = stream(TOLD.remove(0), 1)
    assert group_id_of(refused) == SUMMARY.group_id
    assert [group_id_of(data) for data in (None, b"", b"\xff" * 64, stream(TRANSITIONS_SCHEMA, 1))] == [None] * 4


def stream(schema: pa.Schema, num_batches: int) -> bytes:
    """An Arrow stream of empty batches."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(num_batches):
            writer.write_batch(pa.RecordBatch.from_pylist([], schema=schema))
    data: bytes = sink.getvalue().to_pybytes()
    return data


TOLD = TRANSITIONS_SCHEMA.with_metadata({b"tracegrad.group": msgspec.json.encode(SUMMARY)})
NO_GROUPS: dict[str, tuple[bytes | None, str]] = {
    "empty": (b"", "unknown_schema"),
    "magic": (b"ARROW1", "malformed"),
    "ff": (b"\xff" * 64, "malformed"),
    "zero": (b"\x00" * 64, "unknown_schema"),
    "tombstone": (None, "null_value"),
    "dropped column": (stream(TOLD.remove(0), 1), "unknown_schema"),
    "added column": (stream(TOLD.append(pa.field("x", pa.int8())), 1), "unknown_schema"),
    "retyped column": (
        stream(TOLD.set(0, pa.field("task_id", pa.large_utf8(), nullable=False)), 1),
        "unknown_schema",
    ),
    "no batch": (stream(TOLD, 0), "malformed"),
    "two batches": (stream(TOLD, 2), "malformed"),
    "no summary": (stream(TRANSITIONS_SCHEMA, 1), "malformed"),
}


@pytest.mark.parametrize(("data", "reason"), NO_GROUPS.values(), ids=NO_GROUPS)
def test_what_is_no_group_is_refused_by_name(data: bytes | None, reason: str) -> None:
    """Any bytes, another schema; a group is one record batch, and rows without their summary say nothing."""
    with pytest.raises(RecordError) as caught:
        decode_group(data)
    assert caught.value.reason == reason


def part(value: float) -> AppliedReward:
    """A reward that a turn earned."""
    return AppliedReward(rule="air:tool_ok", value=value)


TURN = ROW.turns[0]
WRONG: dict[str, dict[str, Any]] = {
    "short mask": {"loss_mask": np.array([0, 0, 1, 1], np.uint8)},
    "short logprobs": {"logprobs": np.array([0.0], np.float32)},
    "negative token": {"token_ids": np.array([5, 6, 9, -1, 7], np.int32)},
    "mask of 2": {"loss_mask": np.array([0, 0, 1, 2, 0], np.uint8)},
    "positive logprob": {"logprobs": np.array([0.0, 0.0, 0.5, -1.25, 0.0], np.float32)},
    "infinite logprob": {"logprobs": np.array([0.0, 0.0, -np.inf, -1.25, 0.0], np.float32)},
    "nan logprob": {"logprobs": np.array([0.0, 0.0, np.nan, -1.25, 0.0], np.float32)},
    "turn past the end": {"turns": (msgspec.structs.replace(TURN, end=6),)},
    "turn backwards": {"turns": (msgspec.structs.replace(TURN, start=4, end=2),)},
    "infinite return": {"turns": (msgspec.structs.replace(TURN, return_=float("inf")),)},
    "nan reward part": {"turns": (msgspec.structs.replace(TURN, reward_parts=(part(float("nan")),)),)},
    "infinite reward part": {"turns": (msgspec.structs.replace(TURN, reward_parts=(part(float("inf")),)),)},
    "reward part beyond the bound": {"turns": (msgspec.structs.replace(TURN, reward_parts=(part(-1.1e12),)),)},
    "weight beyond the bound": {"turns": (msgspec.structs.replace(TURN, weight=-1.1e6),)},
    "nan weight": {"turns": (msgspec.structs.replace(TURN, weight=float("nan")),)},
    "negative temperature": {"turns": (msgspec.structs.replace(TURN, temperature=-1.0),)},
    "nan temperature": {"turns": (msgspec.structs.replace(TURN, temperature=float("nan")),)},
    "infinite temperature": {"turns": (msgspec.structs.replace(TURN, temperature=float("inf")),)},
    "temperature of 1e-38": {"turns": (msgspec.structs.replace(TURN, temperature=1e-38),)},
    "return beyond the bound": {"turns": (msgspec.structs.replace(TURN, return_=1.1e12),)},
    "negative version": {"turns": (msgspec.structs.replace(TURN, versions=(sampled_by(-1),)),)},
    "negative epoch": {"turns": (msgspec.structs.replace(TURN, versions=(sampled_by(1, epoch=-1),)),)},
    "no versions": {"turns": (msgspec.structs.replace(TURN, versions=()),)},
}


@pytest.mark.parametrize("change", WRONG.values(), ids=WRONG.keys())
def test_row_without_meaning_is_refused(change: dict[str, Any]) -> None:
    """Well-formed Arrow is not enough: the trainer may rely on what it is given."""
    with pytest.raises(RecordError, match="expected"):
        decode_group(encode_group(SUMMARY, [msgspec.structs.replace(ROW, **change)]))


@pytest.mark.parametrize("temperature", [0.0, 0.001, 0.7, 100.0])
def test_a_temperature_that_can_be_is_taken(temperature: float) -> None:
    """Also when float32 rounds it."""
    row = msgspec.structs.replace(ROW, turns=(msgspec.structs.replace(TURN, temperature=temperature),))
    assert decode_group(encode_group(SUMMARY, [row]))[1][0].turns[0].temperature == pytest.approx(temperature)


@pytest.mark.parametrize(
    "members",
    [
        (SUMMARY.members[0], SUMMARY.members[0]),
        (msgspec.structs.replace(SUMMARY.members[0], reward=1e13),),
        (msgspec.structs.replace(SUMMARY.members[1], reward=1.7e308),),
        (msgspec.structs.replace(SUMMARY.members[0], num_tools=-1),),
        (msgspec.structs.replace(SUMMARY.members[0], num_tools_succeeded=10**400),),
    ],
    ids=["one rollout twice", "a reward beyond the bound", "one of an excluded", "tools below 0", "tools without end"],
)
def test_members_that_cannot_be_are_refused(members: tuple[MemberSummary, ...]) -> None:
    """Each is one rollout, its reward may be somebody's baseline, and what is told of all is summed."""
    with pytest.raises(RecordError, match="expected"):
        decode_group(encode_group(msgspec.structs.replace(SUMMARY, members=members), [ROW]))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_a_compressed_body_is_refused_before_it_unfolds(codec: str) -> None:
    """A few hundred KB on the wire, 64 MB of tokens: no column is allocated."""
    count = 1 << 22
    row = msgspec.structs.replace(
        ROW,
        token_ids=np.zeros(count, np.int32),
        loss_mask=np.zeros(count, np.uint8),
        logprobs=np.zeros(count, np.float32),
        turns=(),
    )
    with pa.ipc.open_stream(encode_group(SUMMARY, [row])) as reader:
        batch, schema = reader.read_next_batch(), reader.schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as writer:
        writer.write_batch(batch)
    bomb = sink.getvalue().to_pybytes()
    del batch
    assert len(bomb) < 400_000
    before = pa.total_allocated_bytes()
    with pytest.raises(RecordError, match="without compression"):
        decode_group(bomb)
    assert pa.total_allocated_bytes() - before < 1_000_000
    assert group_id_of(bomb) == SUMMARY.group_id


def test_a_lack_of_memory_is_the_records_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """A length that somebody made up: the record is refused, the process goes on."""

    def lack(_: pa.RecordBatch) -> None:
        raise MemoryError

    monkeypatch.setattr(transitions, "_rows", lack)
    with pytest.raises(RecordError):
        decode_group(encode_group(SUMMARY, [ROW]))


def test_a_summary_nested_without_end_is_refused() -> None:
    """In a field that nobody reads."""
    deep = b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    data = stream(TRANSITIONS_SCHEMA.with_metadata({b"tracegrad.group": deep}), 1)
    assert group_id_of(data) is None
    with pytest.raises(RecordError):
        decode_group(data)
