"""Bytes of every release are read for ever, and equal records give equal bytes."""

from __future__ import annotations

import re

import msgspec
import pytest

from tests.schemas.released import GOLDEN, RELEASED, Released, write_missing
from tracegrad.schemas.records import (
    calls,
    episodes,
    facts,
    process_status,
    rollouts,
    training,
    transitions,
    weights,
)

CODECS = (
    calls.LLM_CALLS,
    rollouts.ROLLOUTS,
    rollouts.ROLLOUT_EVENTS,
    rollouts.REWARDS,
    facts.EPISODE_EVENTS,
    episodes.EPISODES,
    episodes.CLOSED,
    weights.WEIGHTS,
    weights.WEIGHT_ACKS,
    training.TRAINING_STEPS,
    process_status.PROCESS_STATUS,
)


@pytest.mark.parametrize("released", RELEASED, ids=lambda released: released.file_name)
def test_released_bytes_are_still_read(released: Released) -> None:
    """With the meaning they had."""
    decoded = released.decode((GOLDEN / released.file_name).read_bytes())
    assert decoded == released.record


@pytest.mark.parametrize("released", RELEASED, ids=lambda released: released.file_name)
def test_equal_records_give_equal_bytes(released: Released) -> None:
    """Also through a decoding of released bytes: a replay gives the bytes that a live run gave."""
    golden = (GOLDEN / released.file_name).read_bytes()
    assert released.encode(released.decode(golden)) == released.encode(released.record)


def test_every_released_schema_has_golden_bytes() -> None:
    """A schema name that a codec accepts without a golden file would be a promise without a test."""
    names = {name for codec in CODECS for name in codec._released} | {"transitions/1"}
    # A field added within a release gets a second file: call-1-b.msgpack.
    assert {name.replace("/", "-") for name in names} == {
        re.sub(r"-[b-z]$", "", path.stem) for path in GOLDEN.iterdir()
    }


def test_golden_files_are_never_overwritten() -> None:
    """The script writes only what is missing: here, nothing."""
    assert write_missing() == []


def test_every_field_stands_in_some_golden_record() -> None:
    """A record that leaves a field at its default would not notice the field's loss."""
    fields, filled = set(), set()
    for record in (released.record for released in RELEASED if isinstance(released.record, msgspec.Struct)):
        for field in msgspec.structs.fields(type(record)):
            name = f"{type(record).__name__}.{field.name}"
            fields.add(name)
            if field.default is msgspec.NODEFAULT or getattr(record, field.name) != field.default:
                filled.add(name)
    schemas = {name for name in fields if name.endswith(".schema")}
    assert fields - filled - schemas == set()


def test_transitions_summary_has_a_released_name() -> None:
    """Its name stands in the group's summary."""
    assert transitions.GroupSummary.__struct_defaults__[0] == "transitions/1"
