"""`tracegrad regrade` with brokers of its own: a source that has ended, a grader's process, a new run's topics."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.compose.history.in_memory import Told
from tests.compose.history.test_regrade import GRADERS, lived, settings
from tests.consumers.history.source_run import SourceRun
from tracegrad.compose.history.regrade import file_digest
from tracegrad.compose.history.replay import opened, replayed_settings, run_replay
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.run.pipeline import prepare_run, prepare_topics
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring, port_of
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.mac import MAC_HEADER
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
    request = ReplayRequest(source=source.path, grader=file_digest(made.reward.grader))
    assert run_replay(request, made, folder / into, Told()) == 0


def bodies(folder: Path, run: str) -> Mapping[Topic, list[bytes | None]]:
    """Of a run that has ended."""
    with opened(RunDir.open(folder / run)) as wiring:
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
