"""Ownership of a policy: claims, fencing, what every reader ignores."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import pytest

from tests.consumers.audit.small_run import step
from tests.memory_log import MemoryLog
from tests.versions import RUN, claim, manifest
from tracegrad.schemas.errors import FencedError, RecordError, UnavailableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.protocol import LogWriter, Offsets, Position
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.training import ADVANTAGES, CallAdvantage
from tracegrad.schemas.records.weights import WEIGHTS, Lineage, RollbackRequest
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer.config import TrainerHandles
from tracegrad.trainer.store.policy_log import PolicyLog

TOPICS = Topics(run=RunName("mine"))
WEIGHTS_TOPIC = TOPICS.name(Topic.WEIGHTS)


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """With a weights topic, and one for what cannot be read of it."""
    memory_log.create_topic(WEIGHTS_TOPIC, 1)
    memory_log.create_topic(TOPICS.name(Topic.DEAD_LETTERS), 1)
    return memory_log


def ownership(log: MemoryLog, *, policy: str = "policy", writer: LogWriter | None = None) -> PolicyLog:
    """A starting trainer's."""
    handles = TrainerHandles(run_hash=RUN, policy=policy, model="", work_dir="", seed=0)
    return PolicyLog(handles, topics=TOPICS, log=log, writer=writer or log.writer(), metrics=Metrics())


def lineage(log: MemoryLog) -> Lineage:
    """What any reader makes of the topic."""
    folded = Lineage("policy")
    for record in log.records(WEIGHTS_TOPIC):
        folded.fold(WEIGHTS.decode(record.value))
    return folded


def test_each_start_claims_the_next_epoch(log: MemoryLog) -> None:
    """From 1; other policies count for themselves."""
    for policy, epoch in (("policy", 1), ("other", 1), ("policy", 2)):
        owner = ownership(log, policy=policy)
        owner.claim()
        assert owner.epoch == epoch


def test_higher_claim_fences_the_first_trainer(log: MemoryLog) -> None:
    """It learns so before it announces anything else."""
    first, second = ownership(log), ownership(log)
    first.claim()
    first.announce(manifest(1, 1))
    second.claim()
    for watch in (first.look, first.check):
        with pytest.raises(FencedError, match="one trainer per policy"):
            watch()
    second.check()


def test_broker_that_is_away_for_a_while_ends_no_trainer(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """What asks how far the topic reaches waits as what reads and appends does."""
    answer, failures = log.offsets, [UnavailableError("away")] * 2

    def offsets(topic: str) -> Mapping[int, Offsets]:
        if failures:
            raise failures.pop()
        return answer(topic)

    owner = ownership(log)
    monkeypatch.setattr(log, "offsets", offsets)
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    owner.claim()
    assert owner.epoch == 1
    failures += [UnavailableError("away")] * 2
    owner.check()
    assert failures == []


def test_append_that_a_replaced_producer_threw_away_is_made_again(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that lost the brokers fails what it had not sent yet; its successor takes it."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    log.create_topic(TOPICS.name(Topic.TRAINING_STEPS), 1)
    owner = ownership(log)
    log.fail_next(UnavailableError("purged"))
    owner.claim()
    log.fail_next(UnavailableError("purged"))
    owner.announce(manifest(1, 1))
    log.fail_next(UnavailableError("purged"))
    owner.training_step(b"a step")
    assert lineage(log).versions == {1: manifest(1, 1)}
    assert [record.value for record in log.records(TOPICS.name(Topic.TRAINING_STEPS))] == [b"a step"]
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=b"garbage", partition=0)
    log.fail_next(UnavailableError("purged"))
    owner.check()
    assert [record.value for record in log.records(TOPICS.name(Topic.DEAD_LETTERS))] == [b"garbage"]


def test_advantages_are_told_once_a_group_and_those_that_do_not_fit_are_left_out(
    log: MemoryLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However many groups a step has; what a replaced client threw away is appended again."""
    monkeypatch.setattr("tenacity.nap.time.sleep", lambda _: None)
    log.create_topic(TOPICS.name(Topic.ADVANTAGES), 1)
    calls = (CallAdvantage(call_id="c", mean=0.5, low=0.0, high=1.0, num_tokens=2),)
    log.fail_next(RecordError("too large", reason="too_large"))
    log.fail_next(UnavailableError("purged"))
    ownership(log).advantages(step(1), ((f"g{number}", calls) for number in range(40)))
    told = [ADVANTAGES.decode(record.value) for record in log.records(TOPICS.name(Topic.ADVANTAGES))]
    assert sorted(one.group_id for one in told) == sorted(f"g{number}" for number in range(1, 40))
    assert {(one.step, one.epoch, one.calls) for one in told} == {(1, 1, calls)}
    assert "the advantages of group g0 are not told: too large" in caplog.text


def test_few_advantages_are_under_way_at_once(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """The writer's queue is bounded: a full one would end the trainer for a record that nothing is built on."""
    log.create_topic(TOPICS.name(Topic.ADVANTAGES), 1)
    under_way, begun = set[Future[Position]](), list[Future[Position]]()

    class Patient(Future[Position]):
        """Acknowledged as soon as somebody waits for it."""

        def done(self) -> bool:
            if self in under_way:
                under_way.remove(self)
                self.set_result(Position(TOPICS.name(Topic.ADVANTAGES), 0, 0))
            return True

    def append(*_: Any, **__: Any) -> Future[Position]:
        begun.append(Patient())
        under_way.add(begun[-1])
        assert len(under_way) <= 16
        return begun[-1]

    writer = log.writer()
    monkeypatch.setattr(writer, "append", append)
    ownership(log, writer=writer).advantages(step(1), ((f"g{number}", ()) for number in range(40)))
    assert len(begun) == 40 and not under_way


def test_manifest_after_a_higher_claim_is_void_and_its_writer_stops(log: MemoryLog) -> None:
    """Even when the claim came between the writer's last look and its append."""
    first, second = ownership(log), ownership(log)
    first.claim()
    first.check()
    second.claim()
    with pytest.raises(FencedError):
        first.announce(manifest(1, 1))
    second.announce(manifest(1, 2))
    assert lineage(log).versions == {1: manifest(1, 2)}


def test_first_claim_of_a_number_owns_it(log: MemoryLog) -> None:
    """Two trainers that start at once: one of them stops."""
    rival = WEIGHTS.encode(claim(trainer_id="rival"))
    inner = log.writer()

    class RivalFirst:
        """A writer before whose first record the rival's lands."""

        def __init__(self) -> None:
            self.append = self._append

        def _append(self, topic: str, **record: object) -> object:
            inner.append(topic, key=b"policy", value=rival, partition=0)
            self.append = inner.append  # type: ignore[assignment]
            return inner.append(topic, **record)  # type: ignore[arg-type]

    late = ownership(log, writer=RivalFirst())  # type: ignore[arg-type]
    with pytest.raises(FencedError):
        late.claim()
    owner = lineage(log).claim
    assert owner is not None
    assert owner.trainer_id == "rival"


def test_unreadable_records_are_passed_over(log: MemoryLog) -> None:
    """Somebody's garbage must not stop training."""
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=b"garbage", partition=0)
    owner = ownership(log)
    owner.claim()
    assert owner.epoch == 1
    owner.check()


def test_rollback_requests_are_given_once_and_in_order(log: MemoryLog) -> None:
    """Those below the checkpoint's offset are done, and a copy of any asks for nothing."""
    owner = ownership(log)
    for version in (4, 5, 6):
        request = RollbackRequest(
            policy="policy", run=RUN, to_version=version, request_id=f"r{version}", requested_by="me"
        )
        log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(request), partition=0)
        # Somebody appends each a second time: it is the same request.
        log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(request), partition=0)
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=log.records(WEIGHTS_TOPIC)[0].value, partition=0)
    owner.claim()
    found = [owner.next_request(1) for _ in range(3)]
    assert [(item[0], item[1].to_version) for item in found if item] == [(2, 5), (4, 6)]
    assert found[2] is None
