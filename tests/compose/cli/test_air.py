"""`air`: questions to a run that has ended, whose broker is opened for as long as it is asked."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.memory_log import MemoryLog
from tests.streams.test_compare import PAST
from tracegrad.compose.cli import air
from tracegrad.compose.history import episodes
from tracegrad.compose.history.request import ReplayRequest, remember
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.made_of import GroupMadeOf, made_of_header
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, REWARDS, Reward
from tracegrad.schemas.topics import Topic

RULE = '[[air.rules]]\nname = "ok"\nstatus = "succeeded"\nvalue = 0.5\n'
ID = "flat0"


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a run `mine` of two groups, one of them written twice, and the files `a.toml` and `b.toml`."""
    run_dir = prepare_run(RunSettings(run="mine"), tmp_path / "mine")
    topics, log = run_dir.settings.topics, MemoryLog()
    log.create_topics(topics, policies=["policy"])
    for episode in (*PAST, PAST[0]):
        value = EPISODES.encode(msgspec.structs.replace(episode, purpose=Purpose.TRAIN))
        log.writer().append(topics.name(Topic.EPISODES), key=b"", value=value, partition=0)
    log.writer().append(topics.name(Topic.EPISODES), key=b"", value=b"no episode", partition=0)
    (tmp_path / "a.toml").write_text('run = "a"\n')
    (tmp_path / "b.toml").write_text(RULE)

    monkeypatch.setattr(air, "answering", contextlib.nullcontext)
    monkeypatch.setattr(Wiring, "kafka", lambda wiring, **_: log)
    monkeypatch.setattr(Wiring, "log", lambda wiring, **_: log)
    return tmp_path


def compared(runs: Path, **options: Any) -> None:
    """Of a.toml and b.toml."""
    air.compare_rules(runs / "a.toml", runs / "b.toml", **{"from_": "run:mine", "runs_dir": runs, **options})


def test_rules_are_compared_on_a_runs_episodes(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Worked by hand in tests/streams/test_compare.py; a record that cannot be read is left out."""
    compared(runs)
    assert capsys.readouterr().out.splitlines() == [
        "2 groups, 4 calls; rank correlation of their returns: 0.333",
        "groups with spread by B alone: 1 (flat)",
        "groups with spread by A alone: 1 (told)",
        "A pays: nothing",
        "B pays: air:ok a +1",
        "  flat0: a return changes by 0.5",
        "  told1: a return changes by 0.5",
    ]


def test_an_agents_name_begins_no_line_of_its_own(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A line feed in it is shown."""
    named = [
        msgspec.structs.replace(
            one, purpose=Purpose.TRAIN, calls=tuple(msgspec.structs.replace(call, agent="a\nb") for call in one.calls)
        )
        for one in PAST
    ]
    monkeypatch.setattr(episodes, "episodes_of", lambda *_: iter(named))
    compared(runs)
    assert r"B pays: air:ok a\nb +1" in capsys.readouterr().out.splitlines()


def test_the_same_as_json(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts."""
    compared(runs, as_json=True)
    told = msgspec.json.decode(capsys.readouterr().out)
    assert (told["gained"], told["lost"], told["num_calls"]) == (["flat"], ["told"], 4)
    assert told["paid"] == [{}, {"air:ok a": 1.0}]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"from_": "run:other"}, "expected a run folder"),
        ({"from_": "run:mine", "source_dir": Path("x")}, "leave one of them out"),
        ({"from_": "PT1H", "to": "PT2H"}, "expected --to to be later"),
        ({"from_": "2999-01-01T00:00:00Z"}, "expected a time that has been"),
        ({"from_": "yesterday"}, "--from: expected run:NAME"),
    ],
)
def test_what_cannot_be_is_refused(runs: Path, options: dict[str, Any], message: str) -> None:
    """With the same words as `replay` has."""
    with pytest.raises(ConfigurationError, match=message):
        compared(runs, **options)


def test_a_run_without_training_episodes_is_said(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that trains on captured conversations."""
    monkeypatch.setattr(episodes, "episodes_of", lambda *_: iter(()))
    with pytest.raises(ConfigurationError, match="expected groups of training episodes in run mine, got none"):
        compared(runs)


def test_of_a_replay_no_part_can_be_named(runs: Path) -> None:
    """Its raw records lie elsewhere."""
    source = RunDir.open(runs / "mine")
    settings = RunSettings(run="again")
    (runs / "again").mkdir()
    remember(ReplayRequest(source=source.path), source, settings, RunDir(runs / "again"))
    prepare_run(settings, runs / "again")
    with pytest.raises(ConfigurationError, match=r"run again is a replay, .* or its source, --source-dir .*mine"):
        compared(runs, from_="PT2H", source_dir=runs / "again")


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
        PAST[0], episode_id=key, conversation=key, rollout_id=None, attempt_id=None, group=None, reward=None,
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
