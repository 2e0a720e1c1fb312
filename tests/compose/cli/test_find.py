"""`episodes` and `lineage`, from a run's folder to what is printed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.audit.small_run import long_run, memory_log
from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS, rollout
from tracegrad.compose.cli import app
from tracegrad.compose.history import index as opened
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.run.pipeline import prepare_run, prepare_topics
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.topics import Topic


class Runs:
    """A run `test` that has ended; how often its broker was opened."""

    def __init__(self, path: Path, log: MemoryLog) -> None:
        self.path, self.log, self.num_opened = path, log, 0

    def say(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
        """What a command prints."""
        app([*arguments, "--runs-dir", str(self.path)], standalone_mode=False)
        return capsys.readouterr().out.splitlines()


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """Its log is in memory; its folder holds segments of a size."""
    prepare_run(RunSettings(run="test"), tmp_path / "test")
    segment = tmp_path / "test" / "kafka" / "log" / f"{TOPICS.name(Topic.EPISODES)}-0" / "0.log"
    segment.parent.mkdir(parents=True)
    segment.write_bytes(b"x")
    found = Runs(tmp_path, memory_log(long_run(tmp_path / "weights")))

    @contextlib.contextmanager
    def open_broker(_: object, **__: object) -> Iterator[str]:
        found.num_opened += 1
        yield "127.0.0.1:1"

    monkeypatch.setattr(opened, "open_broker", open_broker)
    monkeypatch.setattr(Wiring, "log", lambda *_, **__: found.log)
    return found


def test_episodes_are_found_by_terms(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """As a table, as JSON lines with all facts, as a number."""
    head, *lines = runs.say(capsys, "episodes", "--where", "reward=1 step!=none", "--order-by", "episode")
    assert head.startswith("episode ")
    assert [line.split()[0] for line in lines] == [f"{rollout(number)}a001" for number in (1, 3, 5)]
    (line,) = runs.say(capsys, "episodes", "--where", "excluded=super*", "--json")
    assert (json.loads(line)["episode"], json.loads(line)["excluded"]) == (f"{rollout(1)}b002", "superseded")
    assert runs.say(capsys, "episodes", "--where", "purpose=train", "--count") == ["9"]
    assert runs.say(capsys, "episodes", "--count", "--json", "--to", "2020-01-01T00:00:00+00:00") == ['{"count": 0}']
    assert len(runs.say(capsys, "episodes", "-n", "2")) == 3
    assert len(runs.say(capsys, "episodes", "-n", "0")) == 13
    assert runs.say(capsys, "episodes", "--where", "agent=nobody") == []


def test_the_broker_of_a_run_that_ended_is_opened_for_news_only(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """Its segments' sizes tell; lineage needs the log itself."""
    for _ in range(3):
        runs.say(capsys, "episodes", "--count")
    assert runs.num_opened == 1
    with open(next(runs.path.glob("test/kafka/log/*/0.log")), "ab") as segment:
        segment.write(b"more")
    runs.say(capsys, "episodes", "--count")
    assert runs.num_opened == 2
    runs.say(capsys, "lineage", "2")
    assert runs.num_opened == 3


def test_what_the_index_knows_waits_for_no_other_reader(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be a page that stays open; for news it is waited for (test_replay.py)."""
    runs.say(capsys, "episodes", "--count")
    with RunDir.open(runs.path / "test").lock("reader"):
        app(["episodes", "--count", "--runs-dir", str(runs.path)], standalone_mode=False)
    assert runs.num_opened == 1
    assert capsys.readouterr().err == ""


def test_lineage_goes_both_ways(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """From a version to raw records, from an episode to versions; as lines or as JSON."""
    lines = runs.say(capsys, "lineage", "2")
    assert lines[0] == "2 (taken for: version)"
    assert any("transitions/0 [1, 2)" in line for line in lines)
    assert any("otlp_spans/0 [" in line for line in lines)
    (line,) = runs.say(capsys, "lineage", f"{rollout(3)}a001", "--json")
    found: dict[str, Any] = json.loads(line)
    assert (found["kind"], [one["step"] for one in found["steps"]], found["contained_in"]) == ("episode", [2], [[2, 2]])
    assert found["episodes"][0]["made_of"]["otlp_spans/0"] == [[3, 4]]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("episodes", "--where", "rewrd>1"),
            "--where: .*did you mean 'reward'.*'rewrd>1' at character 1",
        ),
        (("episodes", "--order-by", "rewrd"), "expected at or one of episode"),
        (("episodes", "--from", "tomorrow"), "--from: expected a time"),
        (("episodes", "--from", "run:test"), "--from: expected a time"),
        (("episodes", "--from", "PT1H", "--to", "PT2H"), "expected --to to be later"),
        (("lineage", "99"), "expected an id of this run"),
        (("lineage", "2", "--kind", "episode"), r"\(episode\)"),
    ],
)
def test_what_is_not_understood_is_said(
    runs: Runs, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    """With what was expected."""
    with pytest.raises(ConfigurationError, match=said):
        runs.say(capsys, *arguments)


def test_records_that_cannot_be_read_are_said(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, how many and why."""
    runs.log.append(TOPICS.name(Topic.EPISODES), None, b"no episode", (), 0)
    app(["episodes", "--count", "--runs-dir", str(runs.path)], standalone_mode=False)
    told = capsys.readouterr()
    assert (told.out, told.err) == (
        "12\n", "tracegrad: records that cannot be read are left out: 1 of episodes: malformed\n",
    )  # fmt: skip


def test_an_index_that_is_damaged_inside_is_made_anew(runs: Runs, capsys: pytest.CaptureFixture[str]) -> None:
    """It opens, since its tables' names are whole; who comes upon the rows is told, and who asks then has all."""
    runs.say(capsys, "episodes", "--count")
    index = runs.path / "test" / "index.sqlite"
    with contextlib.closing(sqlite3.connect(index)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = 'episodes'").fetchone()
    with index.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
    with pytest.raises(UnavailableError, match=r"index\.sqlite was damaged .* ask again"):
        runs.say(capsys, "episodes")
    assert runs.say(capsys, "episodes", "--count") == ["12"]


@pytest.mark.kafka
@pytest.mark.timeout(120)
def test_the_index_is_made_of_a_real_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that ended: its broker is opened from its folder, and closed; then nothing is opened any more."""
    run_dir = prepare_run(RunSettings(run="test"), tmp_path / "test")
    streams = long_run(tmp_path / "weights")
    with LocalKafka(run_dir.kafka) as broker:
        wiring = Wiring(run_dir, bootstrap_servers=broker.bootstrap_servers)
        prepare_topics(wiring)
        writer = wiring.log().writer()
        for topic in (Topic.EPISODES, Topic.TRANSITIONS, Topic.TRAINING_STEPS, Topic.WEIGHTS):
            for record in streams.log[topic]:
                writer.append(
                    wiring.topics.name(topic), key=record.key, value=record.value, headers=record.headers, partition=0
                )
        writer.close()
    runs = Runs(tmp_path, MemoryLog())
    assert runs.say(capsys, "episodes", "--count", "--where", "step!=none") == ["6"]
    assert "transitions/0 [1, 2)" in "\n".join(runs.say(capsys, "lineage", "2"))
    monkeypatch.setattr(LocalKafka, "start", lambda _: pytest.fail("opened a broker"))
    assert runs.say(capsys, "episodes", "--count") == ["12"]
