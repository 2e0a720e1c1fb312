"""Stage `credit`: closes groups and turns their episodes into transitions, one record per policy.

In: `episodes`. Out: `transitions`, one Arrow record per policy and training group, written to the policy's own
partition, and a marker on `closed_groups`. A group closes when each of its members has a final episode; superseded
attempts and validation end here. Invariant: the record does not depend on the order of the episodes; no group stays
for ever, or has no room: one that very many overtake, and the oldest of too many, close as if what they wait for were
given up. In a run that trains on captured traffic a conversation that was rated is a group of one.
Failure: a rollout that cannot train is listed with its reason; an unreadable record is a dead letter.
"""

from __future__ import annotations

import hashlib
import logging

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, GroupId, episode_id, rollout_id
from tracegrad.schemas.log.protocol import Position, Record
from tracegrad.schemas.metrics import CREDIT_EPISODES, GROUPS, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, ClosedMarker, Episode
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.topics import Stage, Topic, Topics, policy_key

from ..config import StreamRules
from ..stage_fold import StageFold
from .conversations import as_group
from .return_to_go import credit_group

__all__ = ["OVERTAKEN", "Credit"]

_LOGGER = logging.getLogger(__name__)

MAX_GROUP_SIZE = 4096
"""A greater k is a fault of the record, and would wait for ever."""
OVERTAKEN = 1_000
"""Groups that close while one is open, when even what tasks gave up does not come: else lost groups take the room, and
bytes, of good ones. A run has tens in the works at once."""


class _OpenGroup:
    """The final episodes of a group that came so far."""

    def __init__(self, num_closed: int) -> None:
        self.num_closed = num_closed
        """Groups that had been closed when it was opened."""
        self.members: dict[int, tuple[Episode, tuple[bool, bytes]]] = {}
        """By member; the second is its rank among records that claim the same place."""
        self.positions: list[Position] = []
        self.num_bytes = 0

    def take(self, member: int, episode: Episode, value: bytes) -> None:
        """Of two final episodes of a member the one that was really run counts, then the greatest sha256."""
        rank = (episode.state is not RolloutState.GIVEN_UP, hashlib.sha256(value).digest())
        if member not in self.members or rank > self.members[member][1]:
            self.members[member] = (episode, rank)


class Credit(StageFold[_OpenGroup]):
    """The fold of `credit`. A group waits for its members, however long."""

    marker_topic = Topic.CLOSED_GROUPS
    stage = Stage.CREDIT

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        super().__init__(rules, topics, metrics)
        self._num_bytes = 0
        """Of the episodes' records in all open groups."""
        self._num_closed = 0

    def reset(self) -> None:
        """As Fold.reset."""
        super().reset()
        self._num_bytes = 0

    def _take(self, record: Record) -> Emission:
        episode = EPISODES.decode(record.value)
        self._refusals.accept(record)
        if self._rules.select.train:
            episode = as_group(episode)
        group = episode.group
        ends_here = self._ends_here(episode)
        if ends_here or group is None:
            self.metrics.add(CREDIT_EPISODES, ends_here)
            return Emission(done=(record.position,))
        return self._add(record, episode, group)

    def _ends_here(self, episode: Episode) -> str:
        """Why the episode joins no group; empty when it does."""
        if episode.group is None:
            return "unscored" if self._rules.select.train else "without_group"
        if episode.purpose is not Purpose.TRAIN and episode.rollout_id is not None:
            return "not_training"
        if not episode.is_final:
            return "superseded"
        return "of_closed_group" if self._is_closed(episode.group.id) else ""

    def _add(self, record: Record, episode: Episode, group: GroupRef) -> Emission:
        if not 0 <= group.member < group.size <= MAX_GROUP_SIZE:
            raise RecordError(f"expected 0 <= member < size, got {group.member}, {group.size}", reason="bad_group")
        state = self._open.get(group.id)
        if state is None:
            state = _OpenGroup(self._num_closed)
        elif next(iter(state.members.values()))[0].group.size != group.size:  # type: ignore[union-attr]
            raise RecordError(f"expected one size of group {group.id}, got {group.size} too", reason="bad_group")
        for place, (other, _) in state.members.items():
            if place != group.member and other.rollout_id == episode.rollout_id:
                raise RecordError(
                    f"expected one place of rollout {episode.rollout_id}, got {place} too", reason="bad_group"
                )
        self._open[group.id] = state
        value = record.value or b""
        most = self._rules.streams.max_open_bytes
        if self._num_bytes + len(value) > most:
            # Its group must close all the same, so it joins without what takes the room.
            error = f"expected episodes of at most {most} bytes in open groups; raise [streams] max_open_bytes"
            episode = msgspec.structs.replace(episode, calls=(), calls_omitted="too_many_open_bytes", error=error)
        else:
            state.num_bytes += len(value)
            self._num_bytes += len(value)
        state.take(group.member, episode, value)
        state.positions.append(record.position)
        self.metrics.add(CREDIT_EPISODES, "in_groups")
        if len(state.members) == group.size:
            return self._credit(group.id, state)
        oldest_id, oldest = next(iter(self._open.items()))
        is_surplus = len(self._open) > self._rules.streams.max_open_groups
        is_overtaken = self._num_closed - oldest.num_closed >= OVERTAKEN
        return self._credit_in_part(oldest_id, oldest) if is_surplus or is_overtaken else Emission()

    def _credit_in_part(self, group_id: str, state: _OpenGroup) -> Emission:
        """Closes a group with the members that came."""
        one = next(iter(state.members.values()))[0]
        assert one.group is not None
        missing = [number for number in range(one.group.size) if number not in state.members]
        _LOGGER.warning(
            "group %s closes without %d of %d members: %d others closed while it waited, %d are open",
            group_id,
            len(missing),
            one.group.size,
            self._num_closed - state.num_closed,
            len(self._open),
        )
        for number in missing:
            state.take(number, _stand_in(one, number), b"")
        return self._credit(group_id, state)

    def _credit(self, group_id: str, state: _OpenGroup) -> Emission:
        self.metrics.add(GROUPS)
        self._num_closed += 1
        self._num_bytes -= state.num_bytes
        members = [state.members[member][0] for member in sorted(state.members)]
        outputs = tuple(
            Output(
                topic=Topic.TRANSITIONS,
                key=policy_key(policy),
                value=credit_group(members, policy, self._topics, self.metrics, rule=self._rules.streams.peers),
                partition=index,
            )
            for index, policy in enumerate(self._rules.policies)
        )
        num_calls = sum(len(episode.calls) for episode in members)
        marker = ClosedMarker(id=group_id, disposition="emitted", num_calls=num_calls)
        return self._close(marker, state.positions, outputs)


def _stand_in(neighbour: Episode, number: int) -> Episode:
    """The episode that a member would have if tasks' giving up had come here."""
    assert neighbour.group is not None
    rollout = rollout_id(GroupId(neighbour.group.id), number)
    return Episode(
        episode_id=episode_id(rollout, GIVEN_UP_ATTEMPT),
        rollout_id=rollout,
        attempt_id=GIVEN_UP_ATTEMPT,
        group=msgspec.structs.replace(neighbour.group, member=number),
        task_id=neighbour.task_id,
        policy=neighbour.policy,
        purpose=neighbour.purpose,
        state=RolloutState.GIVEN_UP,
        is_final=True,
        closed_by="bound",
        calls=(),
        reward=None,
    )
