"""OTLP in JSON: what is no span costs nobody else's, at whatever level it stands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format  # type: ignore[import-untyped]
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.producers.otlp_gateway.bodies import TRACE
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.otlp.read_json import read_json
from tracegrad.schemas.otlp.salvage import MAX_LOST
from tracegrad.schemas.otlp.signal import LOGS, TRACES, items_of


def said(number: int) -> dict[str, Any]:
    """A span as JavaScript's exporter writes it."""
    return {
        "traceId": TRACE.hex(),
        "spanId": f"{number:016x}",
        "name": "work",
        "kind": 1,
        "startTimeUnixNano": "1",
        "attributes": [{"key": "n", "value": {"intValue": "7"}}],
        "links": [{"traceId": TRACE.hex(), "spanId": f"{9:016x}"}],
    }


def body() -> dict[str, Any]:
    """Two resources: of two spans in one scope, of one span."""
    resource = {"attributes": [{"key": key, "value": {"stringValue": "v"}} for key in ("service.name", "host")]}
    scope = {"name": "s"}
    return {
        "resourceSpans": [
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": [said(1), said(2)]}]},
            {"resource": resource, "scopeSpans": [{"scope": scope, "spans": [said(3)]}]},
        ]
    }


def spans_in(made: dict[str, Any]) -> list[Any]:
    """Of the first scope."""
    spans: list[Any] = made["resourceSpans"][0]["scopeSpans"][0]["spans"]
    return spans


Damage = Callable[[dict[str, Any]], object]
DAMAGES: dict[str, tuple[Damage, list[int]]] = {
    "none": (lambda made: None, [1, 2, 3]),
    "name": (lambda made: spans_in(made)[0].update(name=7), [2, 3]),
    "id": (lambda made: spans_in(made)[0].update(spanId="zz"), [2, 3]),
    "link": (lambda made: spans_in(made)[0]["links"][0].update(spanId="zz"), [2, 3]),
    "attribute": (lambda made: spans_in(made)[0]["attributes"][0].update(value=7), [2, 3]),
    "time": (lambda made: spans_in(made)[0].update(startTimeUnixNano=-1), [2, 3]),
    "span": (lambda made: spans_in(made).insert(1, 7), [1, 2, 3]),
    "spans": (lambda made: made["resourceSpans"][0]["scopeSpans"][0].update(spans=7), [3]),
    "scopes": (lambda made: made["resourceSpans"][0].update(scopeSpans={}), [3]),
    "scope": (lambda made: made["resourceSpans"][0]["scopeSpans"][0].update(scope=7), [1, 2, 3]),
    "resource": (lambda made: made["resourceSpans"][0].update(resource=7), [1, 2, 3]),
    "resources": (lambda made: made["resourceSpans"].append("x"), [1, 2, 3]),
}


@pytest.mark.parametrize(("damage", "kept"), DAMAGES.values(), ids=DAMAGES)
def test_only_what_is_damaged_is_lost(damage: Damage, kept: list[int]) -> None:
    """And that is told, once, whatever it is; ids are read as hex in all the others."""
    made = body()
    damage(made)
    request, lost = read_json(TRACES, json.dumps(made).encode())
    assert [int.from_bytes(span.span_id, "big") for _, _, span in items_of(TRACES, request)] == kept
    assert {(span.trace_id, span.links[0].trace_id) for _, _, span in items_of(TRACES, request)} == {(TRACE, TRACE)}
    assert len(lost) == (damage is not DAMAGES["none"][0])


def test_a_damaged_resource_keeps_its_other_attributes() -> None:
    """As in protobuf."""
    made = body()
    made["resourceSpans"][0]["resource"]["attributes"][0]["value"] = 7
    first = read_json(TRACES, json.dumps(made).encode()).request.resource_spans[0]
    assert [pair.key for pair in first.resource.attributes] == ["host"]


def test_the_names_of_protobuf_s_fields_are_taken_too_and_unknown_ones_ignored() -> None:
    """As protobuf's JSON mapping has it; of log records likewise."""
    record = {"trace_id": TRACE.hex(), "span_id": f"{1:016x}", "event_name": "e", "later": 1}
    made = {"resource_logs": [{"later": 1, "scope_logs": [{"later": 1, "log_records": [record, 7]}]}], "later": 1}
    request, lost = read_json(LOGS, json.dumps(made).encode())
    assert [(one.trace_id, one.event_name) for _, _, one in items_of(LOGS, request)] == [(TRACE, "e")]
    assert len(lost) == 1


def test_a_body_of_nothing_else_is_refused() -> None:
    """With the first reason; and one of more damage than an exporter's."""
    made = body()
    del made["resourceSpans"][1], spans_in(made)[1]
    spans_in(made)[0]["name"] = 7
    with pytest.raises(RecordError, match="name"):
        read_json(TRACES, json.dumps(made).encode())
    spans_in(made)[:] = [said(1), *[7] * (MAX_LOST + 1)]
    with pytest.raises(RecordError, match="more than 1000"):
        read_json(TRACES, json.dumps(made).encode())


@pytest.mark.parametrize(
    "value",
    [
        {"stringValue": "caf\u00e9"},
        {"stringValue": ""},
        {"stringValue": 7},
        {"stringValue": None},
        {"intValue": "-42"},
        {"intValue": 42},
        {"intValue": "9223372036854775807"},
        {"intValue": "9223372036854775808"},
        {"intValue": "0x10"},
        {"intValue": " 1"},
        {"intValue": "\u0663"},
        {"boolValue": False},
        {"boolValue": 1},
        {"doubleValue": 0.5},
        {"doubleValue": "NaN"},
        {"arrayValue": {"values": [{"stringValue": "a"}]}},
        {"kvlistValue": {"values": [{"key": "k", "value": {"intValue": "1"}}]}},
        {"bytesValue": "YQ=="},
        {"string_value": "a"},
        {"stringValue": "a", "intValue": "1"},
        {"unknown": 1},
        {},
        None,
        7,
    ],
    ids=repr,
)
@pytest.mark.parametrize("neighbours", [0, 2])
def test_an_attribute_is_what_protobuf_makes_of_it(value: Any, neighbours: int) -> None:
    """Plain ones too, which are not given to it: the same value, or the item is lost where it refuses."""
    attributes = [*({"key": f"n{number}", "value": {"stringValue": "v"}} for number in range(neighbours))]
    attributes.append({"key": "k", "value": value})
    item = {"traceId": "", "name": "work", "attributes": attributes}
    try:
        wanted = [json_format.ParseDict(item, Span(), ignore_unknown_fields=True)]
    except (ValueError, TypeError, AttributeError, json_format.Error):
        wanted = []
    made = {"resourceSpans": [{"scopeSpans": [{"spans": [item, {"name": "other"}]}]}]}
    found = [span for *_, span in items_of(TRACES, read_json(TRACES, json.dumps(made).encode()).request)]
    assert found == [*wanted, Span(name="other")]
