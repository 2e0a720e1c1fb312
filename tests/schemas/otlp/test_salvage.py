"""What is read of a damaged OTLP request: everything but what the damage touches."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import pytest
from google.protobuf.internal.decoder import _DecodeVarint as read_varint  # type: ignore[import-untyped]
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.errors import UndecodableError
from tracegrad.schemas.otlp import salvage as salvage_module
from tracegrad.schemas.otlp.read import service_of
from tracegrad.schemas.otlp.salvage import SalvagedRequest, salvage
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, items_of

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


def found(signal: Signal, salvaged: SalvagedRequest) -> list[bytes]:
    """The items of what was read."""
    return [item.SerializeToString() for _, _, item in items_of(signal, salvaged.request)]


def flipped(data: bytes, place: int) -> bytes:
    """With one bit changed."""
    changed = bytearray(data)
    changed[place // 8] ^= 1 << place % 8
    return bytes(changed)


def mended(signal: Signal, body: bytes) -> list[bytes]:
    """The items of what was read; none of a body of which nothing can be."""
    try:
        return found(signal, salvage(signal, body))
    except UndecodableError:
        return []


@pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["spans", "logs"])
@given(data=st.data())
def test_a_byte_of_a_text_that_is_no_utf8_costs_its_own_item(signal: Signal, data: st.DataObject) -> None:
    """Whichever text: the item that it is of is left out and told, its neighbours are as they were."""
    body, places = bytes_of(signal)
    item = data.draw(st.sampled_from(list(places)))
    at = body.index("\u00e9".encode(), places[item].start)
    assert at in places[item]
    salvaged = salvage(signal, body[:at] + b"\xff" + body[at + 1 :])
    assert found(signal, salvaged) == [one for one in places if one != item]
    assert [part.num_bytes for part in salvaged.lost] == [len(item)]


@pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["spans", "logs"])
@given(data=st.data())
def test_one_bit_invents_no_item(signal: Signal, data: st.DataObject) -> None:
    """Anywhere in the request: what is read is what was sent, but for the item that it touches."""
    body, places = bytes_of(signal)
    place = data.draw(st.integers(0, 8 * len(body) - 1))
    read = mended(signal, flipped(body, place))
    assert len([item for item in read if item not in places]) <= 1
    assert all(read.count(item) == 1 for item in places if item in read)


@pytest.mark.parametrize("signal", [TRACES, LOGS], ids=["spans", "logs"])
def test_what_decodes_is_what_protobuf_reads(signal: Signal) -> None:
    """Nothing lost, nothing changed; an empty record is an empty request."""
    body, _ = bytes_of(signal)
    assert salvage(signal, body) == SalvagedRequest(request(signal))
    assert salvage(signal, None) == SalvagedRequest(signal.request())


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
    read = mended(TRACES, body)
    assert all(read.count(item) <= 1 for item in places)


def test_lengths_that_do_not_chain_up_are_refused() -> None:
    """Where the next item begins is not known, and looking for one would invent some."""
    body, _ = bytes_of(TRACES)
    with pytest.raises(UndecodableError, match="chain up"):
        salvage(TRACES, body[:-1])


def test_no_more_fields_are_looked_at_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes microseconds, and a body of 20 MiB has ten million: a count, for times differ by machine."""
    num_read = itertools.count()
    monkeypatch.setattr(salvage_module, "_MAX_FIELDS", 1_000)
    monkeypatch.setattr(salvage_module, "_DecodeVarint", lambda *place: (next(num_read), read_varint(*place))[1])
    with pytest.raises(UndecodableError, match="1000 fields at most"):
        salvage(TRACES, b"\x3a\x00" * 20_000 + b"\xff")
    assert next(num_read) <= 2 * 1_000


def test_a_request_of_damaged_parts_alone_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would be a dead letter of its own."""
    monkeypatch.setattr(salvage_module, "MAX_LOST", 3)
    body, _ = bytes_of(TRACES)
    with pytest.raises(UndecodableError, match="3 damaged parts at most"):
        salvage(TRACES, body.replace(b"\xc3\xa9", b"\xc3\x28"))
