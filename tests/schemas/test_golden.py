"""Bytes of every release are read for ever, and equal records give equal bytes."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest

from tests.schemas.released import CODECS, GOLDEN, RELEASED, WRITTEN, write_missing
from tracegrad.schemas.records import (
    calls,
    episodes,
    facts,
    held_out,
    process_status,
    rollouts,
    training,
    weights,
)


@pytest.mark.parametrize("name", RELEASED)
def test_released_bytes_are_still_read_and_give_equal_bytes(name: str) -> None:
    """With the meaning they had: written again, a record tells under which names it was read; and a replay gives the
    bytes that a live run gave."""
    codec, released = RELEASED[name], (GOLDEN / name).read_bytes()
    decoded = codec.decode(released)
    again = codec.encode(decoded)
    if name in WRITTEN:
        assert decoded == WRITTEN[name] and again == codec.encode(WRITTEN[name])
    else:
        assert_kept(msgspec.json.decode(again), msgspec.json.decode(released))
        assert codec.encode(codec.decode(again)) == again


def assert_kept(read: Any, released: Any) -> None:
    """All that was released is there; a field that was added within the release may be too."""
    if isinstance(released, dict):
        for name, value in released.items():
            assert_kept(read[name], value)
    elif isinstance(released, list):
        for mine, theirs in zip(read, released, strict=True):
            assert_kept(mine, theirs)
    else:
        assert read == released


def test_fields_are_called_as_in_their_files() -> None:
    """Else a value could be written back under its released name and be read as another field."""
    modules = (calls, episodes, facts, held_out, process_status, rollouts, training, weights)
    for kind in (kind for module in modules for kind in vars(module).values() if isinstance(kind, type)):
        if issubclass(kind, msgspec.Struct):
            assert [field.encode_name for field in msgspec.structs.fields(kind)] == list(kind.__struct_fields__)


def test_every_released_schema_has_golden_bytes() -> None:
    """A schema name that a codec accepts without a golden file would be a promise without a test."""
    # A field added within a release gets a second file: call-1-b.msgpack.
    files = {re.sub(r"-[b-z]$", "", path.stem) for path in GOLDEN.iterdir()}
    assert {name.replace("/", "-") for name in CODECS} == files


def test_golden_files_are_never_overwritten() -> None:
    """The script writes only what is missing: here, nothing."""
    assert write_missing() == []


def test_every_field_stands_in_some_golden_record() -> None:
    """A record that leaves a field at its default would not notice the field's loss."""
    fields, filled = set(), set()
    decoded = [codec.decode((GOLDEN / name).read_bytes()) for name, codec in RELEASED.items()]
    for record in (record for record in decoded if isinstance(record, msgspec.Struct)):
        for field in msgspec.structs.fields(type(record)):
            name = f"{type(record).__name__}.{field.name}"
            fields.add(name)
            if field.default is msgspec.NODEFAULT or getattr(record, field.name) != field.default:
                filled.add(name)
    schemas = {name for name in fields if name.endswith(".schema")}
    assert fields - filled - schemas == set()
