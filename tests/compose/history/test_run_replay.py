"""A replay from folder to folder, on logs in memory: what is written, what is kept, and what a dry one leaves."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.compose.history.in_memory import Told
from tests.compose.history.replaying import SETTINGS, recorded
from tests.compose.history.replaying import runs as runs
from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tracegrad.compose.files import write_record
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import Onlookers, ReportMaker
from tracegrad.compose.run.session import _make_report as make_report
from tracegrad.compose.run.settings import RunSettings
from tracegrad.consumers.history.selection import terms_of
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.log.where import Term
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.streams.assemble.air.rules import AirConfig, AirRule
from tracegrad.streams.config import SelectConfig
from tracegrad.trainer.history.config import ReplayConfig


def replayed(tmp_path: Path, asked: Mapping[str, Any] | None = None, **changes: Any) -> tuple[int, Told]:
    """A replay of `test` into `again`, as it is asked for, by settings with these changes."""
    source, show = RunDir.open(tmp_path / "test"), Told()
    settings = RunSettings(
        **{**{name: getattr(SETTINGS, name) for name in ("algorithm", "select", "feedback")}, **changes}, run="again"
    )
    request = ReplayRequest(source=source.path, **(asked or {}))
    settings = history.replayed_settings(source, settings, request.mode)
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


def test_a_dry_run_counts_what_there_is_to_read_and_folds_nothing(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """By topic, with what the source made of it."""
    status, told = replayed(tmp_path, {"dry_run": "count"})
    assert (status, told.counts) == (0, {})
    raw = {topic: len(runs[0].log.get(topic, [])) for topic in INPUTS[Stage.NORMALIZE]}
    assert told.results["records"] == {
        "records": {SETTINGS.topics.name(topic): number for topic, number in raw.items()},
        "episodes": 3,
        "groups": 3,
    }
    assert f"run test: {sum(raw.values())} records to read" in told.lines
    assert not (tmp_path / "again").exists()


def test_a_full_dry_run_folds_by_the_new_rules_and_makes_no_folder(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """Not by the source's: of a run that takes no captured episodes there would be none. What is equal, what another
    and what is not made is told."""
    runs[1]["test"] = runs[0].past(has_bodies=True)
    status, told = replayed(tmp_path, {"dry_run": "full"})
    assert (status, told.counts["episodes"], told.counts["groups"]) == (0, 3, 3)
    whole = {"equal": 3, "other": 0, "new": 0, "gone": 0, "named": []}
    assert told.results["changes"]["episodes"] == told.results["changes"]["groups"] == whole
    episodes = [EPISODES.decode(value) for value in runs[0].values(Topic.EPISODES)]
    assert told.results["changes"]["calls"] == sum(len(one.calls) for one in episodes) > 0
    assert told.results["changes"]["tokens"] > 0
    rules = AirConfig(rules=(AirRule(name="ok", on="call", unparsable=False, value=0.5, cap=2),))
    status, told = replayed(tmp_path, {"dry_run": "full"}, air=rules)
    assert (told.results["changes"]["groups"]["equal"], told.results["changes"]["groups"]["other"]) == (0, 3)
    assert "groups: 0 equal to the source's, 3 other, 0 new, 0 not made" in "\n".join(told.lines)
    rules = AirConfig(rules=(AirRule(name="ok", on="call", over_tokens=99_999, value=0.5, cap=2),))
    status, told = replayed(tmp_path, {"dry_run": "full"}, air=rules)
    assert told.results["changes"]["episodes"] == told.results["changes"]["groups"] == whole, "they pay nothing"
    status, told = replayed(tmp_path, {"dry_run": "full"}, select=SelectConfig())
    assert (status, told.counts.get("episodes", 0), told.counts.get("groups", 0)) == (0, 0, 0)
    assert told.results["changes"]["groups"]["gone"] == 3
    assert not (tmp_path / "again").exists()
    assert [*runs[1]] == ["test"]


def groups_of(logs: Mapping[str, MemoryLog], tmp_path: Path) -> list[bytes | None]:
    """The bodies on `transitions` of the replay."""
    topics = RunDir.open(tmp_path / "again").settings.topics
    return [record.value for record in logs["again"].records(topics.name(Topic.TRANSITIONS))]


def test_groups_are_chosen_by_what_stands_on_their_episodes(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """And by nothing that a source without a record of episodes has, nor with --reclose."""
    source, logs = runs
    logs["test"] = source.past(has_bodies=True)
    key = "1e" * 16
    asked = {"asked": "--where ..", "where": terms_of(f"conversation={key}", may_see_outcome=False)}
    with pytest.raises(ConfigurationError, match=r"--where, --reclose: .*leave one of them out"):
        replayed(tmp_path, {**asked, "reclose": True})
    none = terms_of("service=bank", may_see_outcome=False)
    with pytest.raises(ConfigurationError, match=r"--where \.\.: expected groups that are meant so, got none of 3"):
        replayed(tmp_path, {**asked, "where": none})
    assert not (tmp_path / "again").exists()
    assert replayed(tmp_path, asked)[0] == 0
    assert groups_of(logs, tmp_path) == source.values(Topic.TRANSITIONS)[1:2]


def test_what_was_folded_alone_is_trained_on_later_without_a_raw_record(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same command with a mode; and a training that was stopped goes on without the source."""
    trained = []
    monkeypatch.setattr(history, "supervise", lambda onlookers, *_, **__: trained.append(onlookers.wiring.record.name))
    monkeypatch.setattr(history, "with_start_model", lambda policy, *_: policy)
    asked, policy = {"mode": "offline"}, PolicyConfig(model="/somewhere")
    assert replayed(tmp_path, {}, policy=policy)[0] == 0
    assert (trained, len(groups_of(runs[1], tmp_path))) == ([], 3)
    monkeypatch.setattr(history, "select_history", None)
    replayed(tmp_path, asked, policy=policy)
    monkeypatch.setattr(history, "open_broker", None)
    replayed(tmp_path, asked, policy=policy)
    assert trained == ["again", "again"]


@pytest.mark.parametrize("is_folded", [False, True])
def test_a_replay_with_nothing_to_train_says_why_and_starts_no_trainer(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folded: bool
) -> None:
    """Status 1, and no version: its start model would be published as one. Also where it was folded before."""
    trained = []
    monkeypatch.setattr(history, "supervise", lambda *_, **__: trained.append(1))
    monkeypatch.setattr(history, "with_start_model", lambda policy, *_: policy)
    named = {"policy": PolicyConfig(model="/somewhere"), "replay": ReplayConfig(bound=1.5)}
    if is_folded:
        assert replayed(tmp_path, {}, **named)[0] == 0
    status, told = replayed(tmp_path, {"mode": "filter"}, **named)
    assert (status, trained) == (1, [])
    assert told.lines[-1] == (
        "nothing to train: 3 calls of policy in 3 episodes, none of them in the loss, so no version is published. 100% "
        "of groups `all_members_excluded`, 100% of their excluded members `below_bound`: Its final reward is below "
        "[replay] bound, and the run trains by `filter`. Lower the bound: --set replay.bound=0.5"
    )
    assert not any((tmp_path / "again" / "weights").glob("*"))


def test_a_bound_is_no_cause_where_no_call_could_train(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To lower it would not help; what ails the calls is told."""
    recorded(tmp_path, monkeypatch, is_labelled=False)
    monkeypatch.setattr(history, "with_start_model", lambda policy, *_: policy)
    named = {"policy": PolicyConfig(model="/somewhere"), "replay": ReplayConfig(bound=1.5)}
    status, told = replayed(tmp_path, {"mode": "filter"}, **named)
    assert status == 1 and "Lower the bound" not in told.lines[-1]
    assert "100% of groups `no_tokens`, 100% of their masked calls `" in told.lines[-1]


def test_a_replay_whose_conversations_nobody_groups_says_so(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No group was made: what the episodes say is told."""
    monkeypatch.setattr(history, "with_start_model", lambda policy, *_: policy)
    policy = PolicyConfig(model="/somewhere")
    select, feedback = SelectConfig(capture_all=True), SETTINGS.feedback
    status, told = replayed(tmp_path, {"mode": "filter"}, policy=policy, select=select, feedback=feedback)
    assert status == 1 and "3 calls of policy in 3 episodes" in told.lines[-1]
    assert "Set [select] train = true to train on captured conversations" in told.lines[-1]


def test_a_replay_that_trained_says_what_next(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own curve is the source's, so the model has to be asked."""

    def train(onlookers: Onlookers, *_: object, report: ReportMaker, **__: object) -> int:
        (onlookers.wiring.run_dir.weights / "7c1f3e9a-v1-e1").mkdir(parents=True)
        return make_report(report, onlookers.wiring, onlookers.show)

    monkeypatch.setattr(history, "supervise", train)
    monkeypatch.setattr(history, "with_start_model", lambda policy, *_: policy)
    status, told = replayed(tmp_path, {"mode": "offline"}, policy=PolicyConfig(model="/somewhere"))
    assert status == 0 and "what next:" in told.lines
    assert "trained on 0 groups in 0 steps" in told.lines


def test_what_was_left_out_is_told_at_the_end(runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path) -> None:
    """By its reason: a record that cannot be read, beside those that can. Where there is none nothing is said."""
    status, told = replayed(tmp_path, {"dry_run": "full"})
    assert (status, "problems" in told.results) == (0, False)
    topic = SETTINGS.topics.name(Topic.OTLP_SPANS)
    runs[1]["test"].writer().append(topic, key=b"k", value=b"no span", partition=0)
    status, told = replayed(tmp_path)
    assert (status, told.results["problems"]) == (0, {"records_refused{topic=otlp_spans,reason=undecodable}": 1})
    assert "counted: records_refused{topic=otlp_spans,reason=undecodable} 1" in told.lines
    assert groups_of(runs[1], tmp_path) == runs[0].values(Topic.TRANSITIONS)


def test_a_model_of_another_vocabulary_is_refused_before_anything_is_written(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path
) -> None:
    """Whatever mode trains it; what is only folded asks for no model."""
    write_record(
        RunDir.open(tmp_path / "test").config, msgspec.structs.replace(SETTINGS, policy=model_of(tmp_path, "a"))
    )
    for mode in ("offline", "filter"):
        with pytest.raises(
            ConfigurationError, match=r"expected the vocabulary of the source's model .* 0 is 'a' there"
        ):
            replayed(tmp_path, {"mode": mode}, policy=model_of(tmp_path, "b"))
    assert not (tmp_path / "again").exists()
    assert replayed(tmp_path, policy=model_of(tmp_path, "b"))[0] == 0


def model_of(tmp_path: Path, text: str) -> PolicyConfig:
    """A folder with a tokenizer of one text."""
    (folder := tmp_path / f"model-{text}").mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {text: 0}}}))
    return PolicyConfig(model=str(folder))


def test_a_log_that_ends_before_what_was_made_of_it_is_said_to_be_cut(
    runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With what to do; episodes that need nothing of the rest are the source's."""
    source, logs = runs
    calls = SETTINGS.topics.name(Topic.LLM_CALLS)
    (number, at), *_ = ((number, at) for number, at in logs["test"].offsets(calls).items() if at.end)
    logs["test"].cut(calls, number, end=at.end - 1)
    assert replayed(tmp_path, {})[0] == 0
    assert f"expected {calls},{number} up to offset {at.end}, of which episodes were made" in caplog.text
    assert "put its segments back from a copy" in caplog.text
    assert groups_of(logs, tmp_path)[:2] == source.values(Topic.TRANSITIONS)[:2]


def test_a_range_that_retention_ate_is_named(runs: tuple[SourceRun, dict[str, MemoryLog]], tmp_path: Path) -> None:
    """How much of which partition; nothing is written."""
    logs = runs[1]
    raw = [SETTINGS.topics.name(topic) for topic in INPUTS[Stage.NORMALIZE]]
    ends = {TopicPartition(name, number): at.end for name in raw for number, at in logs["test"].offsets(name).items()}
    for where, end in ends.items():
        logs["test"].truncate(where.topic, where.partition, begin=end)
    (where, end), *_ = ((where, end) for where, end in ends.items() if end)
    told = f"{end} records before offset {end} of {where.topic},{where.partition}"
    with pytest.raises(ConfigurationError, match=f"--from earliest: expected records .* retention has taken .*{told}"):
        replayed(tmp_path, {"asked": "--from earliest"})
    with pytest.raises(ConfigurationError, match=f"--where task=no: expected groups .* retention .*{told}"):
        replayed(tmp_path, {"asked": "--where task=no", "where": (Term("task", "=", "no"),)})
    assert not (tmp_path / "again").exists()
