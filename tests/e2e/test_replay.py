"""A replay of a finished run's raw topics, as a new run, gives the same transitions."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest

from tests.e2e.chaos_run import ChaosRun
from tests.streams.shell.worker_bench import Worker
from tests.streams.shell.worker_process import Plan
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.kafka.positions import begin_run, positions
from tracegrad.compose.kafka.topic_admin import create_topics, plan_topics
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.ids import RunName, run_hash
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import STREAMS, Topic, Topics
from tracegrad.streams.shell.config import StreamsHandles

REPLAY = RunName("replay")


def group_values(log: Log, topics: Topics) -> dict[str, bytes]:
    """Group id -> the body of its transitions record."""
    found: dict[str, bytes] = {}
    for record in read_to_end(log, topics.name(Topic.TRANSITIONS)):
        assert record.value is not None
        found.setdefault(decode_group(record.value)[0].group_id, record.value)
    return found


def replay(wiring: Wiring, log: KafkaLog, bootstrap_servers: str, folder: Path, wanted: set[str]) -> dict[str, bytes]:
    """Runs the three stages over all raw records of the run; the bodies by group id."""
    topics = msgspec.structs.replace(wiring.topics, run=REPLAY)
    settings = wiring.settings
    create_topics(log, topics, plan_topics(topics, policies=(settings.policy.name,), kafka=settings.kafka))
    starts = begin_run(log, topics, start="beginning")
    assert not any(positions(log, topics, starts, max_closed_ids=0).values())
    rules = msgspec.structs.replace(
        wiring.stream_rules(),
        run_hash=run_hash(REPLAY, "2026-01-01T00:00:00.000+00:00"),
        selected=(wiring.record.hash,),
    )
    handles = StreamsHandles(bootstrap_servers=bootstrap_servers, data_dir=str(folder), partitions=4)
    plans = {stage: Plan(rules=rules, handles=handles, stage=stage, topics=topics) for stage in STREAMS}
    workers = [Worker(plan, folder / f"replay-{stage.value}.log") for stage, plan in plans.items()]
    try:
        until = time.monotonic() + 150
        while not wanted <= (found := group_values(log, topics)).keys():
            assert time.monotonic() < until, f"the replay lacks groups {sorted(wanted - found.keys())[:5]}"
            time.sleep(1)
        assert [worker.terminate() for worker in workers] == [0, 0, 0]
    finally:
        for worker in workers:
            worker.kill()
    return found


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.kafka
@pytest.mark.torch
@pytest.mark.timeout(1500)
def test_a_replay_of_the_raw_topics_gives_equal_transitions(chaos_run: ChaosRun, tmp_path: Path) -> None:
    """Other worker, other partition order, no kills; the same bytes."""
    wiring = chaos_run.run.wiring
    with chaos_run.broker() as bootstrap_servers:
        log = KafkaLog(bootstrap_servers)
        recorded = group_values(log, wiring.topics)
        replayed = replay(wiring, log, bootstrap_servers, tmp_path, set(recorded))
    assert recorded, "expected transitions, got none"
    assert [id_ for id_, value in recorded.items() if replayed[id_] != value] == []
