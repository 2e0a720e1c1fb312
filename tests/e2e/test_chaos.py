"""Every process of a run is killed while work is in flight in it, and nothing is lost, doubled or changed.

All parts are real: broker, gateways, Faust workers, agent hosts, vLLM, trainer. The count at the end is the test's.
"""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable

import pytest

from tests.e2e.chaos_run import MIN_STEPS, ChaosRun
from tests.e2e.counting import Snapshot, count, take
from tests.e2e.live_run import TRACEGRAD
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import STREAMS, Topic

pytestmark = [pytest.mark.e2e, pytest.mark.engine, pytest.mark.kafka, pytest.mark.torch, pytest.mark.timeout(1500)]
STATEFUL = ("trainer", "streams-assemble-0", "streams-credit-0", "runner", "tasks", "weight-sync", "llm", "kafka")
OTHERS = ("otlp", "agent-host", "streams-normalize-0", *(f"streams-{stage.value}-1" for stage in STREAMS))


def test_nothing_is_lost_doubled_or_changed_when_every_process_is_killed(chaos_run: ChaosRun) -> None:
    """Kills with work in flight, a join, a leave, a resumed supervisor; then each id is counted by hand."""
    check_kills(chaos_run, (*OTHERS, "engine"))
    check_end(chaos_run)


def check_kills(chaos: ChaosRun, others: tuple[str, ...]) -> None:
    """Each process at least once, the stateful ones twice, and once between an output and its marker."""
    names = [killed.name for killed in chaos.killed]
    assert all(killed.in_flight for killed in chaos.killed)
    fired = {path.name for path in (chaos.run.path / "streams" / "failpoints").iterdir()}
    assert {"assemble", "credit"} <= fired, "expected a kill between output and marker in both stages"
    assert "trainer:half-written" in names
    for name in STATEFUL:
        assert sum(known.startswith(name) for known in names) >= 2, (name, names)
    for name in others:
        assert any(known.startswith(name) for known in names), (name, names)


def check_end(chaos: ChaosRun) -> None:
    """The run stands still: count it, audit it, and see that the count can fail."""
    run = chaos.run
    with chaos.broker() as bootstrap_servers:
        snapshot = take(KafkaLog(bootstrap_servers), run.wiring.topics, run.path / "trainer")
        audit = subprocess.run(
            [TRACEGRAD, "audit", "--run-dir", str(run.path)], capture_output=True, text=True, timeout=120, check=False
        )
    problems = count(snapshot)
    assert problems == [], "\n".join(problems[:20])
    assert snapshot.step >= MIN_STEPS
    assert len(snapshot.records[Topic.EPISODES]) > len({record.value for record in snapshot.records[Topic.EPISODES]})
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert "every id is accounted for" in audit.stdout
    check_removals(snapshot)
    check_lost_rollout(snapshot)


def check_removals(snapshot: Snapshot) -> None:
    """The count is no formality: a copy that lacks one record does not pass, and the missing id is named."""
    ids: dict[Topic, Callable[[Record], str]] = {
        Topic.TRANSITIONS: lambda record: decode_group(record.value)[0].group_id,
        Topic.EPISODES: lambda record: EPISODES.decode(record.value).rollout_id or "",
        Topic.ROLLOUTS: lambda record: ROLLOUTS.decode(record.value).rollout_id,
        Topic.TRAINING_STEPS: lambda record: TRAINING_STEPS.decode(record.value).group_ids[0],
    }
    for topic, id_of in ids.items():
        record = _unique(snapshot, topic, id_of)
        problems = count(snapshot.without(topic, record))
        assert any(id_of(record) in problem for problem in problems), (topic, id_of(record), problems[:5])


def check_lost_rollout(snapshot: Snapshot) -> None:
    """A rollout of which only the request is left is named, as one that its runner committed and never ran."""
    episode = _unique(snapshot, Topic.EPISODES, lambda record: EPISODES.decode(record.value).rollout_id or "")
    lost = EPISODES.decode(episode.value).rollout_id
    without = snapshot.without(Topic.EPISODES, episode)
    for event in snapshot.records[Topic.ROLLOUT_EVENTS]:
        if ROLLOUT_EVENTS.decode(event.value).rollout_id == lost:
            without = without.without(Topic.ROLLOUT_EVENTS, event)
    problems = count(without)
    assert f"rollout {lost} was committed by the runner and has no final event" in problems, problems[:5]


def _unique(snapshot: Snapshot, topic: Topic, id_of: Callable[[Record], str]) -> Record:
    """A record in the middle of its topic that is no re-emission, and of what was trained."""
    trained = set(snapshot.consumed)
    copies = Counter(record.value for record in snapshot.records[topic])

    def counts(record: Record) -> bool:
        if topic is Topic.EPISODES:
            episode = EPISODES.decode(record.value)
            return episode.is_final and episode.group is not None and episode.group.id in trained
        if topic is Topic.TRAINING_STEPS:
            return bool(TRAINING_STEPS.decode(record.value).group_ids)
        if topic is Topic.TRANSITIONS:
            return id_of(record) in trained
        return ROLLOUTS.decode(record.value).group.id in trained

    found = [record for record in snapshot.records[topic] if copies[record.value] == 1 and counts(record)]
    return found[len(found) // 2]
