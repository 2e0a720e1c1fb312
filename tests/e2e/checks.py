"""Checks of a finished run that was disturbed: count it, audit it, and see that the count can fail."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable

import msgspec

from tests.e2e.chaos_run import ChaosRun
from tests.e2e.counting import Snapshot, count, take
from tests.e2e.live_run import TRACEGRAD
from tests.served.served_proof import Proof, find_proof
from tests.served.verdict import verdict_line, verify_apart
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.ids import episode_id, new_attempt
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic


def check_end(chaos: ChaosRun, *, min_steps: int, is_vllm: bool = False) -> Snapshot:
    """The run stands still, and nothing in it is lost, doubled or changed; its topics."""
    run = chaos.run
    with chaos.broker() as bootstrap_servers:
        snapshot = take(KafkaLog(bootstrap_servers), run.wiring.topics, run.path / "trainer")
        served = find_proof(run.wiring.log(), run.wiring.topics, run.wiring.record.hash, "policy") if is_vllm else ""
        audit = subprocess.run(
            [TRACEGRAD, "audit", str(run.path)], capture_output=True, text=True, timeout=120, check=False
        )
    problems = count(snapshot)
    assert problems == [], "\n".join(problems[:20])
    assert snapshot.step >= min_steps
    assert audit.returncode == 0, audit.stdout + audit.stderr
    assert "every id is accounted for" in audit.stdout
    if is_vllm:
        _check_served(served)
    _check_removals(snapshot)
    _check_lost_rollout(snapshot)
    _check_doubles(snapshot)
    return snapshot


def _check_served(proof: Proof | str) -> None:
    """The calls were sampled by the weights whose label they bear; with the labels of two versions swapped they were
    not."""
    assert isinstance(proof, Proof), proof
    verdict = verify_apart(proof)
    assert verdict.holds and verdict.num_differing, verdict_line(verdict)
    folders = {"folder": proof.previous_folder, "previous_folder": proof.folder}
    assert not verify_apart(msgspec.structs.replace(proof, **folders)).holds


def _group_of(record: Record) -> str:
    """A group of the step."""
    return TRAINING_STEPS.decode(record.value).group_ids[0]


def _rollout_of(record: Record) -> str:
    """The rollout of the episode."""
    return EPISODES.decode(record.value).rollout_id or ""


def _check_removals(snapshot: Snapshot) -> None:
    """The count is no formality: a copy that lacks one record does not pass, and the missing id is named."""
    ids: dict[Topic, Callable[[Record], str]] = {
        Topic.TRANSITIONS: lambda record: decode_group(record.value)[0].group_id,
        Topic.EPISODES: _rollout_of,
        Topic.ROLLOUTS: lambda record: ROLLOUTS.decode(record.value).rollout_id,
        Topic.TRAINING_STEPS: _group_of,
    }
    for topic, id_of in ids.items():
        record = _unique(snapshot, topic, id_of)
        problems = count(snapshot.without(topic, record))
        assert any(id_of(record) in problem for problem in problems), (topic, id_of(record), problems[:5])


def _check_lost_rollout(snapshot: Snapshot) -> None:
    """A rollout of which only the request is left is named, as one that its runner committed and never ran."""
    episode = _unique(snapshot, Topic.EPISODES, _rollout_of)
    lost = EPISODES.decode(episode.value).rollout_id
    without = snapshot.without(Topic.EPISODES, episode)
    for event in snapshot.records[Topic.ROLLOUT_EVENTS]:
        if ROLLOUT_EVENTS.decode(event.value).rollout_id == lost:
            without = without.without(Topic.ROLLOUT_EVENTS, event)
    problems = count(without)
    assert f"rollout {lost} was committed by the runner and has no final event" in problems, problems[:5]


def _check_doubles(snapshot: Snapshot) -> None:
    """A group in two batches and a rollout with two final episodes are named, with both."""
    record = _unique(snapshot, Topic.TRAINING_STEPS, _group_of)
    step, group = TRAINING_STEPS.decode(record.value), snapshot.consumed[0]
    again = msgspec.structs.replace(step, group_ids=(*step.group_ids, group))
    doubled = msgspec.structs.replace(record, value=TRAINING_STEPS.encode(again))
    problems = count(snapshot.without(Topic.TRAINING_STEPS, record, doubled))
    assert any(f"group {group} is in the batches of steps" in problem for problem in problems), problems[:5]
    record = _unique(snapshot, Topic.EPISODES, _rollout_of)
    episode = EPISODES.decode(record.value)
    other = msgspec.structs.replace(episode, episode_id=episode_id(episode.rollout_id or "", new_attempt()))
    doubled = msgspec.structs.replace(record, value=EPISODES.encode(other))
    problems = count(snapshot.without(Topic.EPISODES, record, record, doubled))
    assert any(f"rollout {episode.rollout_id} has two final" in problem for problem in problems), problems[:5]


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
