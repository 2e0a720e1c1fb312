"""What no key of the run vouches for changes nothing that any reader says or does, and is counted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest

from tests.consumers.audit.small_run import KEY, RING, long_run, memory_log, small_run
from tests.forgery import OTHER, OTHER_KEY, forged
from tests.memory_log import MemoryLog
from tests.served.served_proof import find_proof
from tests.streams.make import RUN_HASH, TOPICS, Streams, config
from tracegrad.consumers.audit.account import audit
from tracegrad.consumers.engine import weight_sync
from tracegrad.consumers.engine.weight_sync import WeightSync, WeightSyncHandles
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import StepLines
from tracegrad.consumers.views.watch import fold_present
from tracegrad.producers.llm_gateway.engines.generate import KnownVersions
from tracegrad.producers.runner.journal import Journal
from tracegrad.producers.tasks.admission import TaskAdmission
from tracegrad.producers.tasks.config import PaceConfig, TasksConfig, TasksHandles
from tracegrad.schemas.errors import FencedError
from tracegrad.schemas.fold import Emission
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.follow import follow, read_to_end
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.mac import SIGNED, KeyRing
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.metrics import UNVERIFIED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.streams.folds import build_fold
from tracegrad.streams.shell.assignment import Assignment
from tracegrad.streams.shell.poison import PoisonList
from tracegrad.trainer.config import TrainerHandles
from tracegrad.trainer.store.policy_log import PolicyLog

NUM_FORGED = 1_000
"""On each signed topic."""
RUN = RunHash(RUN_HASH)
SELECTING = KeyRing(RUN, {RUN: KEY, OTHER: OTHER_KEY})
"""Of the attacked run, which selects another one."""


def attacked(streams: Streams, num_forged: int = NUM_FORGED) -> MemoryLog:
    """The run's log with forged records before and behind its own, on every signed topic."""
    log, genuine = MemoryLog(), memory_log(streams)
    wishes = list(forged(num_forged * len(SIGNED), RING))
    for topic in Topic:
        name = TOPICS.name(topic)
        log.create_topic(name)
        mine = [wish for wish in wishes if wish[0] is topic]
        for _, key, value, headers in mine[::2]:
            log.append(name, key, value, headers, 0)
        for record in genuine.records(name):
            log.append(name, record.key, record.value, record.headers, 0)
        for _, key, value, headers in mine[1::2]:
            log.append(name, key, value, headers, 0)
    for group in genuine.groups:
        log.groups[group] = {where: log.offsets(where.topic)[0].end for where in genuine.groups[group]}
    return log


def copied(streams: Streams) -> MemoryLog:
    """The run's log with every record of its signed topics once more at their ends, the oldest last."""
    log = attacked(streams, 0)
    for name in (TOPICS.name(topic) for topic in SIGNED):
        for record in [*log.records(name), *reversed(log.records(name))]:
            log.append(name, record.key, record.value, record.headers, record.partition)
    return log


def guarded(log: Log, metrics: Metrics | None = None) -> SignedLog:
    """As the rooms are handed it."""
    return SignedLog(log, SELECTING, topics=TOPICS, metrics=metrics or Metrics())


def by_normalize(log: Log, folder: Path) -> Any:
    """The facts that a worker of the stage emits."""
    emitted: list[tuple[Topic, bytes | None, bytes]] = []

    async def emit(emission: Emission, *_: Any, **__: Any) -> None:
        emitted.extend((output.topic, output.key, output.value) for output in emission.outputs)

    inputs = [TOPICS.name(topic) for topic in INPUTS[Stage.NORMALIZE] if topic in SIGNED]
    stubs: Any = SimpleNamespace(emit=emit, is_current=lambda _: True)
    assignment = Assignment(
        fold=build_fold(Stage.NORMALIZE, config(selected=(OTHER,)), TOPICS),
        topics=TOPICS,
        log=log,
        seam=stubs,
        ledger=Ledger(),
        emissions=stubs,
        metrics=Metrics(),
        poison=PoisonList(folder, Stage.NORMALIZE),
        liveness=stubs,
        fail=lambda error: pytest.fail(str(error)),
        is_ready=True,
    )

    # Faust reads past the log's own readers.
    raw: Any = getattr(log, "_log", log)
    for record in (record for name in inputs for record in raw.records(name)):
        fields = {name: getattr(record, name) for name in ("topic", "partition", "offset", "key", "value")}
        message = SimpleNamespace(**fields, headers=list(record.headers), timestamp=None)
        asyncio.run(assignment.on_message(message))
    return emitted


def by_tasks(log: Log, folder: Path) -> Any:
    """Where admission thinks that the run stands."""
    (folder / "tasks.jsonl").write_text(json.dumps({"id": "1", "input": "?"}) + "\n")
    handles = TasksHandles(
        stops_by_cause=True,
        engine_ids=("engine-0",),
        run_hash=RUN,
        policy="policy",
        seed=0,
        steps=9,
        groups_per_step=1,
        concurrency=1,
        time_limit_s=9.0,
        rewards_awaited=(),
        episode_wait_s=9.0,
    )
    given = TasksConfig(file=str(folder / "tasks.jsonl")), PaceConfig(staleness=0), handles
    admission = TaskAdmission(*given, topics=TOPICS, writer=log.writer(), metrics=Metrics())
    with contextlib.closing(follow(log, list(admission.codecs))) as chunks:
        for chunk in chunks:
            admission.fold(chunk)
            if chunk.is_caught_up:
                return admission.state.progress(), admission.state.held_out.by_number


def by_journal(log: Log, folder: Path) -> Any:
    """What the runner knows of its rollouts."""
    heard: list[str] = []

    async def follow_events() -> None:
        journal = Journal(log, TOPICS, RUN, starts=None, stop=threading.Event(), metrics=Metrics())
        following = asyncio.create_task(journal.follow(lambda event: heard.append(event.rollout_id)))
        await asyncio.wait_for(journal.caught_up(), 20)
        journal._stop.set()
        await following
        journal.close()

    asyncio.run(follow_events())
    return heard


def by_llm_gateway(log: Log, folder: Path) -> Any:
    """Where the newest version lies whose labels are accepted."""

    async def follow_weights() -> Any:
        known = KnownVersions("policy", topics=TOPICS, log=log, metrics=Metrics())
        following = asyncio.create_task(known.follow())
        while known.folder() is None:
            await known.changed(0.05)
        known.stop.set()
        await following
        return known.folder()

    return asyncio.run(follow_weights())


def by_weight_sync(log: Log, folder: Path) -> Any:
    """The versions among which the engine's is chosen."""
    stop, seen = threading.Event(), list[int]()

    class Looking(WeightSync):
        def reconcile(self) -> None:
            seen.extend(self._lineage.versions)
            stop.set()

    handles = WeightSyncHandles(policy="policy", engine_id="engine-0", engine_url="", weight_root="/")
    with patch.object(weight_sync, "WeightSync", Looking):
        weight_sync.run(handles, topics=TOPICS, log=log, stop=stop, metrics=Metrics())
    return seen


def by_trainer(log: Log, folder: Path) -> Any:
    """The epoch that a starting trainer claims, and what it makes of what lies before; or that it may not start."""
    handles = TrainerHandles(run_hash=RUN, policy="policy", model="", work_dir="", seed=0)
    own = PolicyLog(handles, topics=TOPICS, log=log, writer=log.writer(), metrics=Metrics())
    try:
        own.claim()
        own.check()
    except FencedError as error:
        return str(error)
    requests = [found and found[1] for found in (own.next_request(0) for _ in range(3))]
    return own.epoch, list(own.lineage.versions), requests, own.lineage.held_out.best


def by_views(log: Log, folder: Path) -> Any:
    """What the terminal shows."""
    state = RunState(TOPICS, RUN, "policy")
    fold_present(log, TOPICS, state, StepLines.topics)
    known = state.steps, state.newest_step, state.serving, list(state.open_attempts), state.num_waiting_groups
    return *known, state.held_out.by_number


def by_proof(log: Log, folder: Path) -> Any:
    """The version that `demo` recomputes."""
    proof = find_proof(log, TOPICS, RUN, "policy")
    return proof if isinstance(proof, str) else (proof.version, len(proof.calls))


READERS: dict[str, Callable[[Log, Path], Any]] = {
    "normalize": by_normalize,
    "tasks": by_tasks,
    "runner": by_journal,
    "llm_gateway": by_llm_gateway,
    "weight_sync": by_weight_sync,
    "trainer": by_trainer,
    "views": by_views,
    "proof": by_proof,
}
"""Everybody who reads a signed topic, but the audit."""


@pytest.mark.parametrize("reader", READERS)
def test_forged_records_change_nothing_that_a_reader_knows(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And they would: by a log that judges nothing the same reader is told something else."""
    monkeypatch.setattr("tests.served.served_proof.Path.is_dir", lambda self: True)
    streams, ask = small_run(), READERS[reader]
    clean = ask(guarded(attacked(streams, 0)), tmp_path)
    assert clean, "expected the reader to have read something"
    assert ask(guarded(attacked(streams)), tmp_path) == clean
    assert ask(attacked(streams), tmp_path) != clean


@pytest.mark.parametrize("reader", sorted(READERS.keys() - {"normalize"}))
def test_copies_change_nothing_that_a_reader_knows(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may append can copy a record with its MAC; what it says was said. Normalize's facts are once in an
    episode, however often they come (streams/test_order.py)."""
    monkeypatch.setattr("tests.served.served_proof.Path.is_dir", lambda self: True)
    streams, ask = long_run(tmp_path), READERS[reader]
    found, expected = (ask(guarded(log), tmp_path) for log in (copied(streams), attacked(streams, 0)))
    assert (set(found) == set(expected)) if reader == "runner" else (found == expected)


def test_copies_change_nothing_that_the_audit_says(tmp_path: Path) -> None:
    """They are no steps, versions, epochs or rewards of their own."""
    streams = long_run(tmp_path)
    found, expected = (audit(log, TOPICS, RUN, "policy", ring=RING) for log in (copied(streams), attacked(streams, 0)))
    assert found == expected


def test_each_forged_record_is_counted_with_its_reason() -> None:
    """And each genuine one is given."""
    streams, metrics = small_run(), Metrics()
    log = guarded(attacked(streams), metrics)
    for topic in SIGNED:
        found = [record.value for record in read_to_end(log, TOPICS.name(topic))]
        assert found == streams.values(topic)
    num_forged = NUM_FORGED * len(SIGNED)
    assert metrics.value(UNVERIFIED) == num_forged
    reasons = {reason: sum(metrics.value(UNVERIFIED, topic, reason) for topic in SIGNED) for reason in Reason}
    assert reasons[Reason.UNSIGNED] + reasons[Reason.MISMATCH] == num_forged and reasons[Reason.UNSIGNED]


def test_the_audit_names_each_forged_record_and_counts_without_it() -> None:
    """An attacker spoils neither the accounting nor the run's exit status. Of `advantages` it counts nothing."""
    streams = small_run()
    clean, log = memory_log(streams), attacked(streams)
    report, expected = (audit(which, TOPICS, RUN, "policy", ring=SELECTING) for which in (log, clean))
    num_read = NUM_FORGED * len(SIGNED - {Topic.ADVANTAGES})
    assert (report.num_unverified, expected.num_unverified) == (num_read, 0)
    assert all(line.endswith((": unsigned", ": mismatch")) for line in report.unverified)
    assert msgspec.structs.replace(report, unverified=[], num_unverified=0) == expected


def test_a_record_whose_header_was_stripped_is_missed_and_named() -> None:
    """What the run wrote itself counts no more without its MAC, and the audit says both."""
    streams = small_run()
    log = memory_log(streams)
    name = TOPICS.name(Topic.ROLLOUT_EVENTS)
    first = log.records(name)[0]
    log._topics[name][0].records[0] = msgspec.structs.replace(first, headers=())
    report = audit(log, TOPICS, RUN, "policy", ring=RING)
    assert report.unverified == [f"{name}/0/0: unsigned"] and not report.is_complete
