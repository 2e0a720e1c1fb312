"""A whole small run on a MemoryLog, made by the real folds: two trained groups, one waiting, validation, a retry.

`long_run` goes on: what a deadline closed, what was given up, a rollback, a trainer that was started again.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec

from tests.memory_log import MemoryLog
from tests.streams import make
from tests.streams.make import RUN_HASH, TOPICS, Item, Streams, rollout
from tests.versions import RUN, ack, claim, held_out, manifest, sampled_by, training_step
from tracegrad.consumers.audit.account import Report, audit
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, RunHash
from tracegrad.schemas.log.mac import MAC_HEADER, SIGNED, KeyRing
from tracegrad.schemas.log.protocol import Headers, Log, Position, Record, TopicPartition
from tracegrad.schemas.records.calls import CallsClosed, Purpose
from tracegrad.schemas.records.rollouts import ROLLOUTS, GroupRef, RolloutEvent, RolloutRequest, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, hash_batch
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, RollbackRequest
from tracegrad.schemas.topics import INPUTS, REGISTRY, STREAMS, Topic
from tracegrad.trainer.store.durable import describe_files

KEY = bytes(range(32))
"""The run's."""
RING = KeyRing(RunHash(RUN_HASH), {RunHash(RUN_HASH): KEY})
_SIGNED = {TOPICS.name(topic): topic for topic in SIGNED | {Topic.LLM_CALLS}}


class SigningLog(MemoryLog):
    """What is appended is signed, as by the run's programs; `MemoryLog.append(log, ...)` appends what others write."""

    def append(
        self,
        topic: str,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
        partition: int | None,
        timestamp_ms: int | None = None,
    ) -> Future[Position]:
        if topic in _SIGNED:
            own = [header for header in headers if header[0] != MAC_HEADER]
            headers = (*own, RING.sign(_SIGNED[topic], key, value))
        return super().append(topic, key, value, headers, partition, timestamp_ms)


def attempt(
    number: int, group: GroupRef, purpose: Purpose = Purpose.TRAIN, version: int = 0, epoch: int = 1, **end: Any
) -> list[Item]:
    """One good attempt of rollout `number`: two calls, an agent span, a tool span, a reward."""
    own = rollout(number)
    trace = own + "a001"
    settings = {"purpose": purpose, "versions": (sampled_by(version, epoch),)}
    first = make.call(f"{number}a", own, [1, 2], [3, 4], **settings)
    second = make.call(
        f"{number}b", own, [5], [6], parent_call_id=make.call_id(f"{number}a"), shared_tokens=4, **settings
    )
    return [
        make.event(own, RolloutState.STARTED, group=group, purpose=purpose),
        first,
        second,
        make.otlp(make.agent_span(trace, 1, "calculator"), make.tool_span(trace, 2, parent=1)),
        make.closed(own, [first, second]),
        make.reward(own, float(number % 2)),
        make.event(own, group=group, spans_exported=2, purpose=purpose, **end),
    ]


def aborted_once(number: int, group: GroupRef) -> list[Item]:
    """An attempt that the gateway lost, before the good one."""
    own = rollout(number)
    lost = make.call(f"{number}x", own, [1, 2], [9], attempt_id="b002", versions=(sampled_by(0),))
    return [
        make.event(own, RolloutState.STARTED, group=group, attempt_id="b002"),
        lost,
        CallsClosed(rollout_id=own, attempt_id="b002", outcomes=make.closed(own, [lost]).outcomes),
        make.event(own, RolloutState.ABORTED, group=group, attempt_id="b002", is_final=False, attempt_number=0),
    ]


def small_run(weights: Path | None = None, **rules: Any) -> Streams:
    """The run, folded to its end. `weights`: where its versions' folders are made; None: they have none. `rules`: keys
    of `[streams]`."""
    streams = Streams(make.config(**rules))
    number = 0
    for index in range(3):
        for member in range(2):
            group = GroupRef(id=f"{RUN_HASH}{index:016x}", size=2, member=member, index=index)
            ask(streams, number, group, Purpose.TRAIN)
            if number == 1:
                streams.feed(*aborted_once(number, group))
            items = attempt(number, group, version=min(index, 1))
            streams.feed(*[_later_attempt(item) if number == 1 else item for item in items])
            number += 1
    for index in range(2):
        group = GroupRef(id=f"{RUN_HASH}{'e' * 15}{index}", size=1, member=0, index=index)
        ask(streams, number, group, Purpose.VALIDATION)
        streams.feed(*attempt(number, group, Purpose.VALIDATION, version=2 * index))
        number += 1
    streams.append(Topic.LLM_CALLS, b"\xc1 no call")
    _train(streams, weights)
    score(streams, 0, 0.0, version=0)
    score(streams, 1, 1.0, version=2, step=2)
    return streams


def long_run(weights: Path) -> Streams:
    """The small run, and more of what happens to one."""
    streams = small_run(weights)
    publish(streams, 3, weights, base_version=1, step=2, next_offset=2, asked=True)
    for member in range(2):
        number = 20 + member
        group = GroupRef(id=f"{RUN_HASH}{3:016x}", size=2, member=member, index=3)
        ask(streams, number, group, Purpose.TRAIN)
        if member == 0:
            streams.feed(*attempt(number, group, version=3, spans_lost=1))
        else:
            given_up = make.event(rollout(number), RolloutState.GIVEN_UP, group=group, attempt_id=GIVEN_UP_ATTEMPT)
            streams.feed(given_up)
    streams.tick(0.0, 5.0)
    streams.append(Topic.WEIGHTS, WEIGHTS.encode(claim(2)))
    publish(streams, 4, weights, epoch=2, step=3, next_offset=3)
    append_step(streams, msgspec.structs.replace(step(3, epoch=2), version=4))
    group = GroupRef(id=f"{RUN_HASH}{'e' * 15}2", size=1, member=0, index=2)
    ask(streams, 22, group, Purpose.VALIDATION)
    streams.feed(*attempt(22, group, Purpose.VALIDATION, version=4, epoch=2))
    score(streams, 2, 0.5, version=4, step=3)
    return streams


def score(streams: Streams, number: int, mean: float, *, version: int, step: int = 0) -> None:
    """A held-out pass, begun and scored."""
    for made in (
        held_out(number, since=version, step=step),
        held_out(number, mean, version=version, since=version, step=step),
    ):
        streams.append(Topic.WEIGHTS, WEIGHTS.encode(made))


def publish(streams: Streams, number: int, weights: Path | None, *, asked: bool = False, **fields: Any) -> None:
    """A version, acknowledged; `asked`: by a rollback."""
    made = manifest(number, **fields)
    if weights is not None:
        folder = weights / made.label
        folder.mkdir(parents=True)
        for name in ("config.json", "model.safetensors"):
            (folder / name).write_text(f"{name} of {made.label}")
        made = msgspec.structs.replace(made, uri=str(folder), files=describe_files(folder))
    if asked:
        request = RollbackRequest(
            policy="policy", run=RUN, to_version=made.base_version, request_id=f"r{number}", requested_by="test"
        )
        streams.append(Topic.WEIGHTS, WEIGHTS.encode(request))
    streams.append(Topic.WEIGHTS, WEIGHTS.encode(made))
    streams.append(Topic.WEIGHT_ACKS, WEIGHT_ACKS.encode(ack(number, made.epoch)))


def _later_attempt(item: Item) -> Item:
    """Events of a second try."""
    return msgspec.structs.replace(item, attempt_number=1) if isinstance(item, RolloutEvent) else item


def ask(streams: Streams, number: int, group: GroupRef, purpose: Purpose) -> None:
    """The request for a rollout."""
    streams.append(Topic.ROLLOUTS, ROLLOUTS.encode(request_of(rollout(number), group, purpose)))


def request_of(own: str, group: GroupRef, purpose: Purpose = Purpose.TRAIN) -> RolloutRequest:
    """For the rollout of this id."""
    return RolloutRequest(rollout_id=own, group=group, task_id="task-1", input="?", policy="policy", purpose=purpose)


def _train(streams: Streams, weights: Path | None) -> None:
    streams.append(Topic.WEIGHTS, WEIGHTS.encode(claim()))
    for number in range(3):
        publish(streams, number, weights, next_offset=number)
    for number in (1, 2):
        append_step(streams, step(number))


def append_step(streams: Streams, trained: TrainingStep) -> None:
    """The step, of the record that lies in its interval."""
    value = streams.values(Topic.TRANSITIONS)[trained.begin_offset]
    filled = msgspec.structs.replace(
        trained,
        group_ids=(decode_group(value)[0].group_id,),
        batch_hash=hash_batch([(hashlib.sha256(value).digest(), "")]),
    )
    streams.append(Topic.TRAINING_STEPS, TRAINING_STEPS.encode(filled))


def step(number: int, groups: tuple[str, ...] = (), *, epoch: int = 1) -> TrainingStep:
    """A step of one group."""
    return training_step(
        number,
        epoch=epoch,
        group_ids=groups,
        reward=number / 4,
        reward_parts={"air:tool_success": 0.5},
        num_rollouts=2,
        num_tokens=6,
        tool_success=0.5,
        started_at_ms=1_000 * number,
        ended_at_ms=1_000 * number + 900,
        seconds={"wait": 0.5},
    )


def memory_log(streams: Streams, without: Record | None = None) -> SigningLog:
    """The run on a log, every stage committed to the end; one record may be left out."""
    log = SigningLog()
    for spec in REGISTRY:
        log.create_topic(TOPICS.name(spec.topic))
        for record in streams.log.get(spec.topic, []):
            if record is not without:
                log.append(record.topic, record.key, record.value, record.headers, 0)
    for stage in STREAMS:
        for topic in INPUTS[stage]:
            name = TOPICS.name(topic)
            log.groups[TOPICS.group(stage)][TopicPartition(name, 0)] = log.offsets(name)[0].end
    return log


def records(streams: Streams) -> list[tuple[Topic, Record]]:
    """All of them."""
    return [(topic, record) for topic, kept in streams.log.items() for record in kept]


def audited(run: Streams | Log, **settings: Any) -> Report:
    """The audit of what was folded, or lies there."""
    log = memory_log(run) if isinstance(run, Streams) else run
    return audit(log, TOPICS, RunHash(RUN_HASH), "policy", **({"ring": RING} | settings))
