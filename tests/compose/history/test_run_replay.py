"""A replay from folder to folder, on logs in memory: what is written, what is kept, and what a dry one leaves."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import conversation
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.trainer.config import AlgorithmConfig

SETTINGS = RunSettings(
    run="test",
    algorithm=AlgorithmConfig(recipe="rloo_batch"),
    select=SelectConfig(capture_all=True, train=True),
    feedback=FeedbackConfig(wait_s=60.0),
)


class Told(Show):
    """What a user is told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []
        self.counts: dict[str, int] = {}

    def say(self, text: str) -> None:
        """Kept."""
        self.lines.append(text)

    def progress(self, name: str, fields: dict[str, Any], text: str) -> None:
        """The last counts."""
        self.counts = fields["counts"]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceRun, dict[str, MemoryLog]]:
    """A run `test` with three groups in a folder; the logs of runs by name."""
    run_dir = prepare_run(SETTINGS, tmp_path / "test")
    source = SourceRun(Wiring(run_dir).stream_rules())
    for number in range(3):
        key = f"{number:x}e" * 16
        rating = said(1.0, f"k{number}", conversation_key=key, at_ms=1)
        source.live([*conversation((f"a{number}", True), key=key), rating], Random(number), pause_s=1.0)
    logs = {"test": source.past()}
    monkeypatch.setattr(Wiring, "log", lambda wiring, *_, **__: logs[wiring.record.name])

    def make(wiring: Wiring) -> None:
        log = logs.setdefault(wiring.record.name, MemoryLog())
        log.create_topics(wiring.topics, policies=["policy"])

    @contextlib.contextmanager
    def opened(_: object) -> Iterator[str]:
        yield "127.0.0.1:1"

    monkeypatch.setattr(history, "prepare_topics", make)
    monkeypatch.setattr(history, "_opened", opened)
    monkeypatch.setattr(history, "_broker_of", opened)
    return source, logs


def replayed(tmp_path: Path, *, is_dry: bool = False, **changes: Any) -> tuple[int, Told]:
    """A replay of `test` into `again`."""
    source, show = RunDir.open(tmp_path / "test"), Told()
    settings = RunSettings(
        **{**{name: getattr(SETTINGS, name) for name in ("algorithm", "select", "feedback")}, **changes}, run="again"
    )
    settings = history.replayed_settings(source, settings, None)
    request = ReplayRequest(source=source.path, is_dry=is_dry)
    return history.run_replay(request, settings, tmp_path / "again", show), show


def test_a_run_is_folded_into_another_once(runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path) -> None:
    """Its groups, byte for byte and in order; the same command again writes nothing; other rules are refused."""
    source, logs = runs
    status, told = replayed(tmp_path)
    assert (status, told.counts["written"]) == (0, 6)
    topics = RunDir.open(tmp_path / "again").settings.topics

    def groups() -> list[bytes | None]:
        return [record.value for record in logs["again"].records(topics.name(Topic.TRANSITIONS))]

    assert groups() == source.values(Topic.TRANSITIONS) != []
    status, told = replayed(tmp_path)
    assert (status, told.counts["there"], groups()) == (0, 6, source.values(Topic.TRANSITIONS))
    with pytest.raises(ConfigurationError, match=r"another \[feedback\]"):
        replayed(tmp_path, feedback=FeedbackConfig(wait_s=9.0))


def test_a_dry_replay_counts_by_the_new_rules_and_makes_no_folder(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """Not by the source's: of a run that takes no captured episodes there would be none."""
    status, told = replayed(tmp_path, is_dry=True)
    assert (status, told.counts["episodes"], told.counts["groups"]) == (0, 3, 3)
    status, told = replayed(tmp_path, is_dry=True, select=SelectConfig())
    assert (status, told.counts.get("episodes", 0), told.counts.get("groups", 0)) == (0, 0, 0)
    assert not (tmp_path / "again").exists()
    assert [*runs[1]] == ["test"]
