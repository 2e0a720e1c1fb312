"""What a replay is asked for: the same again goes on, whatever else is refused before anything is written."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace

from tests.compose.run.example_settings import SETTINGS
from tracegrad.compose.history.replay import history_settings, replayed_settings
from tracegrad.compose.history.request import (
    ReplayRequest,
    check_same,
    check_source,
    code_digest,
    known_source,
    remember,
    remembered,
    topics_between,
)
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.rules import AirConfig
from tracegrad.streams.config import HistoryConfig, SelectConfig
from tracegrad.streams.credit.config import CreditConfig
from tracegrad.trainer.history.config import Mode


@pytest.fixture
def source(tmp_path: Path) -> RunDir:
    """A run that has ended."""
    return prepare_run(SETTINGS, tmp_path / "mine")


def into(source: RunDir, *, mode: Mode | None = None, run: str = "again") -> RunSettings:
    """Settings of a replay of it."""
    return replayed_settings(source, msgspec.structs.replace(source.settings, run=run), mode)


def begun(source: RunDir, path: Path, request: ReplayRequest) -> RunDir:
    """A replay that was stopped."""
    path.mkdir()
    remember(request, source, into(source), made := RunDir(path))
    prepare_run(into(source), path)
    return made


def test_the_same_command_goes_on_with_the_time_that_was_meant_first(source: RunDir, tmp_path: Path) -> None:
    """Two hours ago is another time at each command."""
    first = ReplayRequest(source=source.path, asked="--from PT2H", begin_ms=1000)
    made = begun(source, tmp_path / "again", first)
    again = remembered(msgspec.structs.replace(first, begin_ms=9000), source, into(source), made)
    assert again.begin_ms == 1000
    assert known_source(made.path) == source.path
    assert known_source(source.path) is None


@pytest.mark.parametrize(
    ("changes", "settings", "named"),
    [
        ({"asked": "--from PT3H"}, {}, "choice"),
        ({"reclose": True}, {}, "--reclose"),
        ({"mode": "filter"}, {}, "--mode"),
        ({}, {"air": AirConfig(enabled=False)}, r"\[air\]"),
        ({}, {"select": SelectConfig(capture_all=True)}, r"\[select\]"),
    ],
)
def test_another_request_under_the_same_name_is_refused(
    source: RunDir, tmp_path: Path, changes: dict[str, object], settings: dict[str, object], named: str
) -> None:
    """What it made would lie beside what the first made, and be trained on with it."""
    first = ReplayRequest(source=source.path, asked="--from PT2H", mode="offline")
    made = begun(source, tmp_path / "again", first)
    other = msgspec.structs.replace(into(source), **settings)
    with pytest.raises(ConfigurationError, match=f"another {named}.*another name"):
        remembered(msgspec.structs.replace(first, **changes), source, other, made)


def test_what_was_folded_may_be_trained_on_later(source: RunDir, tmp_path: Path) -> None:
    """By one mode, and then by no other."""
    first = ReplayRequest(source=source.path)
    made = begun(source, tmp_path / "again", first)
    trained = msgspec.structs.replace(first, mode="offline")
    assert remembered(trained, source, into(source), made) == trained
    remember(trained, source, into(source), made)
    assert remembered(first, source, into(source), made) == first
    with pytest.raises(ConfigurationError, match="another --mode"):
        remembered(msgspec.structs.replace(first, mode="filter"), source, into(source), made)


def test_what_is_trained_is_trained_on_as_it_was_begun(source: RunDir, tmp_path: Path) -> None:
    """Else nothing would be done, or a model be of both; what changes no bit, or only how far it goes, may differ."""
    request = ReplayRequest(source=source.path, mode="filter")
    made = begun(source, tmp_path / "again", request)
    settings = made.settings
    trainer = settings.trainer
    same = replace(settings, trainer=replace(trainer, steps=trainer.steps + 1, threads=trainer.threads + 1))
    assert remembered(request, source, same, made) == request
    for changed, named in (
        (replace(settings, trainer=replace(trainer, lr=0.1)), r"\[trainer\] lr .* -> 0\.1"),
        (replace(settings, replay=replace(settings.replay, bound=settings.replay.bound + 0.25)), r"\[replay\]"),
        (replace(settings, seed=settings.seed + 1), "seed"),
    ):
        with pytest.raises(ConfigurationError, match=f"another {named}"):
            remembered(request, source, changed, made)


@pytest.mark.parametrize("section", ["air", "credit"])
def test_code_that_was_edited_is_other_code(source: RunDir, tmp_path: Path, section: str) -> None:
    """Half of the episodes would be paid by the one and half by the other, under one name."""
    (tmp_path / "again").mkdir()
    file = tmp_path / "own.py"
    file.write_text("def pay(episode):\n    return []\n")
    own = {"air": AirConfig(function=f"{file}:pay"), "credit": CreditConfig(strategy=f"{file}:pay")}[section]
    settings = replace(into(source), **{section: own})
    request = ReplayRequest(source=source.path)
    remember(request, source, settings, made := RunDir(tmp_path / "again"))
    prepare_run(settings, made.path)
    assert remembered(request, source, settings, made) == request
    file.write_text("def pay(episode):\n    return [1]\n")
    with pytest.raises(ConfigurationError, match=rf"another \[{section}\]"):
        remembered(request, source, settings, made)
    off = replace(settings, air=replace(settings.air, enabled=False))
    file.unlink()
    remember(request, source, off, other := RunDir(tmp_path / "mine"))
    assert remembered(request, source, off, other) == request, "of rules that are off nobody asks for the file"
    with pytest.raises(ConfigurationError, match=r"own\.py:pay: expected a file of code that can be read"):
        code_digest(f"{file}:pay")


def test_a_run_that_is_no_replay_is_never_written_to(source: RunDir, tmp_path: Path) -> None:
    """However alike its settings are."""
    other = prepare_run(msgspec.structs.replace(SETTINGS, run="again"), tmp_path / "again")
    config = other.config.read_bytes()
    with pytest.raises(ConfigurationError, match="expected a new run's name, or that of a replay"):
        remembered(ReplayRequest(source=source.path), source, into(source), other)
    assert (other.config.read_bytes(), other.replay_file.exists()) == (config, False)


def test_a_replay_has_no_history_of_its_own(source: RunDir, tmp_path: Path) -> None:
    """Its episodes name records of the log that it was made of; the message names that run."""
    made = begun(source, tmp_path / "again", ReplayRequest(source=source.path))
    with pytest.raises(ConfigurationError, match=f"itself a replay.*--source-dir {source.path}"):
        check_source(ReplayRequest(source=made.path), made)


def test_a_run_that_still_writes_is_not_repeated_step_by_step(source: RunDir) -> None:
    """Its steps go on while its history is read; the other modes take what there is."""
    with source.lock():
        with pytest.raises(ConfigurationError, match="--mode same: expected a source that has ended"):
            check_source(ReplayRequest(source=source.path, mode="same"), source)
        check_source(ReplayRequest(source=source.path, mode="offline"), source)


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"air": AirConfig(enabled=False)}, r"\[air\]"),
        ({"feedback": FeedbackConfig(wait_s=9.0)}, r"\[feedback\]"),
        ({"select": SelectConfig(capture_all=True)}, r"\[select\]"),
    ],
)
def test_same_refuses_each_section_that_decides_what_is_made(
    source: RunDir, settings: dict[str, object], named: str
) -> None:
    """That the source's rollouts are taken is no change."""
    request = ReplayRequest(source=source.path, mode="same")
    assert check_same(request, source.settings, into(source)) == []
    with pytest.raises(ConfigurationError, match=named):
        check_same(request, source.settings, msgspec.structs.replace(into(source), **settings))


def test_same_takes_other_workers_and_a_model_that_has_moved(source: RunDir) -> None:
    """Nothing that is made follows from either; the trainer knows the model by its bytes."""
    own = into(source)
    moved = msgspec.structs.replace(own.policy, model="/elsewhere/model")
    own = msgspec.structs.replace(own, streams=msgspec.structs.replace(own.streams, workers=1), policy=moved)
    assert check_same(ReplayRequest(source=source.path, mode="same"), source.settings, own) == []
    late = msgspec.structs.replace(own, streams=msgspec.structs.replace(own.streams, idle_s=7.0))
    with pytest.raises(ConfigurationError, match=r"\[streams\]"):
        check_same(ReplayRequest(source=source.path, mode="same"), source.settings, late)


def test_raw_topics_are_read_by_the_sources_names_and_all_is_written_by_the_new_runs(source: RunDir) -> None:
    """Whatever prefix either has."""
    theirs = msgspec.structs.replace(SETTINGS, kafka=KafkaConfig(topic_prefix="a.", topics={"otlp_spans": "spans"}))
    ours = msgspec.structs.replace(SETTINGS, run="again", kafka=KafkaConfig(topic_prefix="b."))
    topics = topics_between(theirs.topics, ours.topics)
    assert (topics.name(Topic.OTLP_SPANS), topics.name(Topic.LLM_CALLS)) == ("spans", "a.llm_calls")
    assert topics.name(Topic.EPISODES) == ours.topics.name(Topic.EPISODES) == "b.again.episodes"


def test_a_history_that_is_only_folded_needs_no_recipe() -> None:
    """The default's, which compares within groups, is refused only where it is to train."""
    given = replace(SETTINGS, run="again", history=HistoryConfig(models=("*",)))
    assert history_settings(given, None).algorithm.recipe == "sft"
    with pytest.raises(ConfigurationError, match="rloo_batch"):
        history_settings(given, "offline")
