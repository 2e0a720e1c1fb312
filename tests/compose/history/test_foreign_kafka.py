"""Somebody's span topic, of which no record passed our gateway, replayed as a source run."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.compose.kafka.reading import new_topic
from tests.streams.make import agent_span, otlp, span, tool_span
from tracegrad.compose.cli import app
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
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
    assert f"{2 * len(values) - 2} spans in {len(values) - 1} traces" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []
    replay(topic, broker, tmp_path)
    writer.append(topic, key=None, value=values[-1]).result(30)
    made = episodes_of(RunDir.open(tmp_path / "again"))
    assert len(values) > 5 and {one.episode_id for one in made} == trace_ids(values[:-1])
    replay(topic, broker, tmp_path)
    assert len(episodes_of(RunDir.open(tmp_path / "again"))) == len(made)
    assert topics_on(kafka_log) == before


UNKNOWN = {"trace_id": "f" * 32, "value": 1.0}
POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"


def told_trace(number: int, answer: str) -> bytes:
    """A request of one trace: an agent that asks gpt-4o of somebody's one question, by OpenInference's openai."""
    trace, body = f"{number:032x}", {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"{number}+1?"}]}
    choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": "stop"}
    said = {"id": f"chatcmpl-{number}", "model": "gpt-4o-mini", "choices": [choice]}
    told: dict[str, Any] = {"openinference__span__kind": "LLM"}
    told |= {"input__value": json.dumps(body), "output__value": json.dumps(said)}
    request = ExportTraceServiceRequest.FromString(
        otlp(agent_span(trace, 1, "clerk"), span(trace, 2, "ChatCompletion", parent=1, at=10, **told))
    )
    request.resource_spans[0].scope_spans[0].scope.name = "openinference.instrumentation.openai"
    return bytes(request.SerializeToString())


@pytest.mark.torch
def test_a_history_of_another_model_trains_the_policy_on_what_was_rated(
    kafka_log: KafkaLog, broker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the likelihood of the answers whose traces a file of rewards calls good; the report says how many."""
    topic, writer = new_topic(kafka_log, 2), kafka_log.writer()
    for number in range(1, 25):
        writer.append(topic, key=None, value=told_trace(number, str(number + 1))).result(30)
    rewards = [{"trace_id": f"{number:032x}", "value": float(number % 2)} for number in range(1, 24)]
    (tmp_path / "rewards.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rewards, UNKNOWN]))
    (tmp_path / "history.toml").write_text(f"""
        [history]
        models = ["gpt-4o*"]
        [policy]
        model = "{POLICY}"
        [trainer]
        groups_per_step = 8
        steps = 4
        """)
    options = ("--mode", "filter", "--rewards", str(tmp_path / "rewards.jsonl"), str(tmp_path / "history.toml"))
    replay(topic, broker, tmp_path, *options)
    told = capsys.readouterr().out
    assert "rewards: 24 rows; 1 things in them are in no episode, 0 are said again" in told
    assert "trained on 12 groups in 3 steps" in told and "not on 11: below_bound: Its final" in told
    made = RunDir.open(tmp_path / "again")
    episodes = episodes_of(made)
    assert [call.masked for one in episodes for call in one.calls] == [Reason.TEXT] * 24
    assert {one.calls[0].agent for one in episodes} == {"clerk"} and episodes[0].calls[0].call_id.startswith("chatcmpl")
    with open_broker(made) as servers:
        wiring = Wiring(made, bootstrap_servers=servers)
        name = wiring.topics.name(Topic.TRAINING_STEPS)
        found = [TRAINING_STEPS.decode(one.value) for one in read_to_end(wiring.log(), name)]
    steps = [one for one in found if isinstance(one, TrainingStep)]
    assert [*Counter(why for step in steps for why in step.excluded_ids.values()).values()] == [11]
    assert sum(step.num_tokens for step in steps) > 11 * 2


def test_what_cannot_be_a_source_is_refused_before_anything_is_written(
    kafka_log: KafkaLog, broker: str, tmp_path: Path
) -> None:
    """A topic without records, one that is not there, an option of another source."""
    empty = new_topic(kafka_log)
    with pytest.raises(ConfigurationError, match=f"expected records on {empty}, got none"):
        replay(empty, broker, tmp_path)
    with pytest.raises(ConfigurationError, match="expected topic 'nowhere'"):
        replay("nowhere", broker, tmp_path)
    told = new_topic(kafka_log)
    kafka_log.writer().append(told, key=None, value=exported()[0]).result(30)
    with pytest.raises(ConfigurationError, match=r"expected a section \[history\]"):
        replay(told, broker, tmp_path, "--mode", "filter")
    with pytest.raises(ConfigurationError, match="--to does not go with it"):
        replay(empty, broker, tmp_path, "--to", "PT1H")
    assert [*tmp_path.iterdir()] == []
