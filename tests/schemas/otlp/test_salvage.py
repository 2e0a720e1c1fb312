"""What is read of a damaged OTLP request: everything but what the damage touches."""

from __future__ import annotations

import contextlib
import functools
import itertools
import tracemalloc
from typing import Any

import pytest
from google.protobuf.internal.decoder import _DecodeVarint as read_varint  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.errors import UndecodableError
from tracegrad.schemas.otlp import salvage as salvage_module
from tracegrad.schemas.otlp.salvage import Salvaged, salvage
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, items_of
from tracegrad.schemas.records.otlp import service_of

NUM_RESOURCES, NUM_SCOPES, NUM_SPANS = 2, 2, 3


def fill(item: Any, number: int) -> None:
    """As an SDK does: ids, times, texts, attributes."""
    item.trace_id, item.span_id = bytes([0xAB, number]) * 8, bytes([number]) * 8
    for key, text in (("gen_ai.operation.name", "execute_tool"), ("result", "42 \u00e9" * 9)):
        item.attributes.add(key=key).value.string_value = text
    item.attributes.add(key="many").value.array_value.values.add().int_value = number


def request(signal: Signal) -> Any:
    """Two resources with two scopes of three items each."""
    made, number = signal.request(), 0
    for service in range(NUM_RESOURCES):
        of_resource = getattr(made, signal.resources).add(schema_url="https://example.org/1")
        for key, text in (("service.name", f"service-{service}"), ("host", "h")):
            of_resource.resource.attributes.add(key=key).value.string_value = text
        for scope in range(NUM_SCOPES):
            of_scope = getattr(of_resource, signal.scopes).add(schema_url="https://example.org/2")
            of_scope.scope.name = f"scope-{scope}"
            for _ in range(NUM_SPANS):
                number += 1
                item = getattr(of_scope, signal.fields).add()
                fill(item, number)
                if signal is TRACES:
                    item.name, item.start_time_unix_nano, item.end_time_unix_nano = "work", 10**18, 10**18 + number
                else:
                    item.time_unix_nano, item.observed_time_unix_nano = 10**18 + number, 10**18
                    item.event_name = "gen_ai.choice"
    return made


@functools.cache
def bytes_of(signal: Signal) -> tuple[bytes, dict[bytes, range]]:
    """The request, and where each item lies in it, its tag and length included."""
    made = request(signal)
    data = made.SerializeToString()
    items = [item.SerializeToString() for _, _, item in items_of(signal, made)]
    return data, {item: range(data.index(item) - 3, data.index(item) + len(item)) for item in items}


def found(signal: Signal, salvaged: Salvaged) -> list[bytes]:
    """The items of what was read."""
    return [item.SerializeToString() for _, _, item in items_of(signal, salvaged.request)]


def flipped(data: bytes, place: int) -> bytes:
    """With one bit changed."""
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


@pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["spans", "logs"])
@given(data=st.data())
def test_one_bit_costs_no_item_that_it_does_not_touch(signal: Signal, data: st.DataObject) -> None:
    """Anywhere in the request: in a text, a length, a tag, a resource; what is lost is told."""
    body, places = bytes_of(signal)
    place = data.draw(st.integers(0, 8 * len(body) - 1))
    check(signal, body, places, place)


def check(signal: Signal, body: bytes, places: dict[bytes, range], place: int) -> None:
    """Of one bit."""
    salvaged = salvage(signal, flipped(body, place))
    read = found(signal, salvaged)
    touched = [item for item, where in places.items() if place // 8 in where]
    assert len(touched) <= 1
    missing = [item for item in places if item not in read and item not in touched]
    assert not missing
    if len(read) < len(places):
        assert salvaged.lost or len(read) == len(places) - 1
    assert len(read) <= len(places)


@pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["spans", "logs"])
def test_what_decodes_is_what_protobuf_reads(signal: Signal) -> None:
    """Nothing lost, nothing changed; an empty record is an empty request."""
    body, _ = bytes_of(signal)
    assert salvage(signal, body) == Salvaged(request(signal))
    assert salvage(signal, None) == Salvaged(signal.request())


def test_one_invalid_character_costs_one_span() -> None:
    """Protobuf refuses the whole request; the others keep their resource and scope, in order."""
    body, places = bytes_of(TRACES)
    bad = body.replace(b"\xc3\xa9", b"\xc3\x28", 1)
    with pytest.raises(Exception, match="parsing"):
        ExportTraceServiceRequest.FromString(bad)
    salvaged = salvage(TRACES, bad)
    assert found(TRACES, salvaged) == list(places)[1:]
    assert [(part.num_bytes) for part in salvaged.lost] == [len(next(iter(places)))]
    got = [(service_of(r), s.scope.name, i.span_id[0]) for r, s, i in items_of(TRACES, salvaged.request)]
    want = [(service_of(r), s.scope.name, i.span_id[0]) for r, s, i in items_of(TRACES, request(TRACES))]
    assert got == want[1:]


def test_a_damaged_resource_keeps_its_other_attributes() -> None:
    """And its spans."""
    body, places = bytes_of(TRACES)
    salvaged = salvage(TRACES, body.replace(b"service-0", b"service-\xff", 1))
    assert found(TRACES, salvaged) == list(places)
    first = salvaged.request.resource_spans[0].resource.attributes
    assert [pair.key for pair in first] == ["host"]
    assert len(salvaged.lost) == 1


@given(st.binary(max_size=300))
def test_random_bytes_are_a_request_or_none(body: bytes) -> None:
    """Never another error."""
    for signal in (TRACES, LOGS):
        try:
            salvage(signal, body)
        except UndecodableError as error:
            assert error.reason == "undecodable"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=6))
def test_any_damage_is_survived(cuts: list[tuple[int, bytes]]) -> None:
    """Bytes replaced, inserted and removed: no item comes twice."""
    body, places = bytes_of(TRACES)
    for place, piece in cuts:
        at = place % (len(body) + 1)
        body = body[:at] + piece + body[at + place % 3 :]
    try:
        read = found(TRACES, salvage(TRACES, body))
    except UndecodableError:
        return
    assert all(read.count(item) <= 1 for item in places)


def test_work_is_bounded_by_the_size() -> None:
    """Starts within starts, each of which claims all that follows: given up, not tried one by one."""
    start = b"\x12\xff\xff\x0f\x0a\x10" + b"\xab" * 16 + b"\x12\x08"
    with pytest.raises(UndecodableError):
        salvage(TRACES, start * 20_000 + bytes(400_000))


def test_a_request_within_a_text_is_not_taken_for_spans() -> None:
    """A span that quotes OTLP bytes, in a request that is damaged elsewhere."""
    made = request(TRACES)
    quoting = made.resource_spans[0].scope_spans[0].spans[1]
    quoting.attributes.add(key="quoted").value.bytes_value = bytes_of(TRACES)[0]
    head, _, tail = made.SerializeToString().rpartition(b"scope-1")
    body = head + b"scope-\xff" + tail
    read = found(TRACES, salvage(TRACES, body))
    assert read == [item.SerializeToString() for _, _, item in items_of(TRACES, made)]


def test_fields_that_nobody_knows_take_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list of them took fifty times their bytes, which no budget told of; what they hide is found as before."""
    listed = 2**15
    monkeypatch.setattr(salvage_module, "_LISTED_BYTES", listed)
    tracemalloc.start()
    try:
        assert not salvage(TRACES, b"\x3a\x00" * (listed // 2 + 1)).request.resource_spans
        assert tracemalloc.get_traced_memory()[1] < 20 * listed
    finally:
        tracemalloc.stop()
    whole, _ = bytes_of(TRACES)
    hidden = b"\x3a" + whole[1:]
    many = NUM_RESOURCES * NUM_SCOPES * NUM_SPANS
    for data in (hidden, hidden + whole * (listed // len(whole) + 1)):
        assert len(found(TRACES, salvage(TRACES, data))) == many * len(data) // len(whole)


UNKNOWN = b"\x3a\x00" * 20_000
NONE = b"\x12\xff\x01\x0a\x10" + b"a" * 16 + b"\x12\x08" + b"\xff" * 3
BEGINNINGS = b"\x12\xff\xff\xff\x7f" + b"\x0a\x7f" * 5_000 + NONE * 400 + b"\xff" * 300
"""Of resources, in the gap before many items that are none."""


def wrapped(content: bytes, *tags: bytes) -> bytes:
    """As the content of a field, of a field, .."""
    for tag in tags:
        size = len(content)
        content = tag + bytes([size & 127 | 128, size >> 7 & 127 | 128, size >> 14]) + content
    return content


@pytest.mark.parametrize(
    "body",
    [UNKNOWN, UNKNOWN + b"\xff", wrapped(UNKNOWN, b"\x0a"), wrapped(UNKNOWN + b"\xff", b"\x0a", b"\x0a"), BEGINNINGS],
    ids=["unknown", "cut", "in_a_resource", "in_attributes", "beginnings"],
)
def test_no_more_fields_are_looked_at_than_are_allowed(body: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes microseconds, and a body of 20 MiB has ten million: a count, for times differ by machine."""
    num_read = itertools.count()
    monkeypatch.setattr(salvage_module, "_LISTED_BYTES", 0)
    monkeypatch.setattr(salvage_module, "_MAX_STEPS", 1_000)
    monkeypatch.setattr(salvage_module, "_DecodeVarint", lambda *place: (next(num_read), read_varint(*place))[1])
    with contextlib.suppress(UndecodableError):
        salvage(TRACES, body)
    assert 1_000 < next(num_read) < 2 * 3 * 1_000


def test_what_lies_behind_the_last_step_is_one_lost_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """The items before it are read, and nothing is lost in silence."""
    monkeypatch.setattr(salvage_module, "_MAX_STEPS", 15)
    body, places = bytes_of(TRACES)
    salvaged = salvage(TRACES, body + b"\xff")
    read = found(TRACES, salvaged)
    assert 0 < len(read) < len(places)
    assert read == list(places)[: len(read)]
    assert [part.num_bytes for part in salvaged.lost] == [len(body) + 1 - places[read[-1]].stop]
