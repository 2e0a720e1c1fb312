"""`transitions`: one Arrow IPC stream per training group; a row is a segment, a transition is a slice of it.

A segment is a maximal chain of calls in which each prompt extends the last prompt + sampled ids. Its turns tell
where each call's sampled tokens lie ([start, end) in the row), so paper-exact mode (a row a call) and merged
mode (each token once) read the same bytes. What belongs to the group as a whole stands in the schema's
metadata, so a group without rows still says why. Tokens are numpy arrays on both sides, copied once to be written and
not at all when read; nothing here touches them one by one.
"""

from __future__ import annotations

import itertools
import struct
from typing import Annotated, Any

import msgspec
import numpy as np
import pyarrow as pa

from ..errors import RecordError
from ..reasons import Reason
from .episodes import AppliedReward
from .rollouts import MAX_REWARD, PeersRule, is_usable
from .tokens import Ids, Logprobs, Mask
from .versions import VersionSpan, are_complete

_METADATA_KEY = b"tracegrad.group"
MAX_LOGPROB = 1e-4
"""float32 rounding lets a certain token's logprob come out just above 0."""
MIN_TEMPERATURE = 1e-3
MAX_TEMPERATURE = 100.0
"""Of a trained turn. Logits are divided by it: less, or more, overflows float32 or leaves nothing to learn from."""
MAX_WEIGHT = 1e6
"""Of a turn: times the greatest return, squared in the gradient's norm, it stays within float32."""
_Count = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
_UNREADABLE = (pa.ArrowException, OSError, MemoryError, RecursionError, struct.error, msgspec.DecodeError,
               UnicodeDecodeError)  # fmt: skip
"""OSError: flatbuffers that do not verify; MemoryError: what a length that somebody made up asks for."""


class MemberSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One rollout of the group, whether or not it has rows; alone in it, it may have rows and no reward (AIR)."""

    rollout_id: str
    episode_id: str
    attempt_id: str
    state: str
    """RolloutState of its final episode."""
    reward: float | None
    excluded: str = ""
    """Why it gave no rows: `aborted`, `unscored`, `given_up`, `no_calls`, ...; else empty."""
    num_tools: _Count = 0
    num_tools_succeeded: _Count = 0


class GroupSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The group as a whole; members are in member order."""

    schema: str = "transitions/1"
    group_id: str
    group_index: int
    task_id: str
    policy: str
    members: tuple[MemberSummary, ...]
    excluded: str = ""
    """Why credit lets it train nothing: `all_members_excluded`, `too_large`, `unencodable`; else empty."""
    detail: str = ""
    """Of the last two: expected, got, and the key to raise."""
    peers: PeersRule = "turn"
    """By which rule the turns' `peers` were named, and whether members that ended earlier count."""
    air_rules: tuple[str, ...] = ()
    """Digests of the rules by which its members were rewarded; several: they were changed meanwhile."""


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One call's slice of a segment: tokens [start, end) were sampled by it."""

    start: int
    end: int
    turn: int
    call_id: str
    agent: str | None
    temperature: float
    reward_parts: tuple[AppliedReward, ...]
    """What this turn itself earned."""
    return_: float = msgspec.field(name="return")
    """The undiscounted return-to-go."""
    peers: str
    """Turns of the group with equal `peers` are compared with each other: `planner:0` is agent and turn within it,
    `planner` the agent alone where the group's rule is `rollout`. An empty name, `:0`, stands for all calls whose agent
    nobody knows: they are one agent."""
    weight: float
    versions: tuple[VersionSpan, ...]
    """Which version sampled what, counted within the turn; complete where a token trains."""
    masked: str = ""
    """Why its tokens carry loss_mask 0; else empty."""


class SegmentRow(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One row; `token_ids`, `loss_mask` and `logprobs` have the same length T, and are read-only views when decoded."""

    rollout_id: str
    attempt_id: str
    segment: int
    """The segment's number within the rollout, from 0."""
    token_ids: Ids
    loss_mask: Mask
    """1 where the token was sampled and trains here; 0 for prompts, masked calls and repeated prefixes."""
    logprobs: Logprobs
    """The sampler's; 0.0 where loss_mask is 0."""
    turns: tuple[Turn, ...]
    rollout_tokens: int
    """Tokens with loss_mask 1 over all rows of the rollout."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SegmentRow) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in self.__struct_fields__
        )

    __hash__ = None  # type: ignore[assignment]


def _fields(types: dict[str, pa.DataType], *, nullable: str = "") -> list[pa.Field]:
    return [pa.field(name, kind, nullable=name == nullable) for name, kind in types.items()]


_REWARD = pa.struct({"rule": pa.utf8(), "value": pa.float64()})
_VERSION = pa.struct({"start": pa.int32(), "version": pa.int64(), "epoch": pa.int64(), "run": pa.utf8()})
_TURN = pa.struct(
    _fields(
        {
            "start": pa.int32(),
            "end": pa.int32(),
            "turn": pa.int32(),
            "call_id": pa.utf8(),
            "agent": pa.utf8(),
            "temperature": pa.float32(),
            "reward_parts": pa.list_(_REWARD),
            "return": pa.float64(),
            "peers": pa.utf8(),
            "weight": pa.float64(),
            "versions": pa.list_(_VERSION),
            "masked": pa.utf8(),
        },
        nullable="agent",
    )
)
TRANSITIONS_SCHEMA = pa.schema(
    _fields(
        {
            "task_id": pa.utf8(),
            "group_id": pa.utf8(),
            "policy": pa.utf8(),
            "rollout_id": pa.utf8(),
            "attempt_id": pa.utf8(),
            "segment": pa.int32(),
            "token_ids": pa.list_(pa.int32()),
            "loss_mask": pa.list_(pa.uint8()),
            "logprobs": pa.list_(pa.float32()),
            "turns": pa.list_(_TURN),
            "rollout_tokens": pa.int32(),
        }
    )
)
_ROW = pa.struct(list(TRANSITIONS_SCHEMA))


def encode_group(summary: GroupSummary, rows: list[SegmentRow]) -> bytes:
    """The group's Arrow IPC stream, uncompressed (Kafka compresses); equal groups give equal bytes."""
    schema = TRANSITIONS_SCHEMA.with_metadata({_METADATA_KEY: msgspec.json.encode(summary, order="deterministic")})
    of_group = {name: getattr(summary, name) for name in ("task_id", "group_id", "policy")}
    told = [of_group | msgspec.structs.asdict(row) | {"turns": msgspec.to_builtins(row.turns)} for row in rows]
    batch = pa.RecordBatch.from_struct_array(pa.array(told, _ROW))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
    encoded: bytes = sink.getvalue().to_pybytes()
    return encoded


def decode_group(data: bytes | None) -> tuple[GroupSummary, list[SegmentRow]]:
    """The group of these bytes, checked: schema, then Arrow's own full validation, then the meaning.

    Raises:
        RecordError: whatever is wrong. Unvalidated Arrow bytes can crash the process, so nothing else may read them.
    """
    if data is None:
        raise RecordError("expected an Arrow stream, got a tombstone (null value)", reason=Reason.NULL_VALUE)
    try:
        batch = _read_batch(data)
        batch.validate(full=True)
        for field in batch.schema:
            _refuse_nulls(batch.column(field.name), field.name)
        summary = _summary_of(batch.schema)
        rows = _rows(batch)
    except _UNREADABLE as error:
        raise RecordError(f"expected a transitions/1 Arrow stream, got {error}") from error
    _check_summary(summary)
    for row in rows:
        _check_row(row)
    return summary, rows


def _read_batch(data: bytes) -> pa.RecordBatch:
    """The stream's only batch, not validated; nothing is allocated for its columns, which lie in `data`."""
    messages = list(itertools.islice(pa.ipc.MessageReader.open_stream(data), 3))
    schema = pa.ipc.read_schema(messages[0]) if messages else pa.schema([])
    if not schema.equals(TRANSITIONS_SCHEMA, check_metadata=False):
        raise RecordError("expected the transitions/1 Arrow schema, got another", reason=Reason.UNKNOWN_SCHEMA)
    if len(messages) != 2 or messages[1].type != "record batch":
        raise RecordError(f"expected 1 record batch, got {[message.type for message in messages[1:]]}")
    if _is_compressed(memoryview(messages[1].metadata)):
        raise RecordError("expected an Arrow body without compression (Kafka compresses), got a compressed one")
    return pa.ipc.read_record_batch(messages[1], schema)


def _is_compressed(metadata: memoryview) -> bool:
    """Whether a record batch's flatbuffer has the field `compression`, which pyarrow does not show.

    Asked before the body is touched: 17 KB of it unfold to a gigabyte. Arrow has verified the offsets.
    """
    (root,) = struct.unpack_from("<I", metadata, 0)
    header = _field(metadata, root, 2)
    (batch,) = struct.unpack_from("<I", metadata, header)
    return _field(metadata, header + batch, 3) != 0


def _field(metadata: memoryview, table: int, slot: int) -> int:
    """Where a flatbuffer's table keeps a field; 0 when it has none."""
    (back,) = struct.unpack_from("<i", metadata, table)
    (size,) = struct.unpack_from("<H", metadata, table - back)
    at = 4 + 2 * slot
    (offset,) = struct.unpack_from("<H", metadata, table - back + at) if at < size else (0,)
    return table + offset if offset else 0


def summary_of(data: bytes | None) -> GroupSummary | None:
    """What even malformed bytes still tell of the group as a whole, not checked; None when they tell nothing.

    Reads the schema message only: Arrow verifies that one itself, while column buffers that were not validated can
    crash the process. Never raises.
    """
    try:
        with pa.ipc.open_stream(data or b"") as reader:
            return _summary_of(reader.schema)
    except _UNREADABLE:
        return None


def group_id_of(data: bytes | None) -> str | None:
    """The group that they name, as they spell it."""
    summary = summary_of(data)
    return summary.group_id if summary is not None else None


def _summary_of(schema: pa.Schema) -> GroupSummary:
    return msgspec.json.decode((schema.metadata or {}).get(_METADATA_KEY, b""), type=GroupSummary)


def _refuse_nulls(array: pa.Array, path: str) -> None:
    """Arrow's types allow a null anywhere below a list; only a turn's agent may be one."""
    if array.null_count and not path.endswith(".agent"):
        raise RecordError(f"expected no nulls in {path}, got {array.null_count}")
    if pa.types.is_list(array.type):
        _refuse_nulls(array.flatten(), path)
    elif pa.types.is_struct(array.type):
        for field in array.type:
            _refuse_nulls(array.field(field.name), f"{path}.{field.name}")


def _rows(batch: pa.RecordBatch) -> list[SegmentRow]:
    columns = {name: _values(name, batch.column(name)) for name in SegmentRow.__struct_fields__}
    return [SegmentRow(**dict(zip(columns, row, strict=True))) for row in zip(*columns.values(), strict=True)]


def _values(name: str, column: pa.Array) -> list[Any]:
    """What each row has of a column without nulls; tokens as views."""
    if name == "turns":
        return msgspec.convert(column.to_pylist(), list[tuple[Turn, ...]])
    if not pa.types.is_list(column.type):
        return list(column.to_pylist())
    tokens = column.flatten().to_numpy()
    offsets = column.offsets.to_numpy()
    return [tokens[begin:end] for begin, end in itertools.pairwise((offsets - offsets[0]).tolist())]


def _check_summary(summary: GroupSummary) -> None:
    """The meaning of what belongs to the group as a whole."""
    if summary.schema != "transitions/1":
        raise RecordError(f"expected schema transitions/1, got {summary.schema!r}", reason=Reason.UNKNOWN_SCHEMA)
    if len({member.rollout_id for member in summary.members}) != len(summary.members):
        raise RecordError(f"expected each rollout once among the members of group {summary.group_id}, got one twice")
    rewards = [m.reward for m in summary.members if m.reward is not None or (summary.members[1:] and not m.excluded)]
    if not all(map(is_usable, rewards)):
        raise RecordError(
            f"expected members with a reward of at most {MAX_REWARD:g} in group {summary.group_id}, got another"
        )


def _check_row(row: SegmentRow) -> None:
    """The meaning of a row; ids are checked against the vocabulary by the trainer, which knows it."""
    num_tokens = len(row.token_ids)
    where = f"rollout={row.rollout_id} segment={row.segment}"
    if len(row.loss_mask) != num_tokens or len(row.logprobs) != num_tokens:
        raise RecordError(
            f"expected {num_tokens} loss_mask and logprobs, got {len(row.loss_mask)} and {len(row.logprobs)}, {where}"
        )
    if (row.token_ids < 0).any():
        raise RecordError(f"expected token ids >= 0, got a negative one, {where}")
    if (row.loss_mask > 1).any():
        raise RecordError(f"expected loss_mask of 0 and 1, got another value, {where}")
    if not ((row.logprobs > -np.inf) & (row.logprobs <= MAX_LOGPROB)).all():
        raise RecordError(f"expected finite logprobs <= 0, got another, {where}")
    for turn in row.turns:
        if not 0 <= turn.start <= turn.end <= num_tokens:
            raise RecordError(f"expected 0 <= start <= end <= {num_tokens}, got {turn.start}, {turn.end}, {where}")
        rewards = (turn.return_, *(part.value for part in turn.reward_parts))
        if not all(map(is_usable, rewards)) or not abs(turn.weight) <= MAX_WEIGHT:
            raise RecordError(f"expected rewards to {MAX_REWARD:g} and weights to {MAX_WEIGHT:g}, got others, {where}")
        if turn.temperature != 0.0 and not MIN_TEMPERATURE <= turn.temperature <= MAX_TEMPERATURE:
            raise RecordError(
                f"expected temperature 0 or {MIN_TEMPERATURE} to {MAX_TEMPERATURE:g}, got another, {where}"
            )
        if row.loss_mask[turn.start : turn.end].any() and not are_complete(turn.versions, turn.end - turn.start):
            raise RecordError(f"expected complete versions on a trained turn, got others, call={turn.call_id}, {where}")
