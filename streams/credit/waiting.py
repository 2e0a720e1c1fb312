"""Conversations whose episodes have closed and that people may still rate, and what they said meanwhile.

In: captured episodes, feedback that came behind them, the clock. Out: which are due, by proposals; and each episode
that a proposal closes, with all that was said of it. Invariant: feedback is about episodes by what it names and by when
it was said, never by when it came here; it is held until the last episode that it may be about has closed. Bounded:
what is too much is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.records.episodes import FEEDBACK, UNCLAIMED, Episode
from tracegrad.schemas.records.rollouts import Reward

from ..ratings import is_about, rated_anew

__all__ = ["Waiting"]

_REPEAT_S = 30.0
"""A proposal that led to nothing by then was lost with a worker; it is made again."""
_MAX_SAID = 50_000
"""Pieces of feedback that wait in one worker."""


@dataclass
class _Conversation:
    """One key."""

    partition: int
    episodes: set[str] = field(default_factory=set)
    """Those that wait."""
    said: list[tuple[Reward, Position]] = field(default_factory=list)


@dataclass
class _Due:
    """When something is proposed, and again."""

    key: str
    partition: int
    since_s: float | None = None
    next_s: float = 0.0


class Waiting:
    """The conversations of one worker."""

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self._conversations: dict[str, _Conversation] = {}
        self._clocks: dict[tuple[str, str], _Due] = {}
        """(why a close is to be proposed, of which id) -> when."""
        self._num_said = 0

    def clear(self) -> None:
        """Forgets all."""
        self._conversations.clear()
        self._clocks.clear()
        self._num_said = 0

    def add(self, episode: Episode, partition: int) -> None:
        """An episode that waits."""
        key = _key_of(episode)
        self._at(key, partition).episodes.add(episode.episode_id)
        self._clocks[FEEDBACK, episode.episode_id] = _Due(key, partition)
        self._clocks.pop((UNCLAIMED, key), None)

    def hear(self, key: str, reward: Reward, position: Position) -> None:
        """Feedback on a conversation. Raises RecordError."""
        if self._num_said >= _MAX_SAID:
            raise RecordError(f"expected at most {_MAX_SAID} pieces of feedback that wait", reason="too_many_scores")
        conversation = self._at(key, position.partition)
        conversation.said.append((reward, position))
        self._num_said += 1
        self._settle(key, conversation)

    def due(self, now_s: float) -> Iterator[tuple[str, str, str, int]]:
        """(reason, id, key, partition) of what is to be closed; the clock starts when it is first looked at."""
        for (reason, id_), clock in self._clocks.items():
            if clock.since_s is None:
                clock.since_s = now_s
            if now_s - clock.since_s >= self.wait_s and now_s >= clock.next_s:
                clock.next_s = now_s + _REPEAT_S
                yield reason, id_, clock.key, clock.partition

    def close(self, episode: Episode) -> tuple[Episode, list[Position]]:
        """An episode with all that was said of it, and the inputs that nothing waits for behind it."""
        key = _key_of(episode)
        conversation = self._conversations[key]
        conversation.episodes.discard(episode.episode_id)
        del self._clocks[FEEDBACK, episode.episode_id]
        about, done, rest = [], [], []
        for reward, position in conversation.said:
            is_its_own = is_about(reward, episode)
            if is_its_own:
                about.append(reward)
            if is_its_own and (reward.target is not None or not conversation.episodes):
                done.append(position)
            else:
                rest.append((reward, position))
        conversation.said = rest
        self._num_said -= len(done)
        self._settle(key, conversation)
        return rated_anew(episode, about), done

    def drop(self, key: str) -> list[Position]:
        """What was said of a conversation of which no episode waits; nothing while one does."""
        conversation = self._conversations.get(key)
        if conversation is None or conversation.episodes:
            return []
        self._num_said -= len(conversation.said)
        positions = [position for _, position in conversation.said]
        conversation.said = []
        self._settle(key, conversation)
        return positions

    def _settle(self, key: str, conversation: _Conversation) -> None:
        """Feedback that is about nothing that waits has a clock of its own; who has nothing is forgotten."""
        if conversation.episodes:
            return
        if conversation.said:
            self._clocks.setdefault((UNCLAIMED, key), _Due(key, conversation.partition))
        else:
            del self._conversations[key]
            self._clocks.pop((UNCLAIMED, key), None)

    def _at(self, key: str, partition: int) -> _Conversation:
        return self._conversations.setdefault(key, _Conversation(partition))


def _key_of(episode: Episode) -> str:
    return episode.conversation or episode.episode_id
