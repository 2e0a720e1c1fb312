"""A poison record on any topic ends no process: mutants of each topic at each program that reads it.

POISON_MUTANTS=300 makes as many of each topic as the promise says; each test feeds them to the reader's own loop and
then a good record, which must be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests import poison
from tests.consumers.engine.bench import WEIGHTS_TOPIC, Bench
from tests.fake_engine.weights import write_version
from tests.memory_log import MemoryLog
from tests.poison import GOOD, mutants
from tests.producers.keys import RUN_HASH as RUNNER_HASH
from tests.producers.runner.rig import TOPICS, Rig
from tests.producers.tasks.world import World
from tests.served.served_proof import find_proof
from tests.serving import until
from tests.streams.make import RUN_HASH, Streams, config
from tests.streams.test_order import RAW
from tests.versions import claim, label, manifest
from tracegrad.compose.run.report import report_lines
from tracegrad.consumers.audit.account import audit
from tracegrad.consumers.views.processes import process_lines
from tracegrad.consumers.views.results import results_of
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.tail import as_json, as_text
from tracegrad.consumers.views.terminal import ArrivalLines, StepLines
from tracegrad.consumers.views.watch import fold_present, fold_processes
from tracegrad.producers.llm_gateway.engines.generate import KnownVersions
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import DEAD_LETTERS, RECORDS_REFUSED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.folds import build_fold
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.batches import OpenBatch
from tracegrad.trainer.batch.groups import GroupLimits
from tracegrad.trainer.config import TrainerHandles
from tracegrad.trainer.store.policy_log import PolicyLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

ONLY_READ_BY_TASKS = (Topic.TRAINING_STEPS, Topic.WEIGHT_ACKS, Topic.PROCESS_STATUS)
GOLDEN_RUN = RunHash("1f2e3d4c")
LAST_EPOCH = 999_999_999
"""A greater claim of a mutant's would void what follows, as is its right."""


def of_run(topic: Topic, run: str = GOLDEN_RUN, *, good: bool = False) -> list[Record]:
    """The topic's mutants, or its good records, as records of this run: those of others are not looked at closely."""
    name = TOPICS.name(topic)
    good_ones = [Record(topic=name, partition=0, offset=at, key=b"policy", value=v) for at, v in enumerate(GOOD[topic])]
    return [
        replace(one, partition=0, value=one.value and one.value.replace(GOLDEN_RUN.encode(), run.encode()))
        for one in (good_ones if good else mutants(topic, name))
    ]


def append(log: MemoryLog, *records: Record) -> None:
    """As somebody wrote them."""
    for record in records:
        log.append(record.topic, record.key, record.value, record.headers, record.partition)


def log_with(*topics: Topic, run: str = GOLDEN_RUN) -> MemoryLog:
    """A run's topics, these with their mutants."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    for topic in topics:
        append(log, *of_run(topic, run))
    return log


def dead_letters(log: MemoryLog, topic: Topic) -> list[Record]:
    """Those of a topic."""
    letters = log.records(TOPICS.name(Topic.DEAD_LETTERS))
    return [letter for letter in letters if dead_letter_fields(letter.headers)["topic"] == TOPICS.name(topic)]


def is_final(record: Record, rollout: str) -> bool:
    """Whether it is the rollout's final event."""
    with contextlib.suppress(RecordError):
        event = ROLLOUT_EVENTS.decode(record.value)
        return event.rollout_id == rollout and event.is_final
    return False


def test_mutants_reach_what_lies_behind_the_decoder() -> None:
    """Of each topic some decode and some do not; the same ones again and again."""
    for topic in GOOD:
        values = [record.value for record in mutants(topic, "t", 40)]
        assert values == [record.value for record in mutants(topic, "t", 40)]
        lines = [as_text(topic, record) for record in mutants(topic, "t", 40)]
        num_undecodable = sum("undecodable" in line for line in lines)
        assert topic is Topic.DEAD_LETTERS or 0 < num_undecodable < 36, topic


@pytest.mark.parametrize("topic", [topic for stage in STREAMS for topic in INPUTS[stage]], ids=str)
def test_streams(topic: Topic) -> None:
    """Whatever is on an input, what follows from it is folded to its end by all stages; and the good run beside it."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    for record in of_run(topic, RUN_HASH):
        streams.append(topic, record.value, record.key)
        streams.tick(0.0)
    streams.tick(1e3, 2e3, 1e6, 2e6)
    for raw_topic, value, _ in RAW:
        streams.append(raw_topic, value)
    for good in of_run(topic, RUN_HASH, good=True):
        streams.append(topic, good.value, good.key)
    refused = sum(fold.metrics.value(RECORDS_REFUSED) for fold in (streams.normalize, streams.assemble, streams.credit))
    letters = streams.log.get(Topic.DEAD_LETTERS, [])
    undecodable = {"null_value", "malformed", "undecodable", "unknown_schema"}
    assert sum(dead_letter_fields(letter.headers)["reason"] in undecodable for letter in letters) >= refused > 0


@pytest.mark.parametrize("stage", [Stage.ASSEMBLE, Stage.CREDIT], ids=str)
def test_markers(stage: Stage) -> None:
    """The good ones among them are known afterwards."""
    fold = build_fold(stage, config(), TOPICS)
    assert fold.marker_topic is not None
    fold.restore([*of_run(fold.marker_topic), *of_run(fold.marker_topic, good=True)])
    assert fold._closed  # type: ignore[attr-defined]


def test_weight_sync(tmp_path: Path) -> None:
    """It serves what is sound, whatever names, numbers and claims lie beside it."""
    bench = Bench(tmp_path / "weights")
    for record in mutants(Topic.WEIGHTS, WEIGHTS_TOPIC):
        # Of the mutants' epoch, or all their versions would be void.
        bench.sync._lineage.claim = claim(4)
        bench.sync.fold([record])
        bench.sync.reconcile()
    good = write_version(bench.root, 7, epoch=LAST_EPOCH)
    bench.put(claim(LAST_EPOCH), good)
    bench.look()
    assert (bench.acks()[-1], bench.engine.violations) == (good.label, [])
    assert bench.sync.metrics.value(RECORDS_REFUSED) > 0


async def test_llm_gateway() -> None:
    """Its list of versions goes on."""
    log = log_with(Topic.WEIGHTS)
    metrics = Metrics()
    known = KnownVersions("policy", topics=TOPICS, log=log, metrics=metrics)
    following, num_looks = asyncio.create_task(known.follow()), 0
    for good in (claim(LAST_EPOCH), manifest(7, LAST_EPOCH)):
        log.append(TOPICS.name(Topic.WEIGHTS), b"policy", WEIGHTS.encode(good), (), 0)
    while known.of(label(7, LAST_EPOCH)) is None:
        assert not following.done(), following.exception()
        assert (num_looks := num_looks + 1) < 300, "the good version is not known"
        await known.changed(0.1)
    known.stop.set()
    await following
    assert known.fatal is None
    assert metrics.value(RECORDS_REFUSED) > 0


@pytest.mark.parametrize("topic", [Topic.ROLLOUTS, Topic.ROLLOUT_EVENTS, Topic.EPISODES, *ONLY_READ_BY_TASKS], ids=str)
def test_tasks(topic: Topic, tmp_path: Path) -> None:
    """It goes on asking for rollouts; what no stage reads gets its dead letters here."""
    log = MemoryLog()
    world = World(log, tmp_path)
    append(log, *of_run(topic, world.handles.run_hash))
    num_asked = len(log.records(TOPICS.name(Topic.ROLLOUTS)))
    world.turn()
    world.ack(0)
    for _ in range(poison.NUM // 500 + 3):
        world.turn()
    assert len(log.records(TOPICS.name(Topic.ROLLOUTS))) > num_asked
    refused = world.metrics.value(RECORDS_REFUSED)
    assert refused > 0
    assert (
        len(dead_letters(log, topic))
        == (refused if topic in ONLY_READ_BY_TASKS else 0)
        == world.metrics.value(DEAD_LETTERS)
    )


@pytest.mark.parametrize("topic", [Topic.ROLLOUTS, Topic.ROLLOUT_EVENTS], ids=str)
def test_runner(topic: Topic, tmp_path: Path) -> None:
    """A good rollout behind them is run to its end."""
    (tmp_path / "grade.py").write_text("def grade(task, output, attempt):\n    return 1.0\n")
    with Rig() as rig:
        rig.start_gateways()
        append(rig.memory, *of_run(topic, RUNNER_HASH))
        agent = AgentConfig(command=("true",), cwd=str(tmp_path), concurrency=8)
        rig.start_runner(agent, RewardConfig(grader=f"{tmp_path}/grade.py:grade"), tmp_path)
        rollout = rig.request()
        until(
            lambda: any(is_final(record, rollout) for record in rig.memory.records(TOPICS.name(Topic.ROLLOUT_EVENTS)))
        )
        assert rig.metrics.value(RECORDS_REFUSED) > 0
        if topic is Topic.ROLLOUTS:
            until(lambda: len(dead_letters(rig.memory, topic)) >= rig.metrics.value(RECORDS_REFUSED), 10)


def test_trainers_policy_log(tmp_path: Path) -> None:
    """It claims, announces and hears requests; each record that it cannot read is a dead letter."""
    log = log_with(Topic.WEIGHTS, Topic.TRAINING_STEPS)
    handles = TrainerHandles(run_hash=GOLDEN_RUN, policy="policy", model="", work_dir=str(tmp_path), seed=0)
    metrics = Metrics()
    policy_log = PolicyLog(handles, topics=TOPICS, log=log, writer=log.writer(), metrics=metrics)
    policy_log.claim()
    policy_log.announce(manifest(1, policy_log.epoch))
    newest = next(value for value in GOOD[Topic.TRAINING_STEPS] if b'"training_step"' in value)
    assert policy_log.training_steps(newest)[-1] == TRAINING_STEPS.decode(newest)
    policy_log.close()
    assert len(dead_letters(log, Topic.WEIGHTS)) == metrics.value(RECORDS_REFUSED) > 0


def test_trainers_batches() -> None:
    """Each is judged; one that names no group fills no batch."""
    metrics = Metrics()
    batch = OpenBatch(
        begin_offset=0,
        num_groups=poison.NUM + 1,
        consumed=(),
        limits=GroupLimits(policy="policy", vocabulary=100),
        recipe=Recipe(),
        refusals=Refusals(TOPICS, metrics, stops=True),
    )
    for record in of_run(Topic.TRANSITIONS):
        batch.add_record(record)
    closed = batch.close(run=GOLDEN_RUN, version=10, max_staleness=10)
    assert closed.next_offset == poison.NUM
    assert len(closed.dead) >= metrics.value(RECORDS_REFUSED) > 0


class _Trusting(KeyRing):
    """As if a program of the run had written each of them."""

    def refusal(self, topic: Topic, record: Record) -> Reason | None:
        return None


def _views(log: MemoryLog, topics: Sequence[Topic]) -> None:
    state = RunState(TOPICS, GOLDEN_RUN, "policy")
    fold_present(log, TOPICS, state, topics)
    fold_processes(log, TOPICS, state)
    steps, arrivals = StepLines(), ArrivalLines()
    for now_s in (0.0, 1e3):
        assert all(event.text is not None for lines in (steps, arrivals) for event in lines.news(state, now_s))
    process_lines(state, 1_700_000_000_000)
    json.dumps(results_of(state, run="x").steps)


@pytest.mark.parametrize("topic", list(GOOD), ids=str)
def test_views_audit_and_proof(topic: Topic) -> None:
    """What people look at is shown, whatever lies there."""
    log = log_with(topic)
    append(log, *of_run(topic, good=True))
    _views(log, [topic])
    for record in log.records(TOPICS.name(topic)):
        assert "\n" not in as_text(topic, record)
        json.dumps(as_json(topic, record))
    report_lines(audit(log, TOPICS, GOLDEN_RUN, "policy", ring=_Trusting(GOLDEN_RUN, {})))
    assert find_proof(log, TOPICS, GOLDEN_RUN, "policy")
