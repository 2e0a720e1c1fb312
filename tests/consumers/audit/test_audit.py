"""The accounting: a whole run adds up; a copy with one record gone does not, and names what is gone."""

from __future__ import annotations

import hashlib
from functools import lru_cache

import msgspec
import pytest

from tests.consumers.audit.small_run import ask, attempt, audited, memory_log, request_of, small_run, step
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, Streams, agent_span, call, event, otlp, rollout, span
from tests.versions import held_out, sampled_by
from tracegrad.schemas.ids import GroupId, rollout_id
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition
from tracegrad.schemas.records.calls import LLM_CALLS, Purpose
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS, GroupRef, RolloutRequest, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, Accounting, TrainingStep, hash_batch
from tracegrad.schemas.records.transitions import decode_group, encode_group, group_id_of
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import Stage, Topic


@lru_cache
def run() -> Streams:
    """The run; nobody changes it."""
    return small_run()


def test_a_whole_run_adds_up() -> None:
    """Each term is counted where it happens; they add up to the totals."""
    report = audited(memory_log(run()))
    assert report.missing == []
    assert report.calls.terms == {"in episodes": 17, "dead-lettered": 1}
    assert report.episodes.terms == {"in groups": 6, "superseded": 1, "validation": 2}
    assert report.groups.terms == {"trained": 2, "waiting": 1}
    for unit in (report.calls, report.episodes, report.groups):
        assert unit.total == sum(unit.terms.values())


def test_what_is_on_its_way_is_open_not_missing() -> None:
    """A living run raises no alarm: nothing is committed past the new records."""
    log = memory_log(run())
    own = rollout(99)
    log.append(TOPICS.name(Topic.LLM_CALLS), b"k", LLM_CALLS.encode(call("new", own, versions=(sampled_by(0),))), (), 0)
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
    where = TopicPartition(name, 0)
    asked = log.append(name, b"k", ROLLOUTS.encode(request_of(own, place(3, 0))), (), 0).result()
    commits = log.groups[TOPICS.group(Stage.RUNNER)]
    commits[where] = asked.offset
    assert audited(log).missing == []
    commits[where] = asked.offset + 1
    assert audited(log).missing == [f"rollout asked for, committed by the runner and without a final event: {own}"]


def test_a_held_out_pass_under_way_is_not_missing_its_score() -> None:
    """Nor one of whose tasks some were not asked for yet; a group of no pass is, and a pass that was passed by."""
    log = memory_log(run())
    own = rollout_id(GroupId(f"{RUN_HASH}{'e' * 15}2"), 0)
    group = GroupRef(id=f"{RUN_HASH}{'e' * 15}2", size=1, member=0, index=2)
    request = ROLLOUTS.encode(request_of(own, group, Purpose.VALIDATION))
    log.append(TOPICS.name(Topic.ROLLOUTS), b"k", request, (), 0)
    assert audited(log).missing == ["held-out group that no pass asked for: 2"]
    words = [held_out(2, since=2, num_tasks=2), held_out(3, since=2, first_group=4)]
    for word, missing in zip(words, ([], ["held-out pass that is over and has no score: 2"]), strict=True):
        log.append(TOPICS.name(Topic.WEIGHTS), b"policy", WEIGHTS.encode(word), (), 0)
        assert audited(log).missing == missing


def test_a_pass_of_absurdly_many_tasks_is_soon_read() -> None:
    """By the groups that were asked for, not by those that it names."""
    log = memory_log(run())
    word = held_out(2, since=2, num_tasks=10**12 - 1)
    log.append(TOPICS.name(Topic.WEIGHTS), b"policy", WEIGHTS.encode(word), (), 0)
    assert audited(log).missing == []


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
    assert isinstance(last, TrainingStep)
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


@pytest.mark.parametrize(
    ("version", "named"),
    [
        (3, "version trained but not on weights: 3"),
        (2, "step that did not lead to the version that it names: step 3 up to offset 3, "
            "version 2 is of step 2 up to 2"),
    ],
    ids=["no version", "a version of another step"],
)  # fmt: skip
def test_a_step_that_never_ran_is_named(version: int, named: str) -> None:
    """It says that it trained the waiting group, which lies in its interval; but no version came of it."""
    log = memory_log(run())
    waiting = decode_group(log.records(TOPICS.name(Topic.TRANSITIONS))[2].value)[0].group_id
    made_up = filled(log, msgspec.structs.replace(step(3, (waiting,)), version=version))
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(made_up), (), 0)
    assert audited(log).missing == [named]


@pytest.mark.parametrize(
    ("begin", "end", "num_groups", "named"),
    [
        (2, 3, 0, [
            "group in the interval of step 3 but not named by it: {2}",
            "batch_hash that is not that of its records on transitions: step 3",
        ]),
        (2, 9, 1, ["6 offsets that are not on transitions consumed by: step 3"]),
        (3, 4, 1, [
            "gap in the offsets before: step 3",
            "1 offsets that are not on transitions consumed by: step 3",
            "group named by step 3 but not in its interval of transitions: {2}",
        ]),
    ],
    ids=["passed-by", "too-far", "elsewhere"],
)  # fmt: skip
def test_the_interval_of_a_step_is_compared_with_transitions(
    begin: int, end: int, num_groups: int, named: list[str]
) -> None:
    """What a batch consumed is what lies there, and nothing else."""
    log = memory_log(run())
    groups = [decode_group(record.value)[0].group_id for record in log.records(TOPICS.name(Topic.TRANSITIONS))]
    last = msgspec.structs.replace(
        step(3, tuple(groups[2:][:num_groups])),
        begin_offset=begin,
        next_offset=end,
        is_updated=False,
        version=2,
        accounting=Accounting(consumed=2 + num_groups, trained=2 + num_groups),
    )
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(last), (), 0)
    expected = [line.format(*groups) for line in named]
    assert [line for line in audited(log).missing if "step 3" in line] == expected


def filled(log: MemoryLog, made: TrainingStep, reason: str = "") -> TrainingStep:
    """The step with the hash of the one record in its interval."""
    value = log.records(TOPICS.name(Topic.TRANSITIONS))[made.begin_offset].value
    return msgspec.structs.replace(made, batch_hash=hash_batch([(hashlib.sha256(value or b"").digest(), reason)]))


@pytest.mark.parametrize("how", ["trained", "excluded", "skipped", "malformed", "duplicate"])
def test_a_record_that_was_changed_after_its_step_is_named(how: str) -> None:
    """The rewards of a group that a batch has consumed, whatever became of it: its hash is of other bytes."""
    log = memory_log(run())
    name = TOPICS.name(Topic.TRANSITIONS)
    records = log._topics[name][0].records
    if how in ("malformed", "duplicate"):
        other = b"\xff no group" if how == "malformed" else records[0].value
        records[2] = msgspec.structs.replace(records[2], value=other)
    waiting = group_id_of(records[2].value) or ""
    reason = {"trained": "", "skipped": "no_advantage"}.get(how, how)
    named = {"excluded": {waiting: reason}, "skipped": {waiting: reason}}.get(how, {})
    made = msgspec.structs.replace(
        step(3, (waiting,) if how == "trained" else ()),
        excluded_ids=named,
        skipped=reason if how == "skipped" else "",
        is_updated=False,
        version=2,
    )
    if how == "malformed":
        headers = dead_letter_headers(records[2], stage="trainer", reason=how)
        log.append(TOPICS.name(Topic.DEAD_LETTERS), b"policy", records[2].value, headers, 0)
    made = filled(log, made, "" if how == "skipped" else reason)
    log.append(TOPICS.name(Topic.TRAINING_STEPS), b"policy", TRAINING_STEPS.encode(made), (), 0)
    line = "emitted twice with different bytes: " if how == "duplicate" else "batch_hash that is not that of its "
    assert line not in str(audited(log).missing)
    summary, rows = decode_group(records[1].value)
    changed = encode_group(msgspec.structs.replace(summary, group_id=waiting), rows)
    records[2] = msgspec.structs.replace(records[2], value=b"\xff other" if how == "malformed" else changed)
    assert line in str(audited(log).missing)


def asked(log: Log, index: int, member: int, *, size: int = 2) -> RolloutRequest:
    """One more rollout of training is asked for."""
    request = request_of(rollout(100 + 2 * index + member), place(index, member, size=size))
    log.writer().append(TOPICS.name(Topic.ROLLOUTS), key=b"k", value=ROLLOUTS.encode(request), partition=0).result(1)
    return request


def test_holes_in_what_was_asked_for_are_named() -> None:
    """Groups and their members are numbered; only the newest group may be in the making."""
    log = memory_log(run())
    asked(log, 4, 0)
    asked(log, 6, 1)
    assert audited(log).missing == [
        "group never asked for: train group 3",
        "group never asked for: train group 5",
        "rollout never asked for: member 1 of train group 4",
    ]


@pytest.mark.parametrize("number", [10**5, 10**18])
def test_a_number_out_of_place_costs_one_line(number: int) -> None:
    """Whoever wrote it: the audit ends a run, and must end itself."""
    log = memory_log(run())
    asked(log, 3, 0, size=number)
    asked(log, number, 0)
    assert audited(log).missing == [
        f"group never asked for: train group 4 to {number - 1}",
        f"rollout never asked for: member 1 to {number - 1} of train group 3",
    ]


def test_strays_that_were_let_go_are_not_missing() -> None:
    """Spans of a trace of which nothing else came, also under the run's hash: anybody can send them, and no marker
    follows. With a call the trace is an episode."""
    streams = small_run()
    trace, other = f"{RUN_HASH}{'f' * 24}", "cd" * 16
    streams.feed(*(otlp(agent_span(id_, 1, "x")) for id_ in (trace, other)))
    streams.tick(0.0, 1e6)
    assert streams.assemble.num_open == 0
    assert audited(memory_log(streams)).missing == []
    streams.feed(call("late", None, trace_id=other, versions=(sampled_by(0),)))
    assert f"folded but without a closed marker: {other}" in audited(memory_log(streams)).missing


def test_a_span_that_names_another_runs_rollout_is_not_missing() -> None:
    """Also in a trace of this run: normalize leaves it to the other; an agent can send one at any time."""
    streams = small_run()
    streams.feed(otlp(span(f"{rollout(1)}a001", 9, rollout__id="f" * 28, attempt__id="0bad")))
    assert audited(memory_log(streams)).missing == []


def test_groups_that_did_not_close_are_open_or_lost() -> None:
    """Lost is one whose member was given up three times and has no episode; until then it is open."""
    log = memory_log(run())
    requests = [asked(log, 3, member) for member in range(2)]
    assert audited(log).groups.terms == {"open": 1, "trained": 2, "waiting": 1}
    for name in ("0000", "00aa", "00bb"):
        assert "lost" not in audited(log).groups.terms
        given_up = event(requests[1].rollout_id, RolloutState.GIVEN_UP, group=requests[1].group, attempt_id=name)
        log.append(TOPICS.name(Topic.ROLLOUT_EVENTS), b"k", ROLLOUT_EVENTS.encode(given_up), (), 0)
    report = audited(log)
    assert (report.groups.terms, report.missing) == ({"lost": 1, "trained": 2, "waiting": 1}, [])


def test_a_group_that_closed_in_part_adds_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Credit made room: the member that it closed without has an episode all the same, or none for ever."""
    streams = small_run(max_open_groups=1)
    # Credit names the member that it does not know.
    ids = {
        10 * index + member: rollout_id(GroupId(place(index, member).id), member)
        for index in (3, 4, 5)
        for member in (0, 1)
    }
    monkeypatch.setattr("tests.consumers.audit.small_run.rollout", ids.__getitem__)
    for number in (30, 31, 40, 41, 50):
        ask(streams, number, place(*divmod(number, 10)), Purpose.TRAIN)
    for number in (30, 40, 31, 50):
        streams.feed(*attempt(number, place(*divmod(number, 10))))
    log = memory_log(streams)
    for name in ("0000", "00aa", "00bb"):
        # Lost on its way to assemble.
        given_up = event(ids[41], RolloutState.GIVEN_UP, group=place(4, 1), attempt_id=name)
        log.append(TOPICS.name(Topic.ROLLOUT_EVENTS), b"k", ROLLOUT_EVENTS.encode(given_up), (), 0)
    report = audited(log)
    assert report.missing == []
    assert report.episodes.terms["displaced"] == 1


def place(index: int, member: int, *, size: int = 2) -> GroupRef:
    """Of a member of a training group."""
    return GroupRef(id=f"{RUN_HASH}{index:016x}", size=size, member=member, index=index)


def test_an_episode_whose_place_another_took_is_displaced() -> None:
    """The real one of a rollout that was given up too soon: its group closed without it, as its reason says there."""
    streams = small_run()
    group = place(3, 0, size=1)
    ask(streams, 50, group, Purpose.TRAIN)
    streams.feed(event(rollout(50), RolloutState.GIVEN_UP, group=group, attempt_id="0000"), *attempt(50, group))
    report = audited(memory_log(streams))
    assert (report.episodes.terms["displaced"], report.missing) == (1, [])


def test_a_dead_letter_of_a_request_points_at_no_record() -> None:
    """A gateway's: it lies on no topic. One that points past a topic's end is named."""
    log = memory_log(run())
    dead, calls = TOPICS.name(Topic.DEAD_LETTERS), TOPICS.name(Topic.LLM_CALLS)
    for topic in ("http", calls):
        origin = Record(topic=topic, partition=0, offset=999, key=None, value=None)
        log.append(dead, None, b"{}", dead_letter_headers(origin, stage="llm_gateway", reason="x"), 0)
    assert audited(log).missing == [f"dead letter of a record that is not there: {calls}/0/999"]
