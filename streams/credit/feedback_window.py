"""Conversations whose episodes have closed and that people may still rate, and what they said meanwhile.

In: captured episodes; and of `episode_scores`, in the order of its partition, that an episode is on the log, what was
said, that an episode's time is over (its close), that what was said up to a place is let go. Out: which of the last two
the clock makes due; and each episode that is closed, with all that was said of it. Invariant: what a piece of feedback
counts for follows from that one partition and from what it says itself, never from when an episode's record is read:

    it is about the episode, by what it names and when it was said; it lies before the episode's close;
    and it was not let go before the partition first told of the episode

What is said of an answer is done when its episode has closed. What is said of a conversation may be about an answer in
flight, whose episode is still to come: it stays until it is let go. What is told of an episode is an input of it, so
that whoever takes over reads it too. Bounded: what is too much is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.made_of import Parts, origins_in
from tracegrad.schemas.log.protocol import Headers, Position, Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import FEEDBACK, UNCLAIMED, Episode
from tracegrad.schemas.records.rollouts import Reward

from ..ratings import is_about, rated_anew
from ..stage_fold import REPEAT_S

_MAX_SAID = 50_000
"""Pieces of feedback that wait in one worker."""
_MAX_FORESEEN = 10_000
"""Episodes that were told of and are not here; one that is forgotten waits anew once it comes."""
_FORESEEN_S = 3_600.0
"""One that has not come by then closed long ago, and would never be done."""


@dataclass(eq=False)
class _Feedback:
    """A piece of feedback."""

    reward: Reward
    position: Position
    headers: Headers
    has_counted: bool = False
    """For an episode that has closed."""
    let_go_at: int | None = None
    """Where it stands that it is."""
    since_s: float | None = None
    """When it was first looked at."""


@dataclass
class _EpisodeNotice:
    """An episode that the partition has told of, and that has not closed here."""

    at: int
    """Where first."""
    positions: list[Position] = field(default_factory=list)
    end: int | None = None
    """Where its close lies, which came before its record."""
    since_s: float | None = None
    """When it was first looked at while its record was not here."""


@dataclass
class _Conversation:
    """One key."""

    partition: int
    episodes: dict[str, Episode] = field(default_factory=dict)
    """Those that wait."""
    told: dict[str, _EpisodeNotice] = field(default_factory=dict)
    """Of these, and of others whose records are not here."""
    said: list[_Feedback] = field(default_factory=list)
    """In the order of the records."""

    def may_count(self, one: _Feedback, episode_id: str) -> bool:
        """Whether it lies where it counts for an episode that it is about."""
        told = self.told.get(episode_id)
        if told is not None and told.end is not None and one.position.offset >= told.end:
            return False
        return one.let_go_at is None or (told is not None and told.at < one.let_go_at)

    def awaits(self, one: _Feedback) -> bool:
        """Whether it is about an episode that waits, or may be about one whose record is not here."""
        return any(
            (id_ not in self.episodes or is_about(one.reward, self.episodes[id_])) and self.may_count(one, id_)
            for id_ in (*self.episodes, *self.told)
        )

    def behind_idle(self, now_s: float, patience_s: float) -> int:
        """The offset behind the first pieces in a row that are here for so long and are about nothing here; 0: none."""
        for one in reversed(self.said):
            if one.since_s is not None:
                break
            one.since_s = now_s
        behind = 0
        for one in self.said:
            if now_s - (one.since_s or 0.0) < patience_s or self.awaits(one):
                break
            behind = one.position.offset + 1
        return behind


@dataclass
class _CloseTimer:
    """When something is proposed, and again."""

    key: str
    partition: int
    at_ms: int | None = None
    """Of an episode: when its record was written, by the writer's clock; None: it counts from when it is looked at."""
    since_s: float | None = None
    next_s: float = 0.0
    is_surplus: bool = False
    """Its time is over because others need the room."""

    def is_over(self, now_s: float, latest_ms: int, wait_s: float) -> bool:
        """Whether an episode has waited for so long."""
        if self.since_s is None:
            passed_ms = 0 if self.at_ms is None else max(latest_ms - self.at_ms, 0)
            self.since_s = now_s - passed_ms / 1000
        return self.is_surplus or now_s - self.since_s >= wait_s


class FeedbackWindow:
    """The conversations of one worker.

    Args:
        wait_s: how long an episode waits from its close.
        flight_s: how much longer feedback that is about nothing here does: the silence of an episode that is to come.
    """

    def __init__(self, wait_s: float, flight_s: float) -> None:
        self._wait_s = wait_s
        self._patience_s = wait_s + flight_s
        self._conversations: dict[str, _Conversation] = {}
        self._clocks: dict[tuple[str, str], _CloseTimer] = {}
        """(why a close is to be proposed, of which id) -> when."""
        self._foreseen: OrderedDict[str, str] = OrderedDict()
        """Episodes that were told of and are not here -> their keys."""
        self._num_said = 0
        self._latest_ms = 0
        """When the latest of all records was written: what has passed since an episode's close, a worker that takes
        over does not wait for again, also where its own clock is slow."""

    def clear(self) -> None:
        """Forgets all."""
        self._conversations.clear()
        self._clocks.clear()
        self._foreseen.clear()
        self._num_said = self._latest_ms = 0

    def note_time(self, at_ms: int) -> None:
        """A record that was written then."""
        self._latest_ms = max(self._latest_ms, at_ms)

    def add_episode(self, episode: Episode, partition: int, at_ms: int) -> bool:
        """An episode that waits; False: it does not, for that its time is over stands on the log."""
        key, id_ = _key_of(episode), episode.episode_id
        conversation = self._at(key, partition)
        conversation.episodes[id_] = episode
        told_by = self._foreseen.pop(id_, key)
        if told_by != key:  # under a key that is not its own: nobody of ours writes so
            conversation.told[id_] = self._conversations[told_by].told.pop(id_)
            self._settle(told_by)
        self._clocks[FEEDBACK, id_] = _CloseTimer(key, partition, at_ms or None)
        return self._wait_s > 0 and (id_ not in conversation.told or conversation.told[id_].end is None)

    def note_episode(self, key: str, id_: str, position: Position, *, is_end: bool) -> list[Position]:
        """Here the partition tells of an episode that has not closed, or that its time is over, of one that is not here
        yet: what was said behind that is not its own. Returns the inputs for which nothing waits any more."""
        key = self._foreseen.get(id_, key)
        conversation = self._at(key, position.partition)
        is_new = id_ not in conversation.told
        told = conversation.told.setdefault(id_, _EpisodeNotice(position.offset))
        if is_end and told.end is None:
            told.end = position.offset
        elif is_end or not is_new:
            return [position]
        told.positions.append(position)
        if id_ not in conversation.episodes:
            self._foreseen[id_] = key
        return self._forget(next(iter(self._foreseen))) if len(self._foreseen) > _MAX_FORESEEN else []

    def forget(self, now_s: float) -> list[Position]:
        """What was told of episodes that do not come."""
        gone = []
        for id_, key in self._foreseen.items():
            told = self._conversations[key].told[id_]
            told.since_s = now_s if told.since_s is None else told.since_s
            gone += [id_] if now_s - told.since_s >= _FORESEEN_S else []
        return [position for id_ in gone for position in self._forget(id_)]

    def _forget(self, id_: str) -> list[Position]:
        key = self._foreseen.pop(id_)
        told = self._conversations[key].told.pop(id_)
        self._settle(key)
        return told.positions

    def add_feedback(self, key: str, reward: Reward, record: Record) -> None:
        """Feedback on a conversation, and the record that tells of it. Raises RecordError."""
        if self._num_said >= _MAX_SAID:
            raise RecordError(f"expected at most {_MAX_SAID} pieces of feedback to wait", reason=Reason.TOO_MANY_SCORES)
        conversation = self._at(key, record.partition)
        conversation.said.append(_Feedback(reward, record.position, record.headers))
        self._num_said += 1
        self._clocks.setdefault((UNCLAIMED, key), _CloseTimer(key, conversation.partition))

    def hasten(self, episode_id: str) -> None:
        """An episode's time is over now."""
        self._clocks[FEEDBACK, episode_id].is_surplus = True

    def due(self, now_s: float, now_ms: int = 0) -> Iterator[tuple[str, str, str, int, int]]:
        """(reason, id, key, partition, before which offset) of what is to be closed, or let go; the clock starts when
        it is first looked at, of an episode at its close, as far as `now_ms` or the log tell."""
        latest_ms = max(self._latest_ms, now_ms)
        for (reason, id_), clock in self._clocks.items():
            before = 0
            if reason == UNCLAIMED:
                is_over = (before := self._conversations[id_].behind_idle(now_s, self._patience_s)) > 0
            else:
                is_over = clock.is_over(now_s, latest_ms, self._wait_s)
            if is_over and now_s >= clock.next_s:
                clock.next_s = now_s + REPEAT_S
                yield "bound" if clock.is_surplus else reason, id_, clock.key, clock.partition, before

    def close(self, episode: Episode) -> tuple[Episode, list[Position], list[Parts]]:
        """An episode with all that was said of it, the inputs that nothing waits for behind it, and where what was said
        lies."""
        key, id_ = _key_of(episode), episode.episode_id
        conversation = self._conversations[key]
        about = [
            one
            for one in conversation.said
            if self._wait_s > 0 and is_about(one.reward, episode) and conversation.may_count(one, id_)
        ]
        told = conversation.told.pop(id_, None)
        del conversation.episodes[id_], self._clocks[FEEDBACK, id_]
        for one in about:
            one.has_counted = True
        # An answer is in one episode.
        done = [one for one in about if one.reward.target is not None]
        self._release(key, done)
        positions = [*(told.positions if told else ()), *(one.position for one in done)]
        return rated_anew(episode, [one.reward for one in about]), positions, [origins_in(one.headers) for one in about]

    def drop(self, key: str, before: int, at: int) -> tuple[list[tuple[Reward, Position]], list[Position]]:
        """What was said of a conversation before an offset is let go, which lies at another: no episode that is told of
        behind that has it. Returns what never counted, and the inputs of all else for which nothing waits any more."""
        conversation = self._conversations.get(key)
        if conversation is None:
            return [], []
        for one in conversation.said:
            if one.let_go_at is None and one.position.offset < before:
                one.let_go_at = at
        gone = [one for one in conversation.said if one.let_go_at is not None and not conversation.awaits(one)]
        self._clocks[UNCLAIMED, key] = _CloseTimer(key, conversation.partition)
        self._release(key, gone)
        late = [(one.reward, one.position) for one in gone if not one.has_counted]
        return late, [one.position for one in gone if one.has_counted]

    def _release(self, key: str, done: Sequence[_Feedback]) -> None:
        """Nothing waits for these any more."""
        conversation, released = self._conversations[key], set(done)
        conversation.said = [one for one in conversation.said if one not in released]
        self._num_said -= len(released)
        self._settle(key)

    def _settle(self, key: str) -> None:
        """Who has nothing is forgotten."""
        conversation = self._conversations[key]
        if not conversation.said:
            self._clocks.pop((UNCLAIMED, key), None)
        if not (conversation.episodes or conversation.said or conversation.told):
            del self._conversations[key]

    def _at(self, key: str, partition: int) -> _Conversation:
        return self._conversations.setdefault(key, _Conversation(partition))


def _key_of(episode: Episode) -> str:
    return episode.conversation or episode.episode_id
