"""The accounting: a whole run adds up; a copy with one record gone does not, and names what is gone."""

from __future__ import annotations

from functools import lru_cache

import msgspec
import pytest

from tests.consumers.audit.small_run import memory_log, records, small_run, step
from tests.streams.make import RUN_HASH, TOPICS, Streams, call, event, rollout
from tracegrad.consumers.audit.account import Report, audit
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, Purpose
from tracegrad.schemas.records.episodes import CLOSED, EPISODES
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    CallFact,
    CallsClosedFact,
    Facts,
    RewardFact,
    RolloutFact,
    SpanFact,
)
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, ROLLOUTS, GroupRef, RolloutRequest, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, surviving_steps
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, VersionManifest
from tracegrad.schemas.topics import Stage, Topic

UNTOLD = (Topic.OTLP_LOGS, Topic.WEIGHT_ACKS, Topic.PROCESS_STATUS)
"""Nothing points at an acknowledgement: a version that served may be replaced before it was acknowledged. Reports of
processes are best effort."""


@lru_cache
def run() -> Streams:
    """The run; nobody changes it."""
    return small_run()


def audited(log: Log) -> Report:
    """The audit of the test's run."""
    return audit(log, TOPICS, RunHash(RUN_HASH), "policy")


def test_a_whole_run_adds_up() -> None:
    """Each term is counted where it happens; they add up to the totals."""
    report = audited(memory_log(run()))
    assert report.missing == []
    assert report.calls.terms == {"in episodes": 17, "dead-lettered": 1}
    assert report.episodes.terms == {"in groups": 6, "superseded": 1, "validation": 2}
    assert report.groups.terms == {"trained": 2, "waiting": 1}
    for unit in (report.calls, report.episodes, report.groups):
        assert unit.total == sum(unit.terms.values())


def names_of(topic: Topic, record: Record) -> list[str]:
    """By which names a person would look for this record."""
    value = record.value
    match topic:
        case Topic.OTLP_SPANS:
            return [f"{RUN_HASH}"]
        case Topic.LLM_CALLS:
            try:
                call_ = LLM_CALLS.decode(value)
            except Exception:
                return ["llm_calls"]
            return [call_.call_id if isinstance(call_, CallRecord) else str(call_.rollout_id)]
        case Topic.REWARDS:
            return [REWARDS.decode(value).idempotency_key]
        case Topic.ROLLOUT_EVENTS:
            return [ROLLOUT_EVENTS.decode(value).rollout_id]
        case Topic.ROLLOUTS:
            return [ROLLOUTS.decode(value).rollout_id]
        case Topic.EPISODE_EVENTS:
            batch = EPISODE_EVENTS.decode(value)
            assert isinstance(batch, Facts)
            return [_fact_name(fact) for fact in batch.facts]
        case Topic.CLOSED_EPISODES | Topic.CLOSED_GROUPS:
            return [CLOSED.decode(value).id]
        case Topic.EPISODES:
            return [EPISODES.decode(value).episode_id]
        case Topic.TRANSITIONS:
            return [decode_group(value)[0].group_id]
        case Topic.TRAINING_STEPS:
            return [*TRAINING_STEPS.decode(value).group_ids, f"step {TRAINING_STEPS.decode(value).step}"]
        case Topic.WEIGHTS:
            weight = WEIGHTS.decode(value)
            if isinstance(weight, VersionManifest):
                return [f"version trained but not on weights: {weight.version}"]
            assert isinstance(weight, EpochClaim)
            return ["version trained but not on weights"]
        case _:
            return ["llm_calls/0/"]


def _fact_name(fact: object) -> str:
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


def is_told_by_others(topic: Topic, record: Record) -> bool:
    """Records whose loss no other record can tell of: nothing points at them."""
    if topic is Topic.WEIGHTS:
        weight = WEIGHTS.decode(record.value)
        return not (isinstance(weight, VersionManifest) and weight.version == 0)
    if topic is Topic.LLM_CALLS:
        # The undecodable one: its dead letter still says where it lay.
        return record.value != b"\xc1 no call"
    return True


@pytest.mark.slow
@pytest.mark.parametrize("topic", [topic for topic in Topic if topic not in UNTOLD])
def test_a_record_that_is_gone_is_named(topic: Topic) -> None:
    """Every single record of every topic, one copy each."""
    tried = 0
    for of_topic, record in records(run()):
        if of_topic is not topic or not is_told_by_others(topic, record):
            continue
        tried += 1
        report = audited(memory_log(run(), record))
        assert not report.is_complete, record
        assert any(name in line for name in names_of(topic, record) for line in report.missing), (
            names_of(topic, record),
            report.missing,
        )
    assert tried


def test_what_is_on_its_way_is_open_not_missing() -> None:
    """A living run raises no alarm: nothing is committed past the new records."""
    log = memory_log(run())
    own = rollout(99)
    log.append(TOPICS.name(Topic.LLM_CALLS), b"k", LLM_CALLS.encode(call("new", own)), (), 0)
    group = event(own).group
    started = event(own, RolloutState.STARTED, group=group)
    log.append(TOPICS.name(Topic.ROLLOUT_EVENTS), b"k", ROLLOUT_EVENTS.encode(started), (), 0)
    report = audited(log)
    assert report.calls.terms["open"] == 1
    assert [line for line in report.missing if "asked for" not in line] == []


def test_a_rollout_that_its_runner_committed_and_lost_is_named() -> None:
    """Not even its start was heard of: open while the runner holds it, missing once its request is committed."""
    log = memory_log(run())
    own, name = rollout(99), TOPICS.name(Topic.ROLLOUTS)
    where, group = TopicPartition(name, 0), GroupRef(id=f"{RUN_HASH}{99:016x}", size=2, member=0, index=99)
    request = RolloutRequest(
        rollout_id=own, group=group, task_id="task-1", input="?", policy="policy", purpose=Purpose.TRAIN
    )
    asked = log.append(name, b"k", ROLLOUTS.encode(request), (), 0).result()
    commits = log.groups[TOPICS.group(Stage.RUNNER)]
    commits[where] = asked.offset
    assert audited(log).missing == []
    commits[where] = asked.offset + 1
    assert audited(log).missing == [f"rollout asked for, committed by the runner and without a final event: {own}"]


def test_calls_of_another_run_are_not_selected() -> None:
    """Raw topics are shared."""
    log = memory_log(run())
    other = "ffffffff" + "0" * 20
    log.append(TOPICS.name(Topic.LLM_CALLS), b"k", LLM_CALLS.encode(call("other", other)), (), 0)
    report = audited(log)
    assert report.is_complete and report.calls.terms["not selected"] == 1


def test_the_trainers_own_ledger_is_checked_not_believed() -> None:
    """A step that claims more than its batches name."""
    log = memory_log(run())
    last = TRAINING_STEPS.decode(log.records(TOPICS.name(Topic.TRAINING_STEPS))[-1].value)
    lying = msgspec.structs.replace(
        last, epoch=2, accounting=msgspec.structs.replace(last.accounting, trained=3, consumed=3)
    )
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(lying), (), 0)
    assert any("training_steps says 3 trained of 3" in line for line in audited(log).missing)


def test_a_group_in_two_batches_is_named() -> None:
    """Each group is consumed by exactly one batch."""
    log = memory_log(run())
    first = TRAINING_STEPS.decode(log.records(TOPICS.name(Topic.TRAINING_STEPS))[0].value)
    again = step(3, first.group_ids)
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(again), (), 0)
    assert any(f"consumed twice: {first.group_ids[0]}" in line for line in audited(log).missing)


def test_steps_of_a_fenced_trainer_do_not_survive() -> None:
    """A later epoch that wrote step 2 resumed before the old step 3."""
    steps = [step(1, ("a",)), step(2, ("b",)), step(3, ("c",)), step(2, ("d",), epoch=2)]
    assert [(s.step, s.epoch) for s in surviving_steps(steps)] == [(1, 1), (2, 2)]
