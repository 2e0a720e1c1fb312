"""Feedback on real parts: what was accepted is there though its gateway is killed; and a policy learns from it."""

from __future__ import annotations

import json
import os
import signal
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.importorskip("torch")

from opentelemetry._logs import LogRecord
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import SimpleLogRecordProcessor

from tests.compose.run.rated_traffic import RATED, TRAINING, asked, episodes, receipt, steps_of
from tests.compose.run.running import RunningUp, settled
from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.runner.rig import running_engine
from tests.serving import until
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.client.feedback import REWARD_TOKEN, REWARDS_URL, send_feedback
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.torch, pytest.mark.e2e, pytest.mark.timeout(300)]

NUM_RATINGS = 200


def rated(number: int, response_id: str) -> str:
    """One person's thumb."""
    value = number % 2
    return send_feedback(
        response_id=response_id, value=value, name="thumb", idempotency_key=f"person-{number}", patience_s=60
    )


def test_what_people_say_is_on_the_episode_though_its_gateway_is_killed(
    tmp_path: Path, broker: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call, then two hundred ratings of it with a SIGKILL between: each counts once, as their mean, on its call."""
    with (
        running_engine(ScriptedEngine()) as engine,
        RunningUp(settled(tmp_path, "rated", broker, engine, RATED.format(idle_s=10.0))) as run,
    ):
        (killed,) = until(lambda: run.pids("rewards"), 120)
        for name, value in run.ask("env", "--feedback").items():
            monkeypatch.setenv(name, value)
        agents = run.ask("env")
        assert not {REWARDS_URL, REWARD_TOKEN} & agents.keys()
        assert os.environ[REWARD_TOKEN] not in json.dumps(agents)
        answer = until(lambda: asked(agents["OPENAI_BASE_URL"]), 60)
        with ThreadPoolExecutor(8) as people:
            said = [people.submit(rated, number, answer) for number in range(NUM_RATINGS)]
            until(lambda: sum(one.done() for one in said) > NUM_RATINGS // 4, 60)
            os.kill(killed, signal.SIGKILL)
            assert {one.result(90) for one in said} == {f"person-{number}" for number in range(NUM_RATINGS)}
        with pytest.raises(ValueError, match="expected a number in"):
            send_feedback(response_id=answer, value=2, name="thumb")
        wiring = Wiring(RunDir.open(tmp_path / "runs" / "rated"))
        (episode,) = until(lambda: episodes(wiring, broker), 60)
        report = until(lambda: (found := run.ask("audit"))["missing"] == [] and found, 60)
    records = read_to_end(KafkaLog(broker), wiring.topics.name(Topic.REWARDS))
    named = {REWARDS.decode(record.value).idempotency_key for record in records}
    assert named == {f"person-{number}" for number in range(NUM_RATINGS)}
    assert len(episode.rewards) == NUM_RATINGS
    assert [(reward.rule, reward.value) for reward in episode.calls[0].rewards] == [("thumb", 0.5)]
    assert report["calls"]["terms"] == {"in episodes": 1}


def test_a_run_learns_from_conversations_that_people_rate(tmp_path: Path, broker: str) -> None:
    """No tasks, no grader, no groups: two steps of four conversations, rated when their episodes had closed; the one
    that nobody rated is in no step, and every id is accounted for."""
    with (
        running_engine(ScriptedEngine()) as engine,
        RunningUp(settled(tmp_path, "rated", broker, engine, RATED.format(idle_s=0.5) + TRAINING)) as run,
    ):
        until(lambda: run.pids("rewards"), 120)
        given, agents = run.ask("env", "--feedback"), run.ask("env")
        url, token = given[REWARDS_URL], given[REWARD_TOKEN]
        answers = [until(lambda: asked(agents["OPENAI_BASE_URL"]), 60) for _ in range(9)]
        wiring = Wiring(RunDir.open(tmp_path / "runs" / "rated"))
        until(lambda: len(episodes(wiring, broker)) == 9, 30)
        keys = [
            send_feedback(response_id=str(answer), value=number / 7, name="thumb", url=url, token=token)
            for number, answer in enumerate(answers[1:])
        ]
        steps = until(lambda: (found := steps_of(wiring, broker))[1:] and found, 120)
        report = until(lambda: (found := run.ask("audit"))["missing"] == [] and found, 60)
        states = until(lambda: (found := [receipt(url, token, key) for key in keys]) == ["joined"] * 8 and found, 30)
        assert states
    assert [(step.version, len(step.group_ids), step.skipped) for step in steps] == [(1, 4, ""), (2, 4, "")]
    assert report["episodes"]["terms"] == {"in groups": 8, "unscored": 1}
    assert report["groups"]["terms"] == {"trained": 8}


def test_what_a_judge_exports_is_joined_to_the_answer(tmp_path: Path, broker: str) -> None:
    """OpenTelemetry's own exporter and variables: its log event counts on the call, under its own id; what an agent's
    exporter says, to the same gateway, does not."""
    with (
        running_engine(ScriptedEngine()) as engine,
        RunningUp(settled(tmp_path, "rated", broker, engine, RATED.format(idle_s=10.0))) as run,
    ):
        until(lambda: run.pids("rewards") and run.pids("otlp"), 120)
        judge, agents, given = run.ask("env", "--evaluator"), run.ask("env"), run.ask("env", "--feedback")
        url, token = given[REWARDS_URL], given[REWARD_TOKEN]
        assert token in judge["OTEL_EXPORTER_OTLP_HEADERS"]
        assert token not in json.dumps(agents)
        answer = until(lambda: asked(agents["OPENAI_BASE_URL"]), 60)
        for variables, uid, value in ((agents, "agent-1", 1.0), (judge, "judge-1", 0.25), (judge, "judge-1", 0.5)):
            with pytest.MonkeyPatch.context() as patch:
                for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_HEADERS"):
                    patch.setenv(name, variables.get(name, ""))
                export_evaluation(str(answer), uid, value)
        wiring = Wiring(RunDir.open(tmp_path / "runs" / "rated"))
        (episode,) = until(lambda: episodes(wiring, broker), 60)
        assert until(lambda: receipt(url, token, "judge-1") == "joined", 30)
        with pytest.raises(urllib.error.HTTPError, match="404"):
            receipt(url, token, "agent-1")
        report = until(lambda: (found := run.ask("audit"))["missing"] == [] and found, 60)
    assert [(reward.rule, reward.value) for reward in episode.calls[0].rewards] == [("thumb", 0.5)]
    assert report["calls"]["terms"] == {"in episodes": 1}


def export_evaluation(answer: str, uid: str, value: float) -> None:
    """As a program does that judges: OpenTelemetry's SDK, set up by its variables."""
    provider = LoggerProvider()
    provider.add_log_record_processor(SimpleLogRecordProcessor(OTLPLogExporter()))
    attributes: dict[str, str | float] = {"gen_ai.response.id": answer, "log.record.uid": uid}
    attributes |= {"gen_ai.evaluation.name": "thumb", "gen_ai.evaluation.score.value": value}
    provider.get_logger("judge").emit(LogRecord(event_name="gen_ai.evaluation.result", attributes={**attributes}))
    provider.shutdown()
