"""`air`: questions to a run that has ended, whose broker is opened for as long as it is asked."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.streams.assemble.test_air import turn
from tests.streams.credit.test_credit import member
from tracegrad.compose.cli import air
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.made_of import GroupMadeOf, made_of_header
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, REWARDS, Reward
from tracegrad.schemas.topics import Topic

ID = "flat0"
CALL = msgspec.structs.replace(turn("succeeded"), call_id="c", agent="a")
PAST = msgspec.structs.replace(member(0, calls=(CALL,), reward=0.0), episode_id=ID)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run `mine` of an episode that was written twice, and a record that is none."""
    run_dir = prepare_run(RunSettings(run="mine"), tmp_path / "mine")
    topics, log = run_dir.settings.topics, MemoryLog()
    log.create_topics(topics, policies=["policy"])
    for value in [EPISODES.encode(PAST)] * 2:
        log.writer().append(topics.name(Topic.EPISODES), key=b"", value=value, partition=0)
    log.writer().append(topics.name(Topic.EPISODES), key=b"", value=b"no episode", partition=0)
    monkeypatch.setattr(air, "answering", contextlib.nullcontext)
    monkeypatch.setattr(Wiring, "kafka", lambda wiring, **_: log)
    monkeypatch.setattr(Wiring, "log", lambda wiring, **_: log)
    return tmp_path


def test_an_episode_of_a_run_that_has_ended_is_explained(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its broker is opened from its folder."""
    air.explain_episode(ID, run="mine", runs_dir=runs)
    assert capsys.readouterr().out.splitlines()[0] == "episode flat0: succeeded, reward 0.0, 1 calls, rules none"
    with pytest.raises(ConfigurationError, match="expected the id of one episode, got 0"):
        air.explain_episode("nobody", run="mine", runs_dir=runs)


def test_a_conversation_is_explained_with_what_was_said_behind_its_close(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As credit counted it; what others said, and what did not count, lies beside it on `rewards`."""
    wiring = Wiring(RunDir.open(runs / "mine"))
    writer, topics = wiring.log().writer(), wiring.topics
    key, thumb = "ab" * 16, Reward(
        rollout_id="", attempt_id="", name="thumb", value=1.0, source=FEEDBACK_SOURCE, idempotency_key="k", at_ms=9
    )  # fmt: skip
    episode = msgspec.structs.replace(
        PAST, episode_id=key, conversation=key, rollout_id=None, attempt_id=None, group=None, reward=None,
        unscored="no_reward",
    )  # fmt: skip
    writer.append(topics.name(Topic.EPISODES), key=None, value=EPISODES.encode(episode), partition=0)
    for value in (-5.0, 1.0, -7.0):
        said = msgspec.structs.replace(thumb, value=value, conversation_key=key)
        writer.append(topics.name(Topic.REWARDS), key=None, value=REWARDS.encode(said), partition=0)
    headers = made_of_header(GroupMadeOf(group=key, feedback={"rewards/0": [(1, 2)]}))
    writer.append(topics.name(Topic.TRANSITIONS), key=None, value=b"", headers=headers, partition=0)
    air.explain_episode(key, run="mine", runs_dir=runs)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"episode {key}: succeeded, reward 1.0, 1 calls")
    assert lines[1].endswith("return 1")
