"""The configurations of docs/collector.md, run by a real Collector: as tee, as source, as reader."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.collector.running import collector, configurations, export
from tests.producers.otlp_gateway.bodies import request_of, span_ids
from tests.producers.runner.rig import Rig
from tests.serving import until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.timeout(1500)]
TRACE = bytes.fromhex("77" * 16)
"""Of no runner."""
TEE, SOURCE, READER = configurations("collector.md")
for config in (TEE, READER):
    # Bodies as they are, so that the test can read them.
    config["exporters"]["otlphttp/present"]["compression"] = "none"
BODY = request_of([(TRACE, number) for number in range(1, 6)]).SerializeToString()
EXPECTED = [(TRACE.hex(), number) for number in range(1, 6)]


class Backend:
    """The present backend: keeps what it is sent."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        bodies = self.bodies

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                bodies.append(self.rfile.read(int(self.headers["content-length"])))
                self.send_response(200)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def backend() -> Iterator[Backend]:
    """Serves while the test runs."""
    made = Backend()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()


def on_topic(log: KafkaLog, topics: Topics) -> list[tuple[str, int]]:
    """The spans there."""
    return span_ids(record.value or b"" for record in read_to_end(log, topics.name(Topic.OTLP_SPANS)))


def test_as_tee_both_get_every_span(
    kafka_log: KafkaLog, fresh_topics: Topics, backend: Backend, otelcol: Path, tmp_path: Path
) -> None:
    """The present backend and the gateway."""
    with Rig(kafka_log, fresh_topics) as rig:
        rig.start_otlp()
        with collector(otelcol, TEE, tmp_path, PRESENT_OTLP=backend.url, TRACEGRAD_OTLP=rig.otlp_url) as url:
            export(url, BODY)
            until(lambda: span_ids(backend.bodies) == EXPECTED and on_topic(kafka_log, fresh_topics) == EXPECTED)


def test_as_source_it_writes_the_topic(
    kafka_log: KafkaLog, fresh_topics: Topics, broker: str, otelcol: Path, tmp_path: Path
) -> None:
    """Without our gateway."""
    names = {"SPANS_TOPIC": fresh_topics.name(Topic.OTLP_SPANS), "LOGS_TOPIC": fresh_topics.name(Topic.OTLP_LOGS)}
    with collector(otelcol, SOURCE, tmp_path, KAFKA_BROKERS=broker, **names) as url:
        export(url, BODY)
        until(lambda: on_topic(kafka_log, fresh_topics) == EXPECTED)


def test_as_reader_it_hands_on_what_the_gateway_wrote(
    kafka_log: KafkaLog, fresh_topics: Topics, broker: str, backend: Backend, otelcol: Path, tmp_path: Path
) -> None:
    """To the present backend."""
    with Rig(kafka_log, fresh_topics) as rig:
        rig.start_otlp()
        export(rig.otlp_url, BODY)
        names = {"SPANS_TOPIC": fresh_topics.name(Topic.OTLP_SPANS)}
        with collector(otelcol, READER, tmp_path, KAFKA_BROKERS=broker, PRESENT_OTLP=backend.url, **names):
            until(lambda: span_ids(backend.bodies) == EXPECTED)
