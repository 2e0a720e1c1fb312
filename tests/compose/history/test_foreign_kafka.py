"""Somebody's span topic, of which no record passed our gateway, replayed as a source run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compose.kafka.reading import new_topic
from tests.streams.make import agent_span, otlp, tool_span
from tracegrad.compose.cli import app
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


def exported() -> list[bytes]:
    """A request a trace: an agent that asks a model of somebody's, and a tool that it calls."""
    traces = [f"{number:032x}" for number in range(1, 13)]
    return [otlp(agent_span(one, 1, "planner"), tool_span(one, 2, parent=1)) for one in traces]


def trace_ids(values: list[bytes]) -> set[str]:
    """Of all spans in them."""
    return {span.trace_id.hex() for value in values for _, _, span in spans_of(decode_spans(value))}


def replay(topic: str, broker: str, folder: Path, *more: str) -> None:
    """Of the whole topic; raises what a user is told."""
    arguments = ["--from", f"topic:{topic}", "--bootstrap-servers", broker, "--into", "again", *more]
    assert app(["replay", *arguments, "--runs-dir", str(folder)], standalone_mode=False) == 0


def episodes_of(run_dir: RunDir) -> list[Episode]:
    """All that it made."""
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        records = read_to_end(wiring.log(), wiring.topics.name(Topic.EPISODES))
        return [EPISODES.decode(one.value) for one in records]


def topics_on(log: KafkaLog) -> set[str]:
    """But the cluster's own."""
    return {name for name in log.admin.partition_counts() if not name.startswith("__")}


def test_a_topic_of_spans_becomes_episodes_of_all_its_traces(
    kafka_log: KafkaLog, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Spread over partitions as a Collector does; what comes later is not read, also when the command is given again,
    and the cluster gets no topic."""
    topic, values = new_topic(kafka_log, 3), exported()
    writer = kafka_log.writer()
    for value in values[:-1]:
        writer.append(topic, key=None, value=value).result(30)
    before = topics_on(kafka_log)
    replay(topic, broker, tmp_path, "--dry-run")
    assert f"{len(values) - 1} records to read" in capsys.readouterr().out
    writer.append(topic, key=None, value=values[-1]).result(30)
    replay(topic, broker, tmp_path)
    made = episodes_of(RunDir.open(tmp_path / "again"))
    assert len(values) > 5 and {one.episode_id for one in made} == trace_ids(values[:-1])
    replay(topic, broker, tmp_path)
    assert len(episodes_of(RunDir.open(tmp_path / "again"))) == len(made)
    assert topics_on(kafka_log) == before


def test_what_cannot_be_a_source_is_refused_before_anything_is_written(
    kafka_log: KafkaLog, broker: str, tmp_path: Path
) -> None:
    """A topic without records, one that is not there, an option of another source."""
    empty = new_topic(kafka_log)
    with pytest.raises(ConfigurationError, match=f"expected records on {empty}, got none"):
        replay(empty, broker, tmp_path)
    with pytest.raises(ConfigurationError, match="expected topic 'nowhere'"):
        replay("nowhere", broker, tmp_path)
    with pytest.raises(ConfigurationError, match="--to does not go with it"):
        replay(empty, broker, tmp_path, "--to", "PT1H")
    assert list(tmp_path.iterdir()) == []
