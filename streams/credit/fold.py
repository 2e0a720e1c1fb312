"""Stage `credit`: closes groups and turns their episodes into transitions, one record per policy.

In: `episodes`, and `episode_scores`: what people said of conversations later, and closes that some worker's clock
proposed. Out: `transitions`, one Arrow record per policy and training group, written to the policy's own partition, and
a marker on `closed_groups`. A group closes when each of its members has a final episode; superseded attempts and
validation end here. In a run that trains on captured traffic a conversation is a group of one, which closes when people
had their time to rate it. Invariant: the record does not depend on the order of the episodes; no group stays for ever,
or has no room: one that very many overtake, and the oldest of too many, close as if what they wait for were given up.
Failure: a rollout that cannot train is listed with its reason; an unreadable record is a dead letter.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, GroupId, episode_id, rollout_id
from tracegrad.schemas.keys import group_key, policy_key
from tracegrad.schemas.log.made_of import (
    EpisodeRef,
    GroupMadeOf,
    MadeOf,
    Parts,
    made_of,
    made_of_header,
    raw_positions,
)
from tracegrad.schemas.log.protocol import Position, Record
from tracegrad.schemas.metrics import CREDIT_EPISODES, FEEDBACK_LATE, GROUPS, PROPOSALS, Metrics
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import (
    EPISODE_SCORES,
    EPISODES,
    LATE,
    UNCLAIMED,
    ClosedMarker,
    EmittedEpisode,
    Episode,
    Score,
)
from tracegrad.schemas.records.facts import Close
from tracegrad.schemas.records.rollouts import GroupRef, Reward, RolloutState
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..config import StreamRules
from ..ratings import pieces_of
from ..stage_fold import CROWDED, StageFold
from .feedback_window import FeedbackWindow
from .strategies.rated import as_group, as_rated
from .write_group import credit_group

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
        self.refs: dict[int, EpisodeRef] = {}
        """Likewise, their records."""
        self.feedback: list[Parts] = []
        """Where that lies which was said behind its close."""
        self.positions: list[Position] = []
        self.num_bytes = 0

    def add_member(self, member: int, episode: Episode, record: Record | None) -> None:
        """Of two final episodes of a member the one that was really run counts, then the greatest sha256; a stand-in
        has no record."""
        digest = hashlib.sha256((record.value if record else None) or b"")
        rank = (episode.state is not RolloutState.GIVEN_UP, digest.digest())
        if member not in self.members or rank > self.members[member][1]:
            self.members[member] = (episode, rank)
            if record is not None:
                made = made_of(record.headers, MadeOf)
                revision = made.revision if made is not None else 0
                self.refs[member] = EpisodeRef(episode.episode_id, revision, digest.hexdigest())

    def made_of(self, group_id: str) -> GroupMadeOf:
        """What its records' headers tell."""
        refs = tuple(self.refs[member] for member in sorted(self.refs))
        return GroupMadeOf(group=group_id, episodes=refs, feedback=raw_positions(self.feedback))


class Credit(StageFold[_OpenGroup]):
    """The fold of `credit`. A group waits for its members, however long."""

    marker_topic = Topic.CLOSED_GROUPS
    stage = Stage.CREDIT

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        super().__init__(rules, topics, metrics)
        self._num_bytes = 0
        """Of the episodes' records in all open groups."""
        self._num_closed = 0
        limits = rules.streams
        silence_s = max([limits.idle_s, *(one.idle_s or 0.0 for one in limits.services.values())])
        self._window = FeedbackWindow(rules.feedback_wait_s, silence_s)
        self._credits = rules.credit.resolve()
        self._scores_topic = topics.name(Topic.EPISODE_SCORES)

    def reset(self) -> None:
        """As Fold.reset."""
        super().reset()
        self._num_bytes = 0
        self._window.clear()

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        """As Fold.propose; due are conversations that people had their time to rate, and those that wait longest where
        they leave little room for others."""
        proposals = []
        for id_ in self._surplus():
            self._window.hasten(id_)
        self._let_go += self._window.forget(now_s)
        for reason, id_, key, partition, before in self._window.due(now_s, now_ms):
            self.metrics.add(PROPOSALS, reason)
            value = EPISODE_SCORES.encode(Close(episode_id=id_, reason=reason, before=before))
            place = Output(topic=Topic.EPISODE_SCORES, key=group_key(None, key), value=value, partition=partition)
            proposals.append(place)
        return proposals

    def _surplus(self) -> Iterator[str]:
        limits = self._rules.streams
        num_bytes = self._num_bytes - int(CROWDED * limits.max_open_bytes)
        num_open = len(self._open) - int(CROWDED * limits.max_open_groups)
        for id_, state in self._open.items():
            if num_bytes <= 0 and num_open <= 0:
                return
            if state.members[min(state.members)][0].rollout_id is None:
                num_bytes, num_open = num_bytes - state.num_bytes, num_open - 1
                yield id_

    def _take(self, record: Record) -> Emission:
        self._window.note_time(record.timestamp_ms)
        if record.topic == self._scores_topic:
            return self._take_score(record)
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

    def _take_score(self, record: Record) -> Emission:
        event = EPISODE_SCORES.decode(record.value)
        self._refusals.accept(record)
        if isinstance(event, Score):
            if not self._rules.select.train:
                return self._miss([(event.reward, record.position)])
            self._window.add_feedback(event.key, event.reward, record)
            return Emission()
        if isinstance(event, EmittedEpisode):
            return self._tell(event.key, event.episode_id, record)
        if event.reason == UNCLAIMED:
            late, counted = self._window.drop(event.episode_id, event.before, record.position.offset)
            return self._miss(late, *counted, record.position)
        state = self._open.get(event.episode_id)
        if state is None:
            return self._tell((record.key or b"").decode("utf-8", "replace"), event.episode_id, record, is_end=True)
        state.positions.append(record.position)
        if state.members[min(state.members)][0].rollout_id is not None:
            # Only who folds a past again says so, and knows that no other member counted.
            return self._credit_in_part(event.episode_id, state)
        return self._credit_conversation(event.episode_id, state)

    def _tell(self, key: str, episode_id: str, record: Record, *, is_end: bool = False) -> Emission:
        if self._is_closed(episode_id):
            return Emission(done=(record.position,))
        return Emission(done=tuple(self._window.note_episode(key, episode_id, record.position, is_end=is_end)))

    def _miss(self, late: Sequence[tuple[Reward, Position]], *more: Position) -> Emission:
        """Feedback that is about nothing that waits; a marker tells of it, under a name that no group has."""
        self.metrics.add(FEEDBACK_LATE, num=len(late))
        done = tuple(sorted((*(position for _, position in late), *more)))
        if not late:
            return Emission(done=done)
        heard = pieces_of(reward for reward, _ in late)
        marker = ClosedMarker(id=f"late/{done[0].partition}/{done[0].offset}", disposition=LATE, heard=heard)
        return Emission(marker=self._told(marker, done[0].partition), done=done)

    def _remember(self, marker: ClosedMarker) -> None:
        if marker.disposition != LATE:
            super()._remember(marker)

    def _ends_here(self, episode: Episode) -> str:
        """Why the episode joins no group; empty when it does."""
        if episode.group is None:
            return Reason.WITHOUT_GROUP
        if episode.purpose is not Purpose.TRAIN and episode.rollout_id is not None:
            return Reason.NOT_TRAINING
        if not episode.is_final:
            return Reason.SUPERSEDED
        return Reason.OF_CLOSED_GROUP if self._is_closed(episode.group.id) else ""

    def _add(self, record: Record, episode: Episode, group: GroupRef) -> Emission:
        if not 0 <= group.member < group.size <= MAX_GROUP_SIZE:
            raise RecordError(f"expected 0 <= member < size, got {group.member}, {group.size}", reason=Reason.BAD_GROUP)
        state = self._open.get(group.id)
        if state is None:
            state = _OpenGroup(self._num_closed)
        elif next(iter(state.members.values()))[0].group.size != group.size:  # type: ignore[union-attr]
            raise RecordError(f"expected one size of group {group.id}, got {group.size} too", reason=Reason.BAD_GROUP)
        for place, (other, _) in state.members.items():
            if place != group.member and other.rollout_id == episode.rollout_id:
                raise RecordError(
                    f"expected one place of rollout {episode.rollout_id}, got {place} too", reason=Reason.BAD_GROUP
                )
        self._open[group.id] = state
        value = record.value or b""
        most = self._rules.streams.max_open_bytes
        if self._num_bytes + len(value) > most:
            # Its group must close all the same, so it joins without what takes the room.
            error = f"expected episodes of at most {most} bytes in open groups; raise [streams] max_open_bytes"
            episode = msgspec.structs.replace(episode, calls=(), calls_omitted=Reason.TOO_MANY_OPEN_BYTES, error=error)
        else:
            state.num_bytes += len(value)
            self._num_bytes += len(value)
        state.add_member(group.member, episode, record)
        state.positions.append(record.position)
        if episode.rollout_id is None:
            if not self._window.add_episode(episode, record.partition, record.timestamp_ms):
                return self._credit_conversation(group.id, state)
        else:
            self.metrics.add(CREDIT_EPISODES, "in_groups")
            if len(state.members) == group.size:
                return self._credit(group.id, state)
        return self._credit_oldest()

    def _credit_oldest(self) -> Emission:
        """Closes the group that is open longest, where it takes the room of others."""
        oldest_id, oldest = next(iter(self._open.items()))
        is_conversation = oldest.members[min(oldest.members)][0].rollout_id is None
        is_surplus = len(self._open) > self._rules.streams.max_open_groups
        if is_conversation:
            return self._credit_conversation(oldest_id, oldest) if is_surplus else Emission()
        is_overtaken = self._num_closed - oldest.num_closed >= OVERTAKEN
        return self._credit_in_part(oldest_id, oldest) if is_surplus or is_overtaken else Emission()

    def _credit_conversation(self, group_id: str, state: _OpenGroup) -> Emission:
        """Closes a group of one with all that was said of it; what nobody rated trains nothing, unless AIR may."""
        episode, rank = state.members[0]
        episode, positions, state.feedback = self._window.close(episode)
        state.positions += positions
        if episode.is_rated or self._rules.select.unscored == "air":
            self.metrics.add(CREDIT_EPISODES, "in_groups")
            state.members[0] = (as_rated(episode), rank)
            return self._credit(group_id, state, heard=pieces_of(episode.rewards))
        self.metrics.add(CREDIT_EPISODES, "unscored")
        self._num_bytes -= state.num_bytes
        return self._close(ClosedMarker(id=group_id, disposition="unscored"), state.positions, ())

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
            state.add_member(number, _stand_in(one, number), None)
        return self._credit(group_id, state)

    def _credit(self, group_id: str, state: _OpenGroup, heard: tuple[str, ...] = ()) -> Emission:
        self.metrics.add(GROUPS)
        self._num_closed += 1
        self._num_bytes -= state.num_bytes
        members = [state.members[member][0] for member in sorted(state.members)]
        headers = made_of_header(state.made_of(group_id))
        outputs = tuple(
            Output(
                topic=Topic.TRANSITIONS,
                key=policy_key(policy),
                value=credit_group(members, policy, self._topics, self.metrics, self._credits),
                headers=headers,
                partition=partition_of(policy, self._rules.policies),
            )
            for policy in self._rules.policies
        )
        num_calls = sum(len(episode.calls) for episode in members)
        marker = ClosedMarker(id=group_id, disposition="emitted", num_calls=num_calls, heard=heard)
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
