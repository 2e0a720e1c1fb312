"""Runs that have ended, with brokers of their own: a grader and a new run, and what commands read of them."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compose.history.in_memory import Told
from tests.compose.history.regrading import GRADERS, lived, settings
from tests.consumers.history.source_run import SourceRun
from tracegrad.compose.cli import app
from tracegrad.compose.history.replay import replayed_settings, run_replay
from tracegrad.compose.history.request import ReplayRequest, code_digest
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.loopback import is_free
from tracegrad.compose.run.pipeline import prepare_run, prepare_topics
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring, port_of
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.mac import MAC_HEADER
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import INPUTS, Stage, Topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(300)]
TOPICS = (*INPUTS[Stage.NORMALIZE], Topic.EPISODES, Topic.TRANSITIONS)


def recorded(folder: Path) -> SourceRun:
    """A run `test` that has lived and ended; its broker's data is in its folder."""
    (folder / "grade.py").write_text(GRADERS)
    run_dir = prepare_run(settings(folder, "test"), folder / "test")
    wiring = Wiring(run_dir)
    source, requests = lived(run_dir)
    with LocalKafka(run_dir.kafka, port=port_of(wiring.endpoints.bootstrap_servers)):
        prepare_topics(wiring)
        writer = wiring.log().writer()
        records = [(topic, record) for topic in TOPICS for record in source.log.get(topic, [])]
        pending = [
            writer.append(
                wiring.topics.name(topic),
                key=record.key,
                value=record.value,
                headers=tuple(one for one in record.headers if one[0] != MAC_HEADER),
                partition=0,
            )
            for topic, record in records
        ]
        pending += [writer.append(wiring.topics.name(Topic.ROLLOUTS), key=b"", value=value) for value in requests]
        for one in pending:
            one.result(30)
        writer.close()
    return source


def regraded(folder: Path, into: str, grader: str) -> None:
    """From the source's folder into another."""
    source = RunDir.open(folder / "test")
    made = replayed_settings(source, settings(folder, into, grader), None)
    assert made.reward is not None and made.reward.grader is not None
    request = ReplayRequest(source=source.path, grader=code_digest(made.reward.grader))
    assert run_replay(request, made, folder / into, Told()) == 0


def bodies(folder: Path, run: str) -> Mapping[Topic, list[bytes | None]]:
    """Of a run that has ended."""
    run_dir = RunDir.open(folder / run)
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        return {
            topic: [record.value for record in read_to_end(wiring.kafka(), wiring.topics.name(topic))]
            for topic in (Topic.EPISODES, Topic.TRANSITIONS)
        }


def test_a_run_that_has_ended_is_graded_anew(tmp_path: Path) -> None:
    """By its own grader: its records, byte for byte, but the one whose output is not on the log and its group."""
    source = recorded(tmp_path)
    regraded(tmp_path, "own", "grade")
    own = bodies(tmp_path, "own")
    for topic, num_equal in ((Topic.EPISODES, 5), (Topic.TRANSITIONS, 2)):
        was = source.values(topic)
        assert len(own[topic]) == len(was) == num_equal + 1
        assert len({*own[topic]} & {*was}) == num_equal
    (lost,) = {*own[Topic.EPISODES]} - {*source.values(Topic.EPISODES)}
    assert EPISODES.decode(lost).unscored == "output_too_large"


def test_commands_that_read_topics_open_the_broker_of_a_run_that_has_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They say so, and leave it closed; one that a person has started on the folder is read where it is."""
    recorded(tmp_path)
    run_dir = RunDir.open(tmp_path / "test")
    for command in (["tail", "episodes", "--from", "beginning", "-n", "2"], ["topics", "list"]):
        app([*command, "--run", str(run_dir.path)], standalone_mode=False)
    told = capsys.readouterr()
    assert told.err.count("starting the broker of run test, which has ended") == 2
    assert told.out.count(" Episode episode_id=") == 2
    assert re.search(r"test\.episodes +\d+ partitions +6 records", told.out)
    port = port_of(run_dir.endpoints.bootstrap_servers)
    assert is_free(port)
    with LocalKafka(run_dir.kafka, port=port), pytest.raises(SystemExit):
        app(["audit", "--json", str(run_dir.path)], standalone_mode=True)
    told = capsys.readouterr()
    assert told.err == ""
    assert json.loads(told.out)["episodes"]["total"] == 6
