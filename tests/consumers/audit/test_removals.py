"""Every record and every file of a whole run, removed once each: the audit names it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.consumers.audit.small_run import audited, long_run, memory_log, records
from tests.streams.make import Streams
from tracegrad.consumers.audit.account import Report
from tracegrad.consumers.engine.weight_sync import verify_version
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.episodes import CLOSED, EPISODES
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    CallFact,
    CallsClosedFact,
    Close,
    RewardFact,
    RolloutFact,
    SpanFact,
)
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, ROLLOUTS
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, EpochClaim, RollbackRequest, WeightRecord
from tracegrad.schemas.topics import Topic

UNTOLD = (Topic.OTLP_LOGS, Topic.PROCESS_STATUS, Topic.EPISODE_SCORES, Topic.ADVANTAGES)
"""What the first tell is no term of the account; reports of processes are best effort; nobody rates this run's
(test_feedback.py); advantages follow from what the account has."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the versions' folders lie."""
    return tmp_path_factory.mktemp("weights")


@pytest.fixture(scope="module")
def run(weights: Path) -> Streams:
    """The run; what a test takes from it, it puts back."""
    return long_run(weights)


def audited_files(run: Streams, weights: Path, without: Record | None = None, **settings: Any) -> Report:
    """The audit of the run, its files too."""
    look = partial(verify_version, weight_root=str(weights))
    return audited(memory_log(run, without), **({"look": look, "weight_root": str(weights)} | settings))


def test_a_run_with_everything_adds_up(run: Streams, weights: Path) -> None:
    """What was closed by deadline, given up, rolled back and begun anew is accounted for."""
    report = audited_files(run, weights)
    assert report.missing == []
    assert {closed.closed_by for closed in run.episodes} == {"complete", "deadline"}
    assert report.episodes.terms == {"in groups": 8, "superseded": 1, "validation": 3}
    assert report.groups.terms == {"trained": 3, "waiting": 1}


@pytest.mark.slow
@pytest.mark.parametrize("topic", [topic for topic in Topic if topic not in UNTOLD])
def test_a_record_that_is_gone_is_named(run: Streams, weights: Path, topic: Topic) -> None:
    """Every single one of every topic, one copy each."""
    tried = [record for of_topic, record in records(run) if of_topic is topic]
    assert tried
    unnamed = []
    for record in tried:
        names, missing = names_of(topic, record), audited_files(run, weights, record).missing
        if not any(name in line for name in names for line in missing):
            unnamed.append((names, missing))
    assert unnamed == []


def test_a_file_that_is_gone_is_named(run: Streams, weights: Path) -> None:
    """Every file of every version, and every folder."""
    files = sorted(path for path in weights.rglob("*"))
    assert len(files) == 5 * (2 + 1)
    for path in files:
        away = path.rename(weights.parent / "away")
        missing = audited_files(run, weights).missing
        away.rename(path)
        assert len(missing) == 1 and path.name in missing[0]


def test_a_file_that_was_changed_is_named(run: Streams, weights: Path) -> None:
    """By its version, and what was expected."""
    path = next(weights.glob("*-v2-*/model.safetensors"))
    before = path.read_text()
    path.write_text(before.upper())
    (line,) = audited_files(run, weights).missing
    path.write_text(before)
    assert line.startswith("files of version 2 on weights: expected sha256")


def test_a_run_folder_that_was_moved_lacks_no_file(run: Streams, weights: Path, tmp_path: Path) -> None:
    """Its manifests name where the folders were; of a copy without them those are looked at there."""
    moved = weights.rename(tmp_path / "elsewhere")
    assert audited_files(run, moved).missing == []
    next(moved.glob("*-v2-*/model.safetensors")).rename(tmp_path / "away")
    (line,) = audited_files(run, moved).missing
    (tmp_path / "away").rename(next(moved.glob("*-v2-*")) / "model.safetensors")
    moved.rename(weights)
    assert "version 2" in line and str(moved) in line
    (tmp_path / "bare").mkdir()
    assert audited_files(run, weights, weight_root=str(tmp_path / "bare")).missing == []


@pytest.mark.parametrize(
    ("gone", "num_kept", "named"),
    [
        *[((1,), 9, []), ((1, 3), 1, []), ((1, 2), 9, [2]), ((1, 2), 0, [1, 2]), ((2, 3), 9, [2, 3]), ((0,), 1, [0])],
        ((1, 2, 3, 4), 1, [2, 4]),
    ],
    ids=["the oldest", "but the best", "the best", "all are kept", "between others", "version 0", "the newest"],
)
def test_folders_that_were_retired_are_not_missed(
    run: Streams, weights: Path, gone: tuple[int, ...], num_kept: int, named: list[int]
) -> None:
    """Also when fewer were kept than now; but not one between those that are there, nor version 0, nor the best, 2."""
    away = [path.rename(weights.parent / path.name) for number in gone for path in weights.glob(f"*-v{number}-*")]
    missing = audited_files(run, weights, weight_root="", num_kept=num_kept).missing
    for path in away:
        path.rename(weights / path.name)
    assert [line.split(" on weights")[0] for line in missing] == [f"files of version {number}" for number in named]


def names_of(topic: Topic, record: Record) -> list[str]:
    """By which names a person would look for this record; one is enough."""
    value = record.value
    match topic:
        case Topic.OTLP_SPANS:
            return [f"{span.trace_id.hex()}/{span.span_id.hex()}" for _, _, span in spans_of(decode_spans(value))]
        case Topic.LLM_CALLS:
            return _names_of_call(record)
        case Topic.REWARDS:
            return [REWARDS.decode(value).idempotency_key]
        case Topic.ROLLOUT_EVENTS:
            return [ROLLOUT_EVENTS.decode(value).rollout_id]
        case Topic.ROLLOUTS:
            return [ROLLOUTS.decode(value).rollout_id]
        case Topic.EPISODE_EVENTS:
            return _names_of_facts(record)
        case Topic.CLOSED_EPISODES | Topic.CLOSED_GROUPS:
            return [CLOSED.decode(value).id]
        case Topic.EPISODES:
            return [EPISODES.decode(value).episode_id]
        case Topic.TRANSITIONS:
            return [decode_group(value)[0].group_id]
        case Topic.TRAINING_STEPS:
            step = TRAINING_STEPS.decode(value)
            assert isinstance(step, TrainingStep)
            return [f"step missing before: step {step.step + 1}", f"version {step.version}, step {step.step}"]
        case Topic.WEIGHTS:
            return _names_of_weight(WEIGHTS.decode(value))
        case Topic.WEIGHT_ACKS:
            return [f"not on weight_acks: {WEIGHT_ACKS.decode(value).label}"]
        case _:
            origin = {name: text.decode() for name, text in record.headers}
            return ["/".join(origin[f"tracegrad.{part}"] for part in ("topic", "partition", "offset"))]


def _names_of_call(record: Record) -> list[str]:
    try:
        call = LLM_CALLS.decode(record.value)
    except RecordError:
        return [f"{record.topic}/{record.partition}/{record.offset}"]
    return [call.call_id if isinstance(call, CallRecord) else str(call.rollout_id)]


def _names_of_weight(weight: WeightRecord) -> list[str]:
    if isinstance(weight, EpochClaim):
        # Without it all that its trainer published is void.
        return ["epoch that nobody claimed: 1", f"-e{weight.epoch}"]
    if isinstance(weight, RollbackRequest):
        return ["version published but its step is not on training_steps: version 3"]
    if isinstance(weight, HeldOutPass):
        was = "that is over and has no score" if weight.score else "that has a score and was not begun"
        return [f"held-out pass {was}: {weight.number}"]
    return [f"version missing on weights: {weight.version}", f"not on weights: {weight.label}"]


def _names_of_facts(record: Record) -> list[str]:
    batch = EPISODE_EVENTS.decode(record.value)
    return [batch.episode_id] if isinstance(batch, Close) else [_name_of_fact(fact) for fact in batch.facts]


def _name_of_fact(fact: object) -> str:
    match fact:
        case CallFact(call=made):
            return made.call_id
        case CallsClosedFact(closed=made):
            return made.rollout_id
        case RolloutFact(event=made):
            return made.rollout_id
        case RewardFact(reward=made):
            return made.idempotency_key
        case SpanFact(span_id=id_):
            return id_
        case _:
            raise AssertionError(fact)
