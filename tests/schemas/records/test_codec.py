"""Whatever bytes come, a codec gives a record or a RecordError with its reason."""

from __future__ import annotations

import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.schemas.released import CALL, GOLDEN, RELEASED, REWARD
from tracegrad.schemas import errors
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records import calls, episodes, facts, rollouts, tokens

pytestmark = pytest.mark.slow

STRUCTS = [name for name in RELEASED if not name.endswith(".arrow")]


@pytest.mark.parametrize("name", STRUCTS)
@given(data=st.data())
def test_mutated_bytes_only_ever_raise_record_errors(name: str, data: st.DataObject) -> None:
    """A flipped, cut or doubled byte stops no partition."""
    mutant = bytearray((GOLDEN / name).read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(mutant) - 1))
        mutant[at] = data.draw(st.integers(0, 255))
    cut = bytes(mutant[: data.draw(st.integers(0, len(mutant)))] if data.draw(st.booleans()) else mutant)
    try:
        RELEASED[name].decode(cut)
    except RecordError as error:
        assert error.reason in ("malformed", "unknown_schema")


@given(st.binary(max_size=200))
def test_any_bytes_only_ever_raise_record_errors(data: bytes) -> None:
    """Both wires."""
    for codec in (calls.LLM_CALLS, rollouts.REWARDS):
        with pytest.raises(RecordError):
            codec.decode(data)


def test_tombstone_is_refused_by_name() -> None:
    """Compaction may leave null values on a user's topic."""
    with pytest.raises(RecordError) as caught:
        rollouts.REWARDS.decode(None)
    assert caught.value.reason == "null_value"


def test_later_schema_is_refused_by_name() -> None:
    """An old reader dead-letters what it cannot know, it does not guess."""
    later = rollouts.REWARDS.encode(msgspec.structs.replace(REWARD, schema="reward/2"))
    with pytest.raises(RecordError) as caught:
        rollouts.REWARDS.decode(later)
    assert caught.value.reason == "unknown_schema"


def test_later_fields_and_enum_values_are_read() -> None:
    """A field added within a release is skipped, an enum value of a later one becomes `unknown`."""
    fields = msgspec.json.decode(rollouts.REWARDS.encode(REWARD))
    assert rollouts.REWARDS.decode(msgspec.json.encode(fields | {"added_later": [1]})) == REWARD
    call = msgspec.msgpack.decode(calls.LLM_CALLS.encode(CALL)) | {"purpose": "distil"}
    decoded = calls.LLM_CALLS.decode(msgspec.msgpack.encode(call))
    assert isinstance(decoded, calls.CallRecord)
    assert decoded.purpose is calls.Purpose.UNKNOWN


def test_every_enum_on_a_topic_reads_a_later_value_as_unknown() -> None:
    """Public records hold each of them; an old reader keeps reading."""
    for kind in (calls.Purpose, calls.CallOutcome, rollouts.RolloutState, facts.SpanKind, facts.ToolStatus):
        assert msgspec.convert("added_later", kind) is kind("unknown")
    execution = {"span_id": "a", "name": "calc", "status": "skipped", "status_from": "attribute"}
    assert msgspec.convert(execution, episodes.ToolExecution).status is facts.ToolStatus.UNKNOWN


def test_repr_shows_no_payload() -> None:
    """Records may reach a log line; prompts and ids may not."""
    secret = msgspec.structs.replace(CALL, content="the secret")
    assert "secret" not in repr(secret)


@pytest.mark.parametrize("name", [name for name in vars(errors) if name.endswith(("Error", "EngineRefusal"))])
def test_errors_survive_pickling(name: str) -> None:
    """No error needs code of its own for it, so that one may cross a process boundary some day."""
    kind = getattr(errors, name)
    error = kind("expected a, got b", reason="too_large") if kind is RecordError else kind("expected a, got b")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), vars(again)) == (kind, str(error), vars(error))


@given(st.lists(st.integers(0, 2**31 - 1)), st.lists(st.floats(-100, 0, width=32)))
def test_tokens_and_logprobs_survive(ids: list[int], logprobs: list[float]) -> None:
    """Four little-endian bytes each."""
    assert tokens.ids_from_bytes(tokens.ids_to_bytes(ids)).tolist() == ids
    assert tokens.logprobs_from_bytes(tokens.logprobs_to_bytes(logprobs)).tolist() == logprobs
    assert len(tokens.ids_to_bytes(ids)) == 4 * len(ids)


@given(st.binary().filter(lambda data: len(data) % 4))
def test_odd_length_is_a_record_error(data: bytes) -> None:
    """Not a whole number of tokens."""
    with pytest.raises(RecordError):
        tokens.ids_from_bytes(data)
    with pytest.raises(RecordError):
        tokens.logprobs_from_bytes(data)
