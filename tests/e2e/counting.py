"""The test's own count of a finished run: from `rollouts`, `rollout_events`, `episodes`, `transitions`,
`training_steps`, `weights` and the newest checkpoint, with the project's codecs and nothing else of it.

In: a Snapshot, which is an in-memory copy of topics. Out: sentences, each naming an id; none when all is accounted
for. The trainer's own accounting is not read: a group is consumed when its record's offset lies in the interval of
a surviving step and that step names it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from tests.e2e.evidence import newest_checkpoint
from tracegrad.schemas.ids import GroupId, rollout_id
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep
from tracegrad.schemas.records.transitions import GroupSummary, decode_group
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, VersionManifest
from tracegrad.schemas.topics import Stage, Topic, Topics

K = TypeVar("K")
T = TypeVar("T")
COPIED = (
    Topic.ROLLOUTS,
    Topic.ROLLOUT_EVENTS,
    Topic.EPISODE_EVENTS,
    Topic.EPISODES,
    Topic.TRANSITIONS,
    Topic.TRAINING_STEPS,
    Topic.WEIGHTS,
)


@dataclass
class Snapshot:
    """Copies of topics, where the stages had committed, and the newest checkpoint."""

    records: dict[Topic, list[Record]]
    committed: dict[Topic, dict[int, int]]
    consumed: list[str]
    """Group ids of the newest checkpoint's `consumed.txt`."""
    next_offset: int
    """Of the newest checkpoint."""
    step: int
    version: int

    @property
    def num_transitions(self) -> int:
        """Calls of the policy in the groups that surviving steps trained."""
        steps = (TRAINING_STEPS.decode(record.value) for record in self.records[Topic.TRAINING_STEPS])
        trained = {id_ for step in steps if step.step <= self.step for id_ in step.group_ids}
        groups = map(decode_group, {record.value for record in self.records[Topic.TRANSITIONS]})
        return sum(len(row.turns) for summary, rows in groups if summary.group_id in trained for row in rows)

    def without(self, topic: Topic, record: Record, *instead: Record) -> Snapshot:
        """A copy that lacks one record, or has others instead."""
        left = [kept for kept in self.records[topic] if kept is not record]
        return replace(self, records={**self.records, topic: [*left, *instead]})

    def is_pending(self, topic: Topic, record: Record) -> bool:
        """Whether the stage that reads the topic had not committed the record when the run stopped."""
        return record.offset >= self.committed[topic].get(record.partition, 0)


def take(log: Log, topics: Topics, trainer: Path) -> Snapshot:
    """Reads everything up to the topics' present ends."""
    records = {topic: list(read_to_end(log, topics.name(topic))) for topic in COPIED}
    readers = {
        Topic.ROLLOUT_EVENTS: Stage.NORMALIZE,
        Topic.EPISODE_EVENTS: Stage.ASSEMBLE,
        Topic.EPISODES: Stage.CREDIT,
        Topic.ROLLOUTS: Stage.RUNNER,
    }
    committed = {
        topic: dict(log.committed(topics.group(stage), topics.name(topic))) for topic, stage in readers.items()
    }
    state = newest_checkpoint(trainer)
    assert state is not None, "expected a checkpoint, got none"
    consumed = (trainer / "checkpoints" / state.folder / "consumed.txt").read_text().split()
    return Snapshot(records, committed, consumed, state.next_offset, state.step, state.version)


@dataclass
class _Count:
    """What the copy says, by id."""

    requests: dict[str, Record] = field(default_factory=dict)
    """Rollout id -> its first request."""
    final_events: dict[str, Record] = field(default_factory=dict)
    episodes: dict[str, tuple[Record, Episode]] = field(default_factory=dict)
    groups: dict[str, tuple[Record, GroupSummary]] = field(default_factory=dict)
    steps: dict[int, tuple[Record, TrainingStep]] = field(default_factory=dict)
    facts: dict[str, list[Record]] = field(default_factory=lambda: defaultdict(list))
    """Episode id -> its records on `episode_events`."""
    problems: list[str] = field(default_factory=list)

    def keep(self, known: dict[K, tuple[Record, T]], id_: K, record: Record, decoded: T) -> None:
        """The first record of an id; a later one must be its equal, byte for byte."""
        first, _ = known.setdefault(id_, (record, decoded))
        if first.value != record.value:
            self.problems.append(f"{record.topic}: {id_} was emitted again with other bytes")


def _gather(snapshot: Snapshot) -> _Count:
    found = _Count()
    for record in snapshot.records[Topic.ROLLOUTS]:
        found.requests.setdefault(ROLLOUTS.decode(record.value).rollout_id, record)
    for record in snapshot.records[Topic.ROLLOUT_EVENTS]:
        event = ROLLOUT_EVENTS.decode(record.value)
        if event.is_final:
            found.final_events.setdefault(event.rollout_id, record)
    for record in snapshot.records[Topic.EPISODE_EVENTS]:
        facts = EPISODE_EVENTS.decode(record.value)
        if isinstance(facts, Facts):
            found.facts[facts.episode_id].append(record)
    for record in snapshot.records[Topic.EPISODES]:
        episode = EPISODES.decode(record.value)
        found.keep(found.episodes, episode.episode_id, record, episode)
    for record in snapshot.records[Topic.TRANSITIONS]:
        summary, _ = decode_group(record.value)
        found.keep(found.groups, summary.group_id, record, summary)
    for record in snapshot.records[Topic.TRAINING_STEPS]:
        step = TRAINING_STEPS.decode(record.value)
        assert isinstance(step, TrainingStep)
        found.keep(found.steps, step.step, record, step)
    return found


def count(snapshot: Snapshot) -> list[str]:
    """What is not accounted for."""
    found = _gather(snapshot)
    finals = _count_rollouts(snapshot, found)
    _count_groups(snapshot, found, finals)
    _count_batches(snapshot, found)
    _count_lineage(snapshot, found)
    _count_passes(snapshot, found, finals)
    return found.problems


def _count_rollouts(snapshot: Snapshot, found: _Count) -> dict[str, Episode]:
    """Each rollout has one final episode, or is still on its way: not let go by the runner, or not read yet."""
    finals: dict[str, Episode] = {}
    for id_, (_, episode) in found.episodes.items():
        rollout = episode.rollout_id
        if rollout is None:
            continue
        if rollout not in found.requests:
            found.problems.append(f"episode {id_}: nobody asked for its rollout {rollout}")
        if episode.is_final:
            if rollout in finals:
                found.problems.append(f"rollout {rollout} has two final episodes: {finals[rollout].episode_id}, {id_}")
            finals[rollout] = episode
    for rollout, record in found.requests.items():
        group = ROLLOUTS.decode(record.value).group
        if rollout != rollout_id(GroupId(group.id), group.member):
            found.problems.append(f"rollout {rollout} bears an id that is not its group's")
        if rollout not in found.final_events and not snapshot.is_pending(Topic.ROLLOUTS, record):
            found.problems.append(f"rollout {rollout} was committed by the runner and has no final event")
        if rollout in finals or rollout not in found.final_events:
            continue
        record = found.final_events[rollout]
        event = ROLLOUT_EVENTS.decode(record.value)
        facts = found.facts.get(rollout + event.attempt_id, [])
        is_on_its_way = snapshot.is_pending(Topic.ROLLOUT_EVENTS, record) or any(
            snapshot.is_pending(Topic.EPISODE_EVENTS, fact) for fact in facts
        )
        if not is_on_its_way:
            found.problems.append(f"rollout {rollout} ended and has no final episode")
    return finals


def _count_groups(snapshot: Snapshot, found: _Count, finals: dict[str, Episode]) -> None:
    """Each group whose members are final is on `transitions`, made of exactly those episodes."""
    members: dict[str, dict[int, Episode]] = defaultdict(dict)
    for episode in finals.values():
        if episode.group is not None and episode.purpose is Purpose.TRAIN:
            members[episode.group.id][episode.group.member] = episode
    for id_, episodes in members.items():
        size = next(iter(episodes.values())).group.size  # type: ignore[union-attr]
        if id_ in found.groups or len(episodes) < size:
            continue
        records = [found.episodes[episode.episode_id][0] for episode in episodes.values()]
        if not any(snapshot.is_pending(Topic.EPISODES, record) for record in records):
            found.problems.append(f"group {id_} is complete and not on transitions")
    for id_, (_, summary) in found.groups.items():
        named = {member.episode_id for member in summary.members}
        known = {episode.episode_id for episode in members.get(id_, {}).values()}
        for episode_id in sorted(named ^ known):
            found.problems.append(f"group {id_}: episode {episode_id} is in only one of transitions and episodes")


def _count_batches(snapshot: Snapshot, found: _Count) -> None:
    """Surviving steps are intervals without gap or overlap; every group in them is in exactly one batch."""
    surviving = [found.steps[number][1] for number in sorted(found.steps) if number <= snapshot.step]
    consumed: dict[str, int] = {}
    offset = 0
    for number, step in enumerate(surviving, start=1):
        if step.step != number or step.begin_offset != offset:
            found.problems.append(f"step {step.step} begins at {step.begin_offset}, expected step {number} at {offset}")
        named = [*step.group_ids, *step.excluded_ids]
        inside = {
            id_ for id_, (record, _) in found.groups.items() if step.begin_offset <= record.offset < step.next_offset
        }
        for id_ in named:
            if id_ in consumed:
                found.problems.append(f"group {id_} is in the batches of steps {consumed[id_]} and {step.step}")
            consumed[id_] = step.step
        for id_ in sorted(inside ^ set(named)):
            found.problems.append(f"group {id_} is in only one of step {step.step}'s interval and its batch")
        found.problems += [
            f"group {id_} is excluded without a reason" for id_, why in step.excluded_ids.items() if not why
        ]
        offset = step.next_offset
    if offset != snapshot.next_offset or len(surviving) != snapshot.step:
        found.problems.append(
            f"the checkpoint is of step {snapshot.step}, offset {snapshot.next_offset}; steps end at "
            f"{len(surviving)}, {offset}"
        )
    for id_, (record, _) in found.groups.items():
        if record.offset < snapshot.next_offset and id_ not in consumed:
            found.problems.append(f"group {id_} was passed by and is in no batch")
    for id_ in sorted(set(snapshot.consumed) ^ set(consumed)):
        found.problems.append(f"group {id_} is in only one of the checkpoint and the batches")
    if len(snapshot.consumed) != len(set(snapshot.consumed)):
        found.problems.append("the checkpoint names a group twice")


def _count_lineage(snapshot: Snapshot, found: _Count) -> None:
    """Every updating step's version was published by a trainer that owned the policy then."""
    epoch, published = 0, {0}
    for record in snapshot.records[Topic.WEIGHTS]:
        weights = WEIGHTS.decode(record.value)
        if isinstance(weights, EpochClaim):
            epoch = max(epoch, weights.epoch)
        elif isinstance(weights, VersionManifest) and weights.epoch == epoch:
            published.add(weights.version)
            step = found.steps.get(weights.step)
            if step is not None and step[1].next_offset != weights.next_offset:
                found.problems.append(f"version {weights.version} and step {weights.step} end at different offsets")
    for _, step_record in found.steps.values():
        if step_record.is_updated and step_record.version not in published:
            found.problems.append(f"version {step_record.version} of step {step_record.step} was never published")
    if snapshot.version not in published:
        found.problems.append(f"version {snapshot.version} of the checkpoint was never published")


def _count_passes(snapshot: Snapshot, found: _Count, finals: dict[str, Episode]) -> None:
    """Held-out passes follow each other without a gap, each begun and then scored once, by its own episodes alone."""
    begun: dict[int, HeldOutPass] = {}
    scored: dict[int, HeldOutPass] = {}
    first_group = 0
    for record in snapshot.records[Topic.WEIGHTS]:
        word = WEIGHTS.decode(record.value)
        if not isinstance(word, HeldOutPass):
            continue
        known = begun if word.score is None else scored
        # An append that was not acknowledged in time is made again.
        if known.setdefault(word.number, word) != word:
            found.problems.append(f"held-out pass {word.number} was told twice with different words")
        elif word.score is None and len(begun) == word.number + 1:
            if (word.first_group, len(scored)) != (first_group, word.number):
                found.problems.append(f"held-out pass {word.number} began before the one before it was over")
            first_group += word.num_tasks
    if set(begun) != set(range(len(begun))) or not set(scored) <= set(begun):
        found.problems.append(f"held-out passes {sorted(begun)} began, {sorted(scored)} have scores")
    episodes = [one for one in finals.values() if one.purpose is Purpose.VALIDATION and one.group is not None]
    for number, word in scored.items():
        groups = range(word.first_group, word.first_group + word.num_tasks)
        own = [one for one in episodes if one.group is not None and one.group.index in groups]
        rewards = [one.reward for one in own if one.reward is not None]
        mean = sum(rewards) / len(rewards) if rewards else None
        is_whole = len(rewards) == word.num_tasks * word.num_samples  # else a task with one sample weighs more
        if word.score is not None and is_whole and (mean is None or abs((word.score.mean or 0.0) - mean) > 1e-9):
            found.problems.append(f"held-out pass {number} has the score {word.score.mean}, its episodes {mean}")
        if len(own) != word.num_tasks * word.num_samples:
            found.problems.append(f"held-out pass {number} has {len(own)} episodes")
