"""The OTLP gateway: what reaches the log, and what each kind of bad body is answered."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import tracemalloc
from typing import Any

import httpx
import msgspec
import pytest
from google.protobuf.json_format import Parse  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.memory_log import MemoryLog
from tests.producers.keys import TOPICS
from tests.producers.otlp_gateway.bodies import OTHER_TRACE, TRACE, request_of, span_ids
from tests.producers.otlp_gateway.over_http import PROTOBUF, Gateway
from tracegrad.producers.otlp_gateway import receive
from tracegrad.producers.otlp_gateway.config import OtlpConfig
from tracegrad.producers.otlp_gateway.decode import decode_body
from tracegrad.producers.otlp_gateway.receive import weigh_protobuf
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.reasons import row_of
from tracegrad.schemas.topics import Topic

SPANS = TOPICS.name(Topic.OTLP_SPANS)
DEAD = TOPICS.name(Topic.DEAD_LETTERS)


def client_of(log: MemoryLog, **settings: Any) -> httpx.AsyncClient:
    """A client of a gateway with these settings."""
    # The run's own rollouts, which need proof, begin otherwise: test_proof.py.
    told = {"run_hash": RunHash("5e" * 4), "ack_timeout_s": settings.pop("ack_timeout_s", 8.0)}
    return Gateway(log, told=told, **settings).client


async def post(
    log: MemoryLog, body: bytes, *, path: str = "/v1/traces", headers: dict[str, str] | None = None, **settings: Any
) -> httpx.Response:
    """The answer to one export."""
    async with client_of(log, **settings) as client:
        return await client.post(path, content=body, headers={**PROTOBUF, **(headers or {})})


def values(log: MemoryLog, topic: str = SPANS) -> list[bytes]:
    """All values of a topic."""
    return [record.value or b"" for record in log.records(topic)]


async def test_each_trace_is_a_record_keyed_by_its_id(log: MemoryLog) -> None:
    """Two traces in one request: two records, all spans, resources and scopes kept."""
    body = request_of([(TRACE, 1), (OTHER_TRACE, 2), (TRACE, 3)]).SerializeToString()
    answer = await post(log, body)
    assert answer.status_code == 200
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 0
    records = log.records(SPANS)
    assert {record.key for record in records} == {TRACE.hex().encode(), OTHER_TRACE.hex().encode()}
    assert span_ids(values(log)) == sorted([(TRACE.hex(), 1), (TRACE.hex(), 3), (OTHER_TRACE.hex(), 2)])
    for value in values(log):
        resource = ExportTraceServiceRequest.FromString(value).resource_spans[0]
        assert resource.resource.attributes[0].value.string_value == "agent"
        assert resource.scope_spans[0].scope.name == "tests"


async def test_json_has_hex_ids_and_unknown_fields(log: MemoryLog) -> None:
    """OTLP JSON: ids in hex, enums as numbers, fields of later releases ignored."""
    span = {
        "traceId": TRACE.hex().upper(),
        "spanId": "00000000000000ff",
        "parentSpanId": "",
        "name": "tool",
        "kind": 3,
        "startTimeUnixNano": "1700000000000000000",
        "links": [{"traceId": OTHER_TRACE.hex(), "spanId": "0000000000000001"}],
        "fieldOfTomorrow": {"a": 1},
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}], "more": 1}).encode()
    answer = await post(log, body, headers={"content-type": "application/json; charset=utf-8"})
    assert (answer.status_code, answer.json()) == (200, {})
    found = ExportTraceServiceRequest.FromString(values(log)[0]).resource_spans[0].scope_spans[0].spans[0]
    assert (found.trace_id, found.span_id, found.kind) == (TRACE, (255).to_bytes(8, "big"), 3)
    assert found.links[0].trace_id == OTHER_TRACE


async def test_half_a_surrogate_pair_in_json_costs_no_batch(log: MemoryLog) -> None:
    """JavaScript cuts text between the halves of a pair and escapes what is left."""
    span = {"traceId": TRACE.hex(), "spanId": "00000000000000ff", "name": "cut \ud83d"}
    span["attributes"] = [{"key": "k\udcff", "value": {"stringValue": "\U0001f642"}}]  # type: ignore[assignment]
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    assert (await post(log, body, headers={"content-type": "application/json"})).status_code == 200
    found = ExportTraceServiceRequest.FromString(values(log)[0]).resource_spans[0].scope_spans[0].spans[0]
    assert found.name == "cut ?"
    assert (found.attributes[0].key, found.attributes[0].value.string_value) == ("k?", "\U0001f642")


async def test_gzip_members_are_decompressed(log: MemoryLog) -> None:
    """A body of two gzip members is one body."""
    body = request_of([(TRACE, 1)]).SerializeToString()
    packed = gzip.compress(body[:10]) + gzip.compress(body[10:])
    assert (await post(log, packed, headers={"content-encoding": "gzip"})).status_code == 200
    assert span_ids(values(log)) == [(TRACE.hex(), 1)]


async def test_gzip_members_are_bounded(log: MemoryLog) -> None:
    """8 MiB of empty members would take most of a CPU's minute; they are refused at once."""
    packed = gzip.compress(b"") * 400_000
    began = time.process_time()
    answer = await post(log, packed, headers={"content-encoding": "gzip"})
    assert (answer.status_code, time.process_time() - began < 1) == (400, True)


async def test_what_is_decompressed_is_accounted_for_as_it_comes(log: MemoryLog) -> None:
    """A small body that grows beyond what may be in flight is refused before it has."""
    packed = gzip.compress(bytes(16_000_000))
    tracemalloc.start()
    answer = await post(log, packed, headers={"content-encoding": "gzip"}, max_inflight_bytes=2_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (answer.status_code, peak < 8_000_000) == (503, True), peak


async def test_what_would_be_written_is_accounted_for_before_it_is(log: MemoryLog) -> None:
    """A long resource is repeated in the record of each of its traces: 16 KB, unpacked and split, were 500 MB."""
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.add(key="long").value.string_value = "x" * 200_000
    spans = resource_spans.scope_spans.add().spans
    for number in range(1, 500):
        spans.add(trace_id=number.to_bytes(16, "big"), span_id=number.to_bytes(8, "big"))
    packed = gzip.compress(request.SerializeToString())
    tracemalloc.start()
    answer = await post(log, packed, headers={"content-encoding": "gzip"}, max_inflight_bytes=64_000_000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (answer.status_code, peak < 10_000_000, values(log)) == (413, True, []), peak


async def test_one_large_body_is_computed_at_a_time(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop waits for the interpreter behind each thread that has work."""
    body = request_of([(TRACE, index) for index in range(1, 4000)]).SerializeToString()
    assert len(body) > 64 * 1024
    at_once, most = 0, 0

    def decode(*given: Any) -> Any:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        time.sleep(0.02)
        at_once -= 1
        return decode_body(*given)

    monkeypatch.setattr(receive, "decode_body", decode)
    async with client_of(log) as client:
        answers = await asyncio.gather(*(client.post("/v1/traces", content=body, headers=PROTOBUF) for _ in range(4)))
    assert [answer.status_code for answer in answers] == [200] * 4
    assert most == 1


async def test_identity_of_the_path_enters_the_resources(log: MemoryLog) -> None:
    """Under the rollout path, every resource names rollout and attempt."""
    rollout = "ab12cd34" + "0" * 20
    body = request_of([(TRACE, 1)]).SerializeToString()
    answer = await post(log, body, path=f"/rollout/{rollout}/attempt/0a0b/v1/traces")
    assert answer.status_code == 200
    attributes = ExportTraceServiceRequest.FromString(values(log)[0]).resource_spans[0].resource.attributes
    found = {attribute.key: attribute.value.string_value for attribute in attributes}
    assert found == {"service.name": "agent", "rollout.id": rollout, "attempt.id": "0a0b"}
    assert (await post(log, body, path="/rollout/XYZ/attempt/0a0b/v1/traces")).status_code == 400


async def test_claims_that_differ_from_the_path_are_quarantined(log: MemoryLog) -> None:
    """By resource or by span: dead letters with their reason; equal claims and neighbours are kept."""
    rollout, other = "ab12cd34" + "0" * 20, "ab12cd34" + "1" * 20
    request = ExportTraceServiceRequest()
    for number, claims in enumerate(
        [{}, {"rollout.id": rollout, "attempt.id": "0a0b"}, {"rollout.id": other}, {"attempt.id": "ffff"}]
    ):
        part = request_of([(TRACE, number)])
        for key, claim in claims.items():
            part.resource_spans[0].resource.attributes.add(key=key).value.string_value = claim
        request.MergeFrom(part)
    span = request_of([(TRACE, 4)])
    span.resource_spans[0].scope_spans[0].spans[0].attributes.add(key="rollout.id").value.string_value = other
    span.resource_spans[0].scope_spans[0].spans.extend(request_of([(TRACE, 5)]).resource_spans[0].scope_spans[0].spans)
    request.MergeFrom(span)
    answer = await post(log, request.SerializeToString(), path=f"/rollout/{rollout}/attempt/0a0b/v1/traces")
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 3
    assert span_ids(values(log)) == [(TRACE.hex(), number) for number in (0, 1, 5)]
    assert {dict(letter.headers)["tracegrad.reason"] for letter in log.records(DEAD)} == {b"identity_conflict"}
    assert len(log.records(DEAD)) == 3
    for exported in values(log):
        for kept in ExportTraceServiceRequest.FromString(exported).resource_spans:
            found = [a.value.string_value for a in kept.resource.attributes if a.key == "rollout.id"]
            assert found == [rollout]


@pytest.mark.parametrize(
    ("body", "headers", "settings", "status"),
    [
        pytest.param(b"\xff\xff\xff", {}, {}, 400, id="not protobuf"),
        pytest.param(b'{"resourceSpans": []}', {}, {}, 400, id="JSON as protobuf"),
        pytest.param(b"[1]", {"content-type": "application/json"}, {}, 400, id="not an object"),
        pytest.param(b'{"resourceSpans": [3]}', {"content-type": "application/json"}, {}, 400, id="not spans"),
        pytest.param(b"[" * 100_000, {"content-type": "application/json"}, {}, 400, id="nested too deep"),
        pytest.param(
            b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"zz"}]}]}]}',
            {"content-type": "application/json"}, {}, 400, id="id not hex",
        ),
        pytest.param(b"x", {"content-type": "text/plain"}, {}, 415, id="content type"),
        pytest.param(b"x", {"content-encoding": "br"}, {}, 415, id="content encoding"),
        pytest.param(b"x" * 101, {}, {"max_body_bytes": 100}, 413, id="too large"),
        pytest.param(gzip.compress(b"x" * 22_000_000), {"content-encoding": "gzip"}, {}, 413, id="gzip bomb"),
        pytest.param(gzip.compress(b"x" * 500)[:-9], {"content-encoding": "gzip"}, {}, 400, id="gzip cut"),
        pytest.param(b"x", {"content-encoding": "gzip"}, {}, 400, id="not gzip"),
        pytest.param(b"x" * 60, {}, {"max_inflight_bytes": 50}, 503, id="too much in flight"),
        pytest.param(b"", {}, {"token": "secret"}, 401, id="no token"),
    ],
)  # fmt: skip
async def test_bad_bodies_get_a_status_and_leave_no_record(
    log: MemoryLog, body: bytes, headers: dict[str, str], settings: dict[str, Any], status: int
) -> None:
    """The answer is a google.rpc.Status that says what was expected; nothing reaches the log."""
    answer = await post(log, body, headers=headers, **settings)
    assert answer.status_code == status
    if headers.get("content-type") == "application/json":
        assert "expected" in answer.json()["message"]
    else:
        assert Status.FromString(answer.content).message
    assert ("retry-after" in answer.headers) == (status == 503)
    assert values(log) == []


async def test_no_answer_before_the_log_has_acknowledged(log: MemoryLog) -> None:
    """200 waits for the acknowledgement; without one in time it is 503, to be sent again."""
    body = request_of([(TRACE, 1)]).SerializeToString()
    log.hold()
    async with client_of(log, ack_timeout_s=5.0) as client:
        asking = asyncio.create_task(client.post("/v1/traces", content=body, headers=PROTOBUF))
        while not log.num_unacknowledged():
            await asyncio.sleep(0)
        assert not asking.done()
        log.release()
        assert (await asking).status_code == 200
    log.hold()
    answer = await post(log, body, ack_timeout_s=0.01)
    assert (answer.status_code, answer.headers["retry-after"] in "1234") == (503, True)


async def test_a_log_that_is_away_is_503_and_frees_its_bytes(log: MemoryLog) -> None:
    """A failed append does not hold its bytes, so the same gateway takes the retry."""
    body = request_of([(TRACE, 1)]).SerializeToString()
    log.fail_next(UnavailableError("away"))
    async with client_of(log, max_inflight_bytes=4 * len(body) + weigh_protobuf(body)) as client:
        assert (await client.post("/v1/traces", content=body, headers=PROTOBUF)).status_code == 503
        assert (await client.post("/v1/traces", content=body, headers=PROTOBUF)).status_code == 200


async def test_a_span_that_fits_nowhere_is_a_dead_letter_by_reference(log: MemoryLog) -> None:
    """Its neighbours are kept, the client hears of it, and the dead letter holds no payload."""
    request = request_of([(TRACE, 1)])
    request.MergeFrom(request_of([(TRACE, 2)], payload="p" * 70_000))
    topics = msgspec.structs.replace(TOPICS, max_message_bytes={"otlp_spans": 128 * 1024})
    answer = await post(log, request.SerializeToString(), topics=topics)
    assert answer.status_code == 200
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 1
    assert span_ids(values(log)) == [(TRACE.hex(), 1)]
    [letter] = log.records(DEAD)
    assert json.loads(letter.value or b"")["span_id"] == "0000000000000002"
    assert dict(letter.headers)["tracegrad.reason"] == b"item_too_large"
    assert len(letter.value or b"") < 500


async def test_spans_without_valid_ids_are_rejected(log: MemoryLog) -> None:
    """An all-zero trace id names no trace."""
    request = request_of([(bytes(16), 1), (TRACE, 2), (b"short", 3)])
    answer = await post(log, request.SerializeToString())
    assert ExportTraceServiceResponse.FromString(answer.content).partial_success.rejected_spans == 2
    assert span_ids(values(log)) == [(TRACE.hex(), 2)]


@pytest.mark.parametrize("form", ["protobuf", "json"])
async def test_a_damaged_span_costs_its_request_nothing_else(log: MemoryLog, form: str) -> None:
    """One invalid byte in a text, for which protobuf refuses the whole request, or a name that is a number: a dead
    letter by reference, of which the exporter is told the reason, what it means and what to do."""
    body = request_of([(TRACE, 1), (TRACE, 2)], payload="\u00e9").SerializeToString()
    body = body.replace(b"\xc3\xa9", b"\xc3\x28", 1)
    if form == "json":
        spans = [
            {"traceId": TRACE.hex(), "spanId": f"{number:016x}", "name": name} for number, name in ((1, 7), (2, ""))
        ]
        body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
    answer = await post(log, body, headers={"content-type": f"application/{form}".replace("/p", "/x-p")})
    told = Parse(answer.text, ExportTraceServiceResponse()) if form == "json" else None
    told = (told or ExportTraceServiceResponse.FromString(answer.content)).partial_success
    words = f"damaged: {row_of('damaged').sentence} {row_of('damaged').remedy}"
    assert (answer.status_code, told.rejected_spans, words in told.error_message) == (200, 1, True)
    assert span_ids(values(log)) == [(TRACE.hex(), 2)]
    [letter] = log.records(DEAD)
    assert dict(letter.headers)["tracegrad.reason"] == b"damaged"


async def test_a_request_of_bad_spans_alone_is_no_flood_of_dead_letters(log: MemoryLog) -> None:
    """Empty spans take two bytes each, so 100 bytes of gzip would be thousands of records."""
    request = ExportTraceServiceRequest()
    spans = request.resource_spans.add().scope_spans.add().spans
    for _ in range(3_000):
        spans.add()
    packed = gzip.compress(request.SerializeToString())
    answer = await post(log, packed, headers={"content-encoding": "gzip"})
    assert (answer.status_code, len(log.records(DEAD))) == (400, 0)


def test_other_than_loopback_needs_a_token() -> None:
    """The message names the remedy."""
    with pytest.raises(ConfigurationError, match="set a token"):
        OtlpConfig(host="0.0.0.0")
