"""OTLP over gRPC, and log records over both doors: the real SDKs' exporters, and what each bad request is answered."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import AsyncIterator
from typing import Any

import grpc
import httpx
import pytest
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.grpc._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter as HttpLogExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest, ExportLogsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor

from tests.memory_log import MemoryLog
from tests.producers.keys import KEY, TOPICS, by_host
from tests.producers.otlp_gateway.bodies import OTHER_TRACE, TRACE, request_of, span_ids
from tests.producers.otlp_gateway.over_http import Gateway
from tests.serving import serve
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.producers.otlp_gateway.grpc_door import GrpcDoor
from tracegrad.producers.otlp_gateway.receive import Receiver
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.metrics import LOG_RECORDS, REQUESTS_REFUSED, REQUESTS_UNPROVED, SPANS, Metrics
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow
RUN_HASH = RunHash("5e" * 4)
TRACES = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
LOGS = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"
PLAIN = request_of([(TRACE, 1)]).SerializeToString()
OF_RUNNER = request_of([(bytes.fromhex(RUN_HASH + "0" * 20 + "0a0b"), 1)]).SerializeToString()
Code = grpc.StatusCode


class Door:
    """The gRPC server on the in-memory log, in the test's own event loop."""

    def __init__(
        self, *, run_hash: RunHash = RUN_HASH, feedback_names: Any = None, ack_timeout_s: float = 8.0, **settings: Any
    ) -> None:
        self.log, self.metrics = MemoryLog(), Metrics()
        self.log.create_topics(TOPICS, policies=["policy"])
        handles = OtlpHandles(
            port=0, run_hash=run_hash, key=KEY, ack_timeout_s=ack_timeout_s, feedback_names=feedback_names
        )
        self._receiver = Receiver(
            OtlpConfig(**settings), handles, topics=TOPICS, writer=self.log.writer(), metrics=self.metrics
        )
        self.address = ""

    @contextlib.asynccontextmanager
    async def open(self, *, patience_s: float = 1.0) -> AsyncIterator[grpc.aio.Channel]:
        """Serves; yields a client."""
        async with GrpcDoor(self._receiver, patience_s=patience_s).serving(0) as port:
            self.address = f"127.0.0.1:{port}"
            async with grpc.aio.insecure_channel(self.address) as channel:
                yield channel

    def values(self, topic: Topic = Topic.OTLP_SPANS) -> list[bytes]:
        """All values of a topic."""
        return [record.value or b"" for record in self.log.records(TOPICS.name(topic))]


async def call(
    channel: grpc.aio.Channel,
    body: bytes,
    headers: dict[str, str] | None = None,
    *,
    method: str = TRACES,
    **options: Any,
) -> tuple[Any, bytes | str, float | None]:
    """(code, the answer or what was said, seconds after which to send again)."""
    try:
        export = channel.unary_unary(method)
        return Code.OK, await export(body, metadata=tuple((headers or {}).items()), timeout=20, **options), None
    except grpc.aio.AioRpcError as error:
        told = dict(error.trailing_metadata() or ()).get("grpc-status-details-bin")
        retry = RetryInfo()
        if told:
            Status.FromString(told).details[0].Unpack(retry)
        return error.code(), error.details() or "", retry.retry_delay.ToSeconds() if told else None


async def test_spans_are_recorded_as_over_http() -> None:
    """By trace, plain and as gzip; answered like there."""
    door = Door()
    body = request_of([(TRACE, 1), (OTHER_TRACE, 2), (TRACE, 3)]).SerializeToString()
    async with door.open() as channel:
        for packing in (grpc.Compression.NoCompression, grpc.Compression.Gzip):
            code, answer, _ = await call(channel, body, compression=packing)
            assert (code, answer) == (Code.OK, b"")
    assert span_ids(door.values()) == sorted([(TRACE.hex(), 1), (TRACE.hex(), 3), (OTHER_TRACE.hex(), 2)] * 2)
    assert {record.key for record in door.log.records(TOPICS.name(Topic.OTLP_SPANS))} == {
        TRACE.hex().encode(),
        OTHER_TRACE.hex().encode(),
    }
    assert door.metrics.value(SPANS) == 6


async def test_the_sdks_exporters_are_understood() -> None:
    """Spans and log records of Python's SDK, a log record under its span's trace."""
    door = Door(token="s3cret")
    async with door.open():
        headers = {"authorization": "Bearer s3cret"}
        resource = Resource({"service.name": "shop"})
        tracing, logging = TracerProvider(resource=resource), LoggerProvider(resource=resource)
        of_spans = OTLPSpanExporter(door.address, insecure=True, headers=headers)
        of_logs = OTLPLogExporter(door.address, insecure=True, headers=headers)
        tracing.add_span_processor(SimpleSpanProcessor(of_spans))
        logging.add_log_record_processor(SimpleLogRecordProcessor(of_logs))

        def speak() -> int:
            with tracing.get_tracer("t").start_as_current_span("work") as span:
                logging.get_logger("t").emit(body="hello", event_name="gen_ai.choice")
            tracing.shutdown()
            logging.shutdown()
            return span.get_span_context().trace_id

        trace = await asyncio.to_thread(speak)
    [spans], [logs] = door.values(), door.values(Topic.OTLP_LOGS)
    assert span_ids([spans])[0][0] == f"{trace:032x}"
    [of_resource] = ExportLogsServiceRequest.FromString(logs).resource_logs
    [record] = of_resource.scope_logs[0].log_records
    assert (record.trace_id.hex(), record.event_name) == (f"{trace:032x}", "gen_ai.choice")
    assert door.log.records(TOPICS.name(Topic.OTLP_LOGS))[0].key == f"{trace:032x}".encode()
    assert door.metrics.value(LOG_RECORDS) == 1


def logs_of(*ids: tuple[bytes, bytes]) -> bytes:
    """Log records with these trace and span ids."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for trace_id, span_id in ids:
        records.add(time_unix_nano=5, trace_id=trace_id, span_id=span_id, event_name="e")
    body: bytes = request.SerializeToString()
    return body


async def test_a_log_record_needs_no_trace() -> None:
    """Without ids, or with zeros, it lies under no key; with ids cut short it is a dead letter."""
    door = Door()
    async with door.open() as channel:
        body = logs_of((b"", b""), (bytes(16), bytes(8)), (TRACE, bytes(7) + b"\1"), (TRACE[:5], b""))
        code, answer, _ = await call(channel, body, method=LOGS)
    assert code is Code.OK
    assert ExportLogsServiceResponse.FromString(answer).partial_success.rejected_log_records == 1
    records = door.log.records(TOPICS.name(Topic.OTLP_LOGS))
    num = {record.key: len(_records_of(record.value or b"")) for record in records}
    assert num == {None: 2, TRACE.hex().encode(): 1}
    assert len(door.values(Topic.DEAD_LETTERS)) == 1


def _records_of(value: bytes) -> list[Any]:
    [of_resource] = ExportLogsServiceRequest.FromString(value).resource_logs
    return [record for scope in of_resource.scope_logs for record in scope.log_records]


async def test_log_records_over_http() -> None:
    """/v1/logs of a real exporter and as JSON, beside /v1/traces; a rollout's path names them too."""
    gateway = Gateway(told={"grpc_port": 0, "run_hash": RUN_HASH})
    rollout = "77" * 14
    async with serve(gateway.app) as url, httpx.AsyncClient() as client:

        def speak() -> None:
            logging = LoggerProvider()
            logging.add_log_record_processor(SimpleLogRecordProcessor(HttpLogExporter(url + "/v1/logs")))
            logging.get_logger("t").emit(body="hello")
            logging.shutdown()

        await asyncio.to_thread(speak)
        record = {"traceId": TRACE.hex(), "spanId": "00000000000000ff", "body": {"stringValue": "hi"}}
        body = {"resourceLogs": [{"scopeLogs": [{"logRecords": [record]}]}]}
        answer = await client.post(url + f"/rollout/{rollout}/attempt/0a0b/v1/logs", json=body)
        assert (answer.status_code, answer.json()) == (200, {})
    by_key = {record.key: record.value or b"" for record in gateway.log.records(TOPICS.name(Topic.OTLP_LOGS))}
    of_sdk, by_path = by_key[None], by_key[TRACE.hex().encode()]
    assert _records_of(of_sdk)[0].body.string_value == "hello"
    assert _records_of(by_path)[0].trace_id == TRACE
    attributes = ExportLogsServiceRequest.FromString(by_path).resource_logs[0].resource.attributes
    assert {pair.key: pair.value.string_value for pair in attributes} == {"rollout.id": rollout, "attempt.id": "0a0b"}


@pytest.mark.parametrize(
    ("body", "headers", "settings", "code"),
    [
        pytest.param(b"\xff\xff\xff", {}, {}, Code.INVALID_ARGUMENT, id="not protobuf"),
        pytest.param(PLAIN, {}, {"token": "secret"}, Code.UNAUTHENTICATED, id="no token"),
        pytest.param(
            PLAIN, {"authorization": "Bearer no"}, {"token": "secret"}, Code.UNAUTHENTICATED, id="wrong token"
        ),
        pytest.param(OF_RUNNER, {}, {}, Code.PERMISSION_DENIED, id="a runner's rollout"),
        pytest.param(PLAIN * 10, {}, {"max_body_bytes": 100}, Code.RESOURCE_EXHAUSTED, id="too large"),
        pytest.param(PLAIN * 4, {}, {"max_inflight_bytes": 60}, Code.RESOURCE_EXHAUSTED, id="too much in flight"),
    ],
)
async def test_bad_requests_get_a_code_and_leave_no_record(
    body: bytes, headers: dict[str, str], settings: dict[str, Any], code: Any
) -> None:
    """What may be sent again, because the gateway is full, says when; the rest does not."""
    door = Door(**settings)
    async with door.open() as channel:
        found, said, retry_s = await call(channel, body, headers)
    assert (found, bool(said)) == (code, True)
    assert (retry_s is not None) == ("max_inflight_bytes" in settings)
    assert door.values() == []
    assert door.metrics.value(REQUESTS_REFUSED) == 1


async def test_a_credential_proves_over_grpc_too() -> None:
    """In the metadata, where exporters put OTEL_EXPORTER_OTLP_HEADERS; a mark of the sender's own is taken out."""
    door = Door(token="asked for")
    async with door.open() as channel:
        assert (await call(channel, OF_RUNNER, by_host()))[0] is Code.OK
        assert (await call(channel, OF_RUNNER, {"authorization": "Bearer asked for"}))[0] is Code.PERMISSION_DENIED
    assert door.metrics.value(REQUESTS_UNPROVED, "no_credential") == 1
    [value] = door.values()
    assert PROVED_BY.encode() in value


async def test_partial_success_tells_what_was_not_taken() -> None:
    """Spans without ids are dead letters, their neighbours are kept."""
    door = Door()
    async with door.open() as channel:
        _, answer, _ = await call(channel, request_of([(bytes(16), 1), (TRACE, 2)]).SerializeToString())
    assert isinstance(answer, bytes)
    assert ExportTraceServiceResponse.FromString(answer).partial_success.rejected_spans == 1
    assert span_ids(door.values()) == [(TRACE.hex(), 2)]


async def test_no_answer_before_the_log_has_acknowledged() -> None:
    """Away, full or late: the client is told when to send again, and the exporter does."""
    door = Door(ack_timeout_s=0.05)
    async with door.open() as channel:
        for error in (UnavailableError("away"), OverloadedError("full")):
            door.log.fail_next(error)
            code, _, retry_s = await call(channel, PLAIN)
            full = isinstance(error, OverloadedError)
            assert code is (Code.RESOURCE_EXHAUSTED if full else Code.UNAVAILABLE)
            assert retry_s in (1, 2, 3, 4)
        door.log.hold()
        code, _, retry_s = await call(channel, PLAIN)
        assert (code, retry_s is None) == (Code.UNAVAILABLE, False)


async def test_a_small_message_that_grows_is_refused() -> None:
    """gzip of zeros: gRPC itself bounds what it unpacks."""
    door = Door(max_body_bytes=100_000)
    async with door.open() as channel:
        assert len(gzip.compress(bytes(5_000_000))) < 100_000
        code, _, _ = await call(channel, bytes(5_000_000), compression=grpc.Compression.Gzip)
        assert code is Code.RESOURCE_EXHAUSTED
        assert (await call(channel, PLAIN))[0] is Code.OK


async def test_messages_that_do_not_come_keep_nobody_out() -> None:
    """There is room for one at a time: the oldest gives way to whoever waits."""
    door = Door(max_body_bytes=1_000_000, max_inflight_bytes=1_000_000)
    async with door.open(patience_s=0.1) as channel:
        silent = [channel.stream_unary(TRACES)() for _ in range(2)]
        await asyncio.gather(*(one.wait_for_connection() for one in silent))
        while not door.values():
            code, _, _ = await call(channel, PLAIN)
            assert code in (Code.OK, Code.RESOURCE_EXHAUSTED)
        codes = await asyncio.gather(*(one.code() for one in silent))
    assert set(codes) <= {Code.DEADLINE_EXCEEDED, Code.RESOURCE_EXHAUSTED}


async def test_an_address_that_is_taken_is_said() -> None:
    """Never shared in silence."""
    door = Door()
    async with door.open():
        with pytest.raises(UnavailableError, match="set \\[otlp\\] grpc_port"):
            async with GrpcDoor(door._receiver).serving(int(door.address.rpartition(":")[2])):
                pass
