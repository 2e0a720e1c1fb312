"""`air`: questions to a run that has ended, whose broker is opened for as long as it is asked."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.small_run import memory_log
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_air import turn
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_credit import member
from tests.streams.credit.test_feedback_window import Run
from tests.streams.make import TOPICS
from tracegrad.compose.cli import air
from tracegrad.compose.history import index
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic

ID = "flat0"
CALL = msgspec.structs.replace(turn("succeeded"), call_id="c", agent="a")
PAST = msgspec.structs.replace(member(0, calls=(CALL,), reward=0.0), episode_id=ID)


def made_run(folder: Path, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run `test`, whose topics are those of a log."""
    prepare_run(RunSettings(run="test"), folder / "test")
    monkeypatch.setattr(index, "open_broker", lambda *_, **__: contextlib.nullcontext("127.0.0.1:1"))
    monkeypatch.setattr(Wiring, "log", lambda *_, **__: log)


def test_an_episode_of_a_run_that_has_ended_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also one that was written twice, beside a record that is none."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    for value in (EPISODES.encode(PAST), EPISODES.encode(PAST), b"no episode"):
        log.writer().append(TOPICS.name(Topic.EPISODES), key=b"", value=value, partition=0)
    made_run(tmp_path, log, monkeypatch)
    air.explain_episode(ID, run="test", runs_dir=tmp_path)
    assert capsys.readouterr().out.splitlines()[0] == "episode flat0: succeeded, reward 0.0, 1 calls, rules none"
    with pytest.raises(ConfigurationError, match=r"expected an id of this run \(episode\), got 'nobody'"):
        air.explain_episode("nobody", run="test", runs_dir=tmp_path)


def test_a_conversation_is_explained_with_what_was_said_behind_its_close(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As credit counted it."""
    run = Run()
    run.feed(*conversation(*TURNS))
    run.wait(20)
    run.feed(said(1.0, "anna", name="thumb"))
    run.wait(100)
    made_run(tmp_path, memory_log(run.streams), monkeypatch)
    (episode,) = map(EPISODES.decode, run.streams.values(Topic.EPISODES))
    assert episode.reward is None
    air.explain_episode(episode.episode_id, run="test", runs_dir=tmp_path)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"episode {episode.episode_id}: unknown, reward 1.0, {len(episode.calls)} calls")
    assert lines[1].endswith("return 1")
