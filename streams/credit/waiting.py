"""Conversations whose episodes have closed and that people may still rate, and what they said meanwhile.

In: captured episodes, feedback that came behind them, the clock. Out: which are due, by proposals; and each episode
that a proposal closes, with all that was said of it. Invariant: feedback is about episodes by what it names and by when
it was said, never by when it came here; it is held until the last episode here that it is about has closed, and what
is about none of them for the wait, however long its conversation goes on. A proposal that comes before its episode, as
after a restart, closes that where it stands, and is an input of it: whoever takes over then reads it too. Bounded: what
is too much is refused.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.made_of import Parts, origins_in
from tracegrad.schemas.log.protocol import Headers, Position, Record
from tracegrad.schemas.records.episodes import FEEDBACK, UNCLAIMED, Episode
from tracegrad.schemas.records.rollouts import Reward

from ..ratings import is_about, rated_anew

__all__ = ["Waiting"]

_REPEAT_S = 30.0
"""A proposal that led to nothing by then was lost with a worker; it is made again."""
_MAX_SAID = 50_000
"""Pieces of feedback that wait in one worker."""
_MAX_FORESEEN = 10_000
"""Proposals that came before their episodes; of one that is forgotten the episode waits anew."""
_FORESEEN_S = 3_600.0
"""One whose episode has not come by then is of an episode that closed long ago, and would never be done."""


@dataclass
class _Conversation:
    """One key."""

    partition: int
    episodes: dict[str, Episode] = field(default_factory=dict)
    """Those that wait."""
    said: list[tuple[Reward, Position, Headers]] = field(default_factory=list)
    """In the order of the records."""

    def claims(self, reward: Reward) -> bool:
        """Whether it is about an episode that waits."""
        return any(is_about(reward, episode) for episode in self.episodes.values())


@dataclass
class _Foreseen:
    """A proposal that came before its episode."""

    position: Position
    since_s: float | None = None
    """When it was first looked at."""


@dataclass
class _Due:
    """When something is proposed, and again."""

    key: str
    partition: int
    at_ms: int | None = None
    """Of an episode: when its record was written, by the writer's clock; None: it counts from when it is looked at."""
    since_s: float | None = None
    next_s: float = 0.0
    last_offset: int = -1
    """Of feedback: of what was there when the clock started."""
    is_surplus: bool = False
    """Its time is over because others need the room."""


class Waiting:
    """The conversations of one worker."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self._conversations: dict[str, _Conversation] = {}
        self._clocks: dict[tuple[str, str], _Due] = {}
        """(why a close is to be proposed, of which id) -> when."""
        self._foreseen: OrderedDict[str, _Foreseen] = OrderedDict()
        """By the episode, which is not here."""
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

    def saw(self, at_ms: int) -> None:
        """A record that was written then."""
        self._latest_ms = max(self._latest_ms, at_ms)

    def add(self, episode: Episode, partition: int, at_ms: int) -> bool:
        """An episode that waits; False: it does not, for that its time is over stands on the log."""
        key = _key_of(episode)
        self._at(key, partition).episodes[episode.episode_id] = episode
        self._clocks[FEEDBACK, episode.episode_id] = _Due(key, partition, at_ms or None)
        return self.wait_s > 0 and episode.episode_id not in self._foreseen

    def foresee(self, episode_id: str, position: Position) -> tuple[Position, ...]:
        """The close of an episode that is not here yet was proposed: what was said behind that is not its own. Returns
        the proposals for which nothing waits any more."""
        if episode_id in self._foreseen:
            return (position,)
        self._foreseen[episode_id] = _Foreseen(position)
        if len(self._foreseen) <= _MAX_FORESEEN:
            return ()
        return (self._foreseen.popitem(last=False)[1].position,)

    def forget(self, now_s: float) -> list[Position]:
        """Proposals whose episodes do not come."""
        for one in self._foreseen.values():
            one.since_s = now_s if one.since_s is None else one.since_s
        gone = [id_ for id_, one in self._foreseen.items() if now_s - (one.since_s or 0.0) >= _FORESEEN_S]
        return [self._foreseen.pop(id_).position for id_ in gone]

    def hear(self, key: str, reward: Reward, record: Record) -> None:
        """Feedback on a conversation, and the record that tells of it. Raises RecordError."""
        if self._num_said >= _MAX_SAID:
            raise RecordError(f"expected at most {_MAX_SAID} pieces of feedback that wait", reason="too_many_scores")
        conversation = self._at(key, record.partition)
        conversation.said.append((reward, record.position, record.headers))
        self._num_said += 1
        if not conversation.claims(reward):
            self._clocks.setdefault((UNCLAIMED, key), _Due(key, conversation.partition))

    def hasten(self, episode_id: str) -> None:
        """An episode's time is over now."""
        self._clocks[FEEDBACK, episode_id].is_surplus = True

    def due(self, now_s: float, now_ms: int = 0) -> Iterator[tuple[str, str, str, int]]:
        """(reason, id, key, partition) of what is to be closed; the clock starts when it is first looked at, of an
        episode at its close, as far as `now_ms` or the log tell."""
        latest_ms = max(self._latest_ms, now_ms)
        for (reason, id_), clock in self._clocks.items():
            if clock.since_s is None:
                passed_ms = 0 if clock.at_ms is None else max(latest_ms - clock.at_ms, 0)
                clock.since_s = now_s - passed_ms / 1000
                if reason == UNCLAIMED:
                    clock.last_offset = self._conversations[id_].said[-1][1].offset
            is_over = clock.is_surplus or now_s - clock.since_s >= self.wait_s
            if is_over and now_s >= clock.next_s:
                clock.next_s = now_s + _REPEAT_S
                yield "bound" if clock.is_surplus else reason, id_, clock.key, clock.partition

    def close(self, episode: Episode) -> tuple[Episode, list[Position], list[Parts]]:
        """An episode with all that was said of it, the inputs that nothing waits for behind it, and where what was said
        lies."""
        key = _key_of(episode)
        conversation = self._conversations[key]
        del conversation.episodes[episode.episode_id]
        del self._clocks[FEEDBACK, episode.episode_id]
        end = self._foreseen.pop(episode.episode_id, None)
        done = [] if end is None else [end.position]
        about, rest, origins = [], [], []
        num_said = len(conversation.said)
        for reward, position, headers in conversation.said:
            is_its_own = is_about(reward, episode) and (end is None or position.offset < end.position.offset)
            if is_its_own:
                about.append(reward)
                origins.append(origins_in(headers))
            if is_its_own and not conversation.claims(reward):
                done.append(position)
            else:
                rest.append((reward, position, headers))
        conversation.said = rest
        self._num_said -= num_said - len(rest)
        self._settle(key, conversation)
        return rated_anew(episode, about), done, origins

    def drop(self, key: str) -> list[tuple[Reward, Position]]:
        """What was said of a conversation, and is about no episode of it that waits; nothing where this worker's clock
        did not propose it: what another had not read is no reason to lose it here."""
        conversation, clock = self._conversations.get(key), self._clocks.get((UNCLAIMED, key))
        if conversation is None or clock is None or not clock.next_s:
            return []
        del self._clocks[UNCLAIMED, key]
        gone: list[tuple[Reward, Position]] = []
        rest: list[tuple[Reward, Position, Headers]] = []
        for reward, position, headers in conversation.said:
            if position.offset <= clock.last_offset and not conversation.claims(reward):
                gone.append((reward, position))
            else:
                rest.append((reward, position, headers))
        conversation.said = rest
        self._num_said -= len(gone)
        self._settle(key, conversation)
        return gone

    def _settle(self, key: str, conversation: _Conversation) -> None:
        """Feedback that is about nothing that waits has a clock of its own; who has nothing is forgotten."""
        if all(conversation.claims(reward) for reward, _, _ in conversation.said):
            self._clocks.pop((UNCLAIMED, key), None)
        else:
            self._clocks.setdefault((UNCLAIMED, key), _Due(key, conversation.partition))
        if not conversation.episodes and not conversation.said:
            del self._conversations[key]

    def _at(self, key: str, partition: int) -> _Conversation:
        return self._conversations.setdefault(key, _Conversation(partition))


def _key_of(episode: Episode) -> str:
    return episode.conversation or episode.episode_id
