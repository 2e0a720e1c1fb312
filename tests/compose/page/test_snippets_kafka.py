"""The script that the page's Data view gives for a topic, run as it is given, reads a record from a real broker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.consumers.page.boards import new_board
from tests.memory_log import MemoryLog
from tests.schemas.released import GOLDEN
from tests.serving import until
from tests.streams.make import otlp
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.data import snippet
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
RECORDS = {
    Topic.TRAINING_STEPS: ((GOLDEN / "training_step-1.json").read_bytes(), "'batch_hash': "),
    Topic.LLM_CALLS: ((GOLDEN / "call-1.msgpack").read_bytes(), "'call_id': "),
    Topic.TRANSITIONS: ((GOLDEN / "transitions-1.arrow").read_bytes(), "rows ["),
    Topic.OTLP_SPANS: (otlp(Span(name="a-span")), "a-span"),
    Topic.DEAD_LETTERS: (b"odd bytes", "9 bytes [('why', b'odd')]"),
}
"""One topic of each form: what lies on it, and what the script prints of that."""


@pytest.mark.parametrize("topic", RECORDS)
def test_the_script_of_a_topic_prints_its_record(
    topic: Topic, tmp_path: Path, broker: str, kafka_log: KafkaLog, fresh_topics: Topics
) -> None:
    """With nothing but what its imports name; one Ctrl-C ends it."""
    value, expected = RECORDS[topic]
    writer = kafka_log.writer()
    writer.append(fresh_topics.name(topic), key=b"k", value=value, headers=(("why", b"odd"),)).result(30)
    writer.close()
    empty = new_board(tmp_path, MemoryLog())
    about = msgspec.structs.replace(empty.about, bootstrap_servers=broker)
    script, out = tmp_path / "script.py", tmp_path / "out"
    script.write_text(snippet(Board(about, fresh_topics, empty.state), topic))
    with out.open("wb") as file:
        # -I: neither the folder nor PYTHONPATH, by which ours could be found.
        process = subprocess.Popen(
            guarded([sys.executable, "-I", "-u", str(script)]), cwd=tmp_path, env=os.environ, stdout=file, stderr=file
        )
    try:
        until(lambda: expected in out.read_text() or process.poll() is not None, 60, what=f"the record\n{out}")
        assert expected in out.read_text() and process.poll() is None, out.read_text()
        process.send_signal(signal.SIGINT)
        process.wait(30)
    finally:
        process.kill()
        process.wait(10)
