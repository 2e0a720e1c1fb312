"""The configurations of docs/collector.md, run by a real Collector: as tee, as source, as reader.

Needs a Collector with otlp and kafka receivers, and otlphttp and kafka exporters: TRACEGRAD_COLLECTOR, or `otelcol` or
`otelcol-contrib` on PATH. No package index has one, so where there is none these tests are not collected (conftest.py).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import pytest

from tests.producers.otlp_gateway.bodies import request_of, span_ids
from tests.producers.runner.rig import Rig
from tests.serving import collector_binary, free_port, until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.topics import Topic, Topics

COLLECTOR = collector_binary()
pytestmark = [pytest.mark.e2e, pytest.mark.kafka]
DOC = Path(__file__).parents[2] / "docs" / "collector.md"
TRACE = bytes.fromhex("77" * 16)
"""Of no runner."""
TEE, SOURCE, READER = re.findall(r"```yaml\n(.*?)```", DOC.read_text(), re.DOTALL)
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


@contextlib.contextmanager
def collector(config: str, folder: Path, **variables: str) -> Iterator[str]:
    """Runs it; the URL of its OTLP receiver over HTTP."""
    file, port = folder / "collector.yaml", free_port()
    # Bodies as they are, so that the test can read them.
    file.write_text(config.replace('"${env:PRESENT_OTLP}"}', '"${env:PRESENT_OTLP}", compression: none}'))
    environ = {"COLLECTOR_GRPC": f"127.0.0.1:{free_port()}", "COLLECTOR_HTTP": f"127.0.0.1:{port}", **variables}
    assert COLLECTOR is not None
    with (folder / "collector.log").open("wb") as log:
        process = subprocess.Popen([COLLECTOR, "--config", str(file)], env=os.environ | environ, stderr=log)
    try:
        until(lambda: b"Everything is ready" in (folder / "collector.log").read_bytes(), what="the Collector")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def export(url: str) -> None:
    """Five spans."""
    answer = httpx.post(url + "/v1/traces", content=BODY, headers={"content-type": "application/x-protobuf"})
    assert answer.status_code == 200


def on_topic(log: KafkaLog, topics: Topics) -> list[tuple[str, int]]:
    """The spans there."""
    return span_ids(record.value or b"" for record in read_to_end(log, topics.name(Topic.OTLP_SPANS)))


def test_as_tee_both_get_every_span(
    kafka_log: KafkaLog, fresh_topics: Topics, backend: Backend, tmp_path: Path
) -> None:
    """The present backend and the gateway."""
    with Rig(kafka_log, fresh_topics) as rig:
        rig.start_otlp()
        with collector(TEE, tmp_path, PRESENT_OTLP=backend.url, TRACEGRAD_OTLP=rig.otlp_url) as url:
            export(url)
            until(lambda: span_ids(backend.bodies) == EXPECTED and on_topic(kafka_log, fresh_topics) == EXPECTED)


def test_as_source_it_writes_the_topic(kafka_log: KafkaLog, fresh_topics: Topics, broker: str, tmp_path: Path) -> None:
    """Without our gateway."""
    names = {"SPANS_TOPIC": fresh_topics.name(Topic.OTLP_SPANS), "LOGS_TOPIC": fresh_topics.name(Topic.OTLP_LOGS)}
    with collector(SOURCE, tmp_path, KAFKA_BROKERS=broker, **names) as url:
        export(url)
        until(lambda: on_topic(kafka_log, fresh_topics) == EXPECTED)


def test_as_reader_it_hands_on_what_the_gateway_wrote(
    kafka_log: KafkaLog, fresh_topics: Topics, broker: str, backend: Backend, tmp_path: Path
) -> None:
    """To the present backend."""
    with Rig(kafka_log, fresh_topics) as rig:
        rig.start_otlp()
        export(rig.otlp_url)
        names = {"SPANS_TOPIC": fresh_topics.name(Topic.OTLP_SPANS)}
        with collector(READER, tmp_path, KAFKA_BROKERS=broker, PRESENT_OTLP=backend.url, **names):
            until(lambda: span_ids(backend.bodies) == EXPECTED)
