"""How much a worker's open episodes may hold, in number and bytes: of calls, and of the spans of each sender, apart.

In: records on their way into an open episode, and that one has closed. Out: RecordError for what is too many.
Invariant: spans take no room from calls, and who sends without a credential none from who has one. Strays, traces of
which nothing but spans has come and that anybody can make by the thousand, are bounded apart from all other episodes:
those that came without a credential go first, of them the longest silent.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.facts import (
    CallEndedFact,
    CallFact,
    CallOpenFact,
    CallsClosedFact,
    ContextCallFact,
    Fact,
    Facts,
    LogFact,
    RewardFact,
    RolloutFact,
    SpanFact,
)

from ..config import StreamRules
from .agent_rewards import is_authorised
from .open_episode import CALLS, NOBODY, OUTCOMES, OpenEpisode


class Bounds:
    """What the open episodes of one worker hold, of what they may. Not thread-safe."""

    def __init__(self, rules: StreamRules) -> None:
        self._rules = rules
        self._num_bytes = 0
        """Of the input records of all open episodes."""
        self._num_unproved = 0
        """Likewise of `num_unproved_bytes`."""

    def clear(self) -> None:
        """Forgets all."""
        self._num_bytes = self._num_unproved = 0

    def hold(self, episode: OpenEpisode, record: Record, facts: Facts) -> None:
        """The episode holds one record more."""
        sender, num_bytes = _sender(facts), len(record.value or b"")
        held = episode.held[sender]
        held.num_records += 1
        held.num_bytes += num_bytes
        self._num_bytes += num_bytes
        if sender == NOBODY and episode.attempt is not None:
            self._num_unproved += num_bytes

    def forget(self, episode: OpenEpisode) -> None:
        """It is open no longer."""
        self._num_bytes -= episode.num_bytes
        self._num_unproved -= episode.num_unproved_bytes

    def check(self, episode: OpenEpisode, record: Record, facts: Facts) -> None:
        """Raises RecordError for what is too many, of calls and each sender's spans apart; what an end waits for is
        always taken."""
        num_new = sum(not self._is_awaited(fact) for fact in facts.facts)
        if not num_new:
            return
        limits, sender = self._rules.streams, _sender(facts)
        of_calls = sender in (CALLS, OUTCOMES)
        what = "calls" if of_calls else "spans"
        most = limits.max_calls_per_episode if of_calls else limits.max_spans_per_episode
        # That a call lasts, how it went, and that it was superseded; other models' calls among them.
        most *= 3 if sender == OUTCOMES else 1
        if episode.num_facts(sender) + num_new > most:
            raise RecordError(
                f"expected at most {most} {what} of {episode.episode_id}",
                reason=Reason.TOO_MANY_CALLS if of_calls else Reason.TOO_MANY_SPANS,
            )
        num_bytes = len(record.value or b"")
        most = limits.max_bytes_per_episode
        if episode.held[sender].num_bytes + num_bytes > most:
            raise RecordError(
                f"expected {what} of at most {most} bytes of {episode.episode_id}", reason=Reason.TOO_MANY_BYTES
            )
        num_open, quarter = self._num_bytes, limits.max_open_bytes // 4
        most = limits.max_open_bytes if of_calls else 3 * quarter
        if sender == NOBODY and episode.attempt is not None:
            num_open, most, what = self._num_unproved, quarter, f"unproved {what}"
        if num_open + num_bytes > most:
            raise RecordError(f"expected {what} while at most {most} bytes are open", reason=Reason.TOO_MANY_OPEN_BYTES)

    def _is_awaited(self, fact: Fact) -> bool:
        if isinstance(fact, RewardFact):
            return is_authorised(fact.reward, self._rules.reward_sources)
        return isinstance(fact, CallsClosedFact | RolloutFact)


def _sender(facts: Facts) -> str:
    """Whose bounds they come under: normalize mixes neither kinds nor senders in a record."""
    for fact in facts.facts:
        if isinstance(fact, CallFact | CallsClosedFact):
            return CALLS
        if isinstance(fact, CallOpenFact | CallEndedFact | ContextCallFact):
            return OUTCOMES
        if isinstance(fact, SpanFact | LogFact):
            return fact.proved_by
    return NOBODY


class Strays:
    """The strays of one worker, the longest silent first. Not thread-safe."""

    def __init__(self, max_traces: int, max_bytes: int) -> None:
        self._max_traces = max_traces
        self._max_bytes = max_bytes
        self._num_bytes = 0
        self._sizes: tuple[dict[str, int], dict[str, int]] = ({}, {})
        """Those that came without a credential of the run, which anybody can send, and those that came with one."""

    def __len__(self) -> int:
        return sum(map(len, self._sizes))

    def __contains__(self, episode_id: str) -> bool:
        return episode_id in self._sizes[False] or episode_id in self._sizes[True]

    def add_trace(self, episode_id: str, num_bytes: int, *, is_proved: bool) -> None:
        """One that is silent no longer, and holds so many bytes in all."""
        self.discard(episode_id)
        self._sizes[is_proved][episode_id] = num_bytes
        self._num_bytes += num_bytes

    def discard(self, episode_id: str) -> None:
        """One that is none, or no longer open."""
        for sizes in self._sizes:
            self._num_bytes -= sizes.pop(episode_id, 0)

    def surplus(self) -> Iterator[str]:
        """Takes out those beyond the bounds."""
        while len(self) > self._max_traces or self._num_bytes > self._max_bytes:
            episode_id = next(iter(self._sizes[False] or self._sizes[True]))
            self.discard(episode_id)
            yield episode_id

    def clear(self) -> None:
        """Forgets all."""
        for sizes in self._sizes:
            sizes.clear()
        self._num_bytes = 0
