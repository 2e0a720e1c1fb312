"""Numbered spans and log records by each door, gateway and broker killed on the way: what was acknowledged is there.

3,000 each by default; TRACEGRAD_TEST_SPANS=50000 for the whole.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import httpx
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from tests.producers.otlp_gateway.bodies import request_of
from tests.serving import free_port, is_healthy, until
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, items_of, parsed
from tracegrad.schemas.topics import Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]
NUM = int(os.environ.get("TRACEGRAD_TEST_SPANS", "3000"))
BATCH, AT_ONCE = 50, 4
PATIENCE_S = 240.0
ROOT = Path(__file__).parents[2]
GATEWAY = """
import sys, threading
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.producers.otlp_gateway.app import run
from tracegrad.producers.otlp_gateway.config import OtlpConfig, OtlpHandles
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
servers, name, http, rpc = sys.argv[1:]
handles = OtlpHandles(port=int(http), grpc_port=int(rpc), run_hash=RunHash("5e" * 4), key=bytes(32), ack_timeout_s=8.0)
topics, stop = Topics(run=RunName(name), prefix=f"{name}."), threading.Event()
run(OtlpConfig(), handles, topics=topics, log=KafkaLog(servers), stop=stop, metrics=Metrics())
"""


class Bench:
    """A broker and a gateway of its own, each of which can be killed; both keep their ports."""

    def __init__(self, kafka: LocalKafka, name: str) -> None:
        self.kafka = kafka
        self.topics = Topics(run=RunName(name), prefix=f"{name}.")
        self.log = KafkaLog(kafka.bootstrap_servers)
        create_topics(self.log, self.topics, plan_topics(self.topics, policies=["policy"], kafka=KafkaConfig()))
        self.http, self.rpc = free_port(), free_port()
        self._name = name
        self._gateway: subprocess.Popen[bytes] | None = None

    def start_gateway(self) -> None:
        """Returns when it answers."""
        argv = (self.kafka.bootstrap_servers, self._name, str(self.http), str(self.rpc))
        self._gateway = subprocess.Popen([sys.executable, "-c", GATEWAY, *argv], cwd=ROOT)
        until(lambda: is_healthy(f"http://127.0.0.1:{self.http}"), what="the gateway")

    def kill_gateway(self) -> None:
        """SIGKILL."""
        assert self._gateway is not None
        self._gateway.kill()
        self._gateway.wait(10)

    def numbers(self, signal_: Signal) -> list[int]:
        """Of all that is on the topic."""
        records = read_to_end(self.log, self.topics.name(signal_.topic))
        requests = (parsed(signal_, record.value or b"") for record in records)
        return [
            int.from_bytes(item.span_id, "big") for request in requests for _, _, item in items_of(signal_, request)
        ]


@pytest.fixture(scope="module")
def own_kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    """One that may be killed."""
    with LocalKafka(tmp_path_factory.mktemp("kafka")) as kafka:
        yield kafka


def trace_of(number: int) -> bytes:
    """Twenty spans a trace."""
    return (1 + number // 20).to_bytes(16, "big")


def spans(numbers: range) -> bytes:
    """A request of them."""
    body: bytes = request_of([(trace_of(number), number) for number in numbers]).SerializeToString()
    return body


def logs(numbers: range) -> bytes:
    """Likewise of log records."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number in numbers:
        records.add(trace_id=trace_of(number), span_id=number.to_bytes(8, "big"), time_unix_nano=number)
    body: bytes = request.SerializeToString()
    return body


Send = Callable[[range], bool]
"""Whether they were acknowledged."""


@contextlib.contextmanager
def by_http(bench: Bench, path: str = "/v1/traces", body: Callable[[range], bytes] = spans) -> Iterator[Send]:
    """POST, as an SDK does."""
    headers = {"content-type": "application/x-protobuf"}
    with httpx.Client(base_url=f"http://127.0.0.1:{bench.http}", headers=headers, timeout=15) as client:

        def send(numbers: range) -> bool:
            try:
                return client.post(path, content=body(numbers)).status_code == 200
            except httpx.HTTPError:
                return False

        yield send


@contextlib.contextmanager
def by_grpc(bench: Bench) -> Iterator[Send]:
    """Export of the trace service."""
    options = [("grpc.max_reconnect_backoff_ms", 500)]
    with grpc.insecure_channel(f"127.0.0.1:{bench.rpc}", options=options) as channel:
        export = channel.unary_unary("/opentelemetry.proto.collector.trace.v1.TraceService/Export")

        def send(numbers: range) -> bool:
            try:
                export(spans(numbers), timeout=15)
            except grpc.RpcError:
                return False
            return True

        yield send


WAYS = {
    "http": (TRACES, by_http),
    "grpc": (TRACES, by_grpc),
    "logs": (LOGS, lambda bench: by_http(bench, "/v1/logs", logs)),
}


@pytest.mark.parametrize("way", WAYS)
def test_what_was_acknowledged_is_there(own_kafka: LocalKafka, way: str) -> None:
    """The gateway is killed after a third, the broker after two; clients send again what was not acknowledged."""
    signal_, connect = WAYS[way]
    bench, done, lock = Bench(own_kafka, f"kills-{way}"), set[int](), threading.Lock()
    bench.start_gateway()
    deadline = time.monotonic() + PATIENCE_S

    def deliver(send: Send, numbers: range) -> None:
        while not send(numbers):
            assert time.monotonic() < deadline, "not acknowledged in time"
            time.sleep(0.05)
        with lock:
            done.update(numbers)

    batches = [range(start, min(start + BATCH, NUM + 1)) for start in range(1, NUM + 1, BATCH)]
    with connect(bench) as send, ThreadPoolExecutor(AT_ONCE) as pool:
        sending = [pool.submit(deliver, send, numbers) for numbers in batches]
        until(lambda: len(done) >= NUM // 3, PATIENCE_S, what="a third")
        bench.kill_gateway()
        bench.start_gateway()
        until(lambda: len(done) >= 2 * NUM // 3, PATIENCE_S, what="two thirds")
        own_kafka.kill()
        own_kafka.start()
        for one in sending:
            one.result(PATIENCE_S)
    bench.kill_gateway()
    found = bench.numbers(signal_)
    print(f"{way}: {len(done)} acknowledged, {len(set(found))} found, {len(found) - len(set(found))} twice")
    assert done == set(range(1, NUM + 1))
    assert set(found) == done
