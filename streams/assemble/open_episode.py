"""The facts of one episode that is still open, folded without regard to their order, and what it waits for.

Invariant: the same set of facts gives the same state, in any order and any number of times. Facts that claim the
same place conflict; the one with the greatest (end time, sha256) wins. Which sender of spans is the attempt's own agent
is known at its end; what others send in its name is not waited for and pays nothing.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from tracegrad.schemas.credentials import attempt_holder
from tracegrad.schemas.ids import AttemptId, RolloutId, key_in
from tracegrad.schemas.log.made_of import origin_header
from tracegrad.schemas.log.protocol import Headers, Position
from tracegrad.schemas.records.calls import CallEnded, CallOutcome, CallsClosed
from tracegrad.schemas.records.episodes import ClosedMarker
from tracegrad.schemas.records.facts import (
    CallEndedFact,
    CallFact,
    CallOpenFact,
    CallsClosedFact,
    ContextCallFact,
    Fact,
    LinkFact,
    LogFact,
    RewardFact,
    SpanFact,
    SpanKind,
)
from tracegrad.schemas.records.rollouts import AGENT_REWARD, Reward, RolloutEvent, RolloutState

from ..ratings import said_at
from .agent_rewards import is_authorised
from .join.span_tree import Parents
from .links import Links, answers_in
from .origins import Origins
from .sent_spans import SentSpans, later

CALLS = "calls"
"""Beside the senders of spans; no holder is so called."""
OUTCOMES = "outcomes"
"""Likewise: of what is told about captured calls."""
NOBODY = ""
"""The sender of what came without a credential."""
_MAX_SOURCES = 1_000
"""That a marker names."""
_TELLING = (SpanKind.AGENT, SpanKind.LLM, SpanKind.TOOL)


class WaitState(Enum):
    """What an open episode waits for, and so which clock may propose to close it."""

    NOTHING = "nothing"
    """Complete: it closes now."""
    COUNTED = "counted"
    """The attempt has ended; something that was counted is not here yet."""
    UNCOUNTED = "uncounted"
    """The attempt has ended and all that was counted is here; the rest was lost or never counted."""
    END = "end"
    """A runner works on the attempt; its end will come, so no clock is needed."""
    SILENCE = "silence"
    """No runner has spoken of it."""


class HeldRecords:
    """The input records of one kind or sender that an open episode holds back."""

    def __init__(self) -> None:
        self.num_records = 0
        self.num_bytes = 0


class OpenEpisode:
    """One episode's state in memory."""

    def __init__(
        self, episode_id: str, attempt: tuple[RolloutId, AttemptId] | None, *, partition: int, key: str | None = None
    ) -> None:
        self.episode_id = episode_id
        self.key = attempt[0] if attempt else key or episode_id
        """By which its facts come, and as links name it; of a conversation's later episode not its id."""
        self.attempt = attempt
        """What it is an attempt at; None for a captured trace, of which no runner will ever speak."""
        self.partition = partition
        self.positions: list[Position] = []
        self.origins = Origins(are_forwarded=attempt is None)
        self.held: defaultdict[str, HeldRecords] = defaultdict(HeldRecords)
        """What the calls hold (`CALLS`), and what the spans of each sender do: each has a bound of its own, so that
        nobody takes room from the attempt's agent."""
        self._sent = SentSpans()
        self.calls: dict[str, CallFact] = {}
        self.context: dict[str, ContextCallFact] = {}
        """Likewise, what other models answered."""
        self.closed: CallsClosed | None = None
        self._opened: dict[str, CallOpenFact] = {}
        self._ended: dict[str, CallEnded] = {}
        """Of captured calls, by their id."""
        self._parents = Parents()
        self._answers: set[str] = set()
        """As answers_in: kept, for each record of a long trace asks for them."""
        self._tells_of_its_own = False
        """Among them are those of calls of its own, here or to come."""
        self._is_bare = True
        """None of its spans tells of an agent, a model or a tool."""
        self.services: set[str] = set()
        self.rewards: dict[tuple[bool, str, str], Reward] = {}
        """By (authorised, source and idempotency key, target), so that nobody can displace a grader's reward."""
        self.links = Links()
        self.sources: set[str] = set()
        """Traces whose facts were forwarded here."""
        self.started: RolloutEvent | None = None
        self.end: RolloutEvent | None = None
        self.silent_since_s: float | None = None
        """When the clock first saw that no record came; None: one came since it last looked."""
        self.ended_at_s: float | None = None
        """When the clock first saw the attempt's end."""
        self.first_seen_s: float | None = None
        """When the clock first saw it."""
        self.next_proposal_s = 0.0

    @property
    def num_bytes(self) -> int:
        """Of the records that its facts came in."""
        return sum(held.num_bytes for held in self.held.values())

    @property
    def num_spans(self) -> int:
        """Of all senders."""
        return self._sent.num_spans

    @property
    def num_unproved_bytes(self) -> int:
        """Of a runner's attempt, those of them that came without a credential."""
        return self.held[NOBODY].num_bytes if self.attempt is not None else 0

    def num_facts(self, sender: str) -> int:
        """What it holds of CALLS, or of a sender's spans (rewards beside those that came without a credential); or the
        records that these came in, whichever is more."""
        if sender == CALLS:
            num = len(self.calls)
        elif sender == OUTCOMES:
            num = len(self._opened) + len(self._ended) + len(self.context)
        else:
            num = self._sent.num_of(sender) + (sender == NOBODY) * len(self.rewards)
        return max(num, self.held[sender].num_records)

    @property
    def outcomes(self) -> Mapping[str, CallOutcome]:
        """What became of its calls, as far as that is known."""
        if self.closed is not None:
            return self.closed.outcomes
        return {call_id: ended.outcome for call_id, ended in self._ended.items()}

    @property
    def is_at_work(self) -> bool:
        """Whether a captured agent works on, however silent: a call is in flight, or a span's parent has not ended."""
        return bool(self._parents.are_awaited or self._opened.keys() - self.calls.keys() - self._ended.keys())

    @property
    def spans(self) -> list[SpanFact]:
        """One of each place; where several senders filled it, the attempt's own."""
        own = self._own_senders()
        return self._of(sorted(self._sent.senders, key=lambda sender: (sender in own, sender)))

    @property
    def own_spans(self) -> list[SpanFact]:
        """Those that are known to be its agent's; of an episode of no runner, all."""
        own = self._own_senders()
        return self._of(sorted(self._sent.senders & own))

    def _of(self, senders: Sequence[str]) -> list[SpanFact]:
        strangers = self.links.strangers(self.minted)
        return [span for span in self._sent.filled(senders) if span.trace_id not in strangers]

    def _own_senders(self) -> frozenset[str]:
        if self.attempt is None:
            return self._sent.senders
        host = self.end.host if self.end is not None else None
        return frozenset((attempt_holder(*self.attempt), *((host,) if host else ())))

    def minted(self) -> set[str]:
        """The ids of its calls and tool calls."""
        told = (fact.told.response_id for fact in self.calls.values() if fact.told and fact.told.response_id)
        return {tool.id for fact in self.calls.values() for tool in fact.call.tool_calls}.union(self.calls, told)

    def is_told_of(self, trace: str | None, ids: Container[str | None]) -> bool:
        """Whether a trace that was forwarded is of it: it was before, or repeats one of its ids."""
        return self.links.brought(trace) or any(minted in ids for minted in self.minted())

    def target(self) -> tuple[str | None, bool]:
        """As Links.target; a runner's attempt is nobody else's."""
        if self.attempt is not None or self._is_named():
            return None, self.attempt is None and bool(self.links)
        answered = self.minted() if self._names_its_trace() and self._is_bare else ()
        # Not those that spans or log events tell: whether these came before the trace's root is chance.
        has_calls = any(not fact.told for fact in self.calls.values()) or bool(self.context) or self._tells_of_its_own
        return self.links.target(self.key, has_calls=has_calls, answered=answered)

    def pulls(self) -> list[LinkFact]:
        """As Links.pulls, for the trace of an agent whose client propagates nothing: no call names it."""
        if self.attempt is not None or not self.links or self._names_its_trace():
            return []
        return self.links.pulls(self.key, self._answers)

    def _names_its_trace(self) -> bool:
        return any(fact.call.trace_id == self.key for fact in self._told())

    def _told(self) -> Iterable[CallFact | ContextCallFact]:
        return itertools.chain(self.calls.values(), self.context.values())

    def _is_named(self) -> bool:
        """Whether the client itself said which conversation it is; spans count less. Where the gateway found that a
        call goes on from another, the key is that one's trace."""
        is_told = any(fact.call.conversation_key == self.key for fact in self._told())
        return is_told and not self._names_its_trace()

    def marker(self, disposition: str) -> ClosedMarker:
        """That it has closed; of a captured one with what the next of its conversation needs."""
        made = ClosedMarker(id=self.episode_id, disposition=disposition, num_calls=len(self.calls))
        if self.attempt is not None:
            return made
        own, traces = self._last_orders()
        return msgspec.structs.replace(made, key=self.key, last_orders=own, traces=traces)

    def _last_orders(self) -> tuple[tuple[tuple[int, int], ...], tuple[tuple[str, int, int], ...]]:
        """As ClosedMarker.last_orders and .traces."""
        last = {(trace, -1): -1 for trace in sorted(self.sources)[:_MAX_SOURCES]}
        for fact in self._told():
            place = (fact.call.key, fact.partition)
            last[place] = max(fact.order, last.get(place, -1))
        places = sorted((key, partition, order) for (key, partition), order in last.items())
        own = tuple((partition, order) for key, partition, order in places if key == self.key)
        return own, tuple(place for place in places if place[0] != self.key)

    def origin_of(self, reward: Reward) -> Headers:
        """Of a record that tells of one of its rewards alone."""
        return origin_header(self.origins.of_reward(reward))

    def is_whole(self) -> bool:
        """Whether its spans reach up to a root, none of them without its parent."""
        return self._parents.are_whole

    def facts(self) -> list[Fact]:
        """All that it holds of a captured trace, in canonical order."""
        calls = sorted(self.calls.values(), key=lambda fact: (fact.order, fact.call.call_id))
        ended = [CallEndedFact(ended=self._ended[call_id]) for call_id in sorted(self._ended)]
        opened = [self._opened[call_id] for call_id in sorted(self._opened)]
        rewards = [RewardFact(reward=self.rewards[key]) for key in sorted(self.rewards)]
        # Calls first: of a conversation that goes on they say which episode the rest is of.
        context = [self.context[call_id] for call_id in sorted(self.context)]
        return [*opened, *calls, *context, *ended, *self._sent.facts(), *rewards]

    @property
    def event(self) -> RolloutEvent | None:
        """The runner's last word."""
        return self.end or self.started

    def add_fact(self, fact: Fact, reward_sources: Sequence[str]) -> None:
        """Folds one fact in."""
        if isinstance(fact, SpanFact):
            self._sent.add_span(fact)
            if self.attempt is None:
                self._parents.add_span(fact)
                self._hear(answers_in((fact,)))
                self._is_bare &= fact.kind not in _TELLING
                self.services.add(fact.service)
        elif isinstance(fact, LogFact):
            self._sent.add_event(fact)
            self._hear({id_ for id_ in (fact.response_id, *fact.requested_tool_call_ids) if id_})
        elif isinstance(fact, CallFact):
            call_id = fact.call.call_id
            self.calls[call_id] = later(self.calls.get(call_id), fact, lambda call: call.call.ended_at_ns)
        elif isinstance(fact, ContextCallFact):
            call_id = fact.call.call_id
            self.context[call_id] = later(self.context.get(call_id), fact, lambda call: call.call.ended_at_ns)
        elif isinstance(fact, LinkFact):
            self.links.add_link(fact, self.key)
        elif isinstance(fact, CallsClosedFact):
            self.closed = later(self.closed, fact.closed, lambda closed: len(closed.outcomes))
        elif isinstance(fact, CallOpenFact):
            self._opened[fact.open.call_id] = fact
        elif isinstance(fact, CallEndedFact):
            call_id = fact.ended.call_id
            self._ended[call_id] = later(self._ended.get(call_id), fact.ended, lambda ended: ended.outcome.known)
        elif isinstance(fact, RewardFact):
            reward = fact.reward
            said_as = f"{reward.source} {reward.idempotency_key}"
            key = (is_authorised(reward, reward_sources), said_as, reward.target or "")
            self.rewards[key] = max(self.rewards.get(key, reward), reward, key=said_at)
        elif fact.event.state.is_end:
            self.end = later(self.end, fact.event, lambda event: event.at_ms)
        else:
            self.started = later(self.started, fact.event, lambda event: event.at_ms)

    def _hear(self, answers: set[str]) -> None:
        self._answers |= answers
        self._tells_of_its_own |= any(key_in(answer) == self.key for answer in answers)

    def waiting(self) -> WaitState:
        """What it waits for; the table under "assemble" in docs/streams.md."""
        if self.end is None:
            return WaitState.SILENCE if self.started is None else WaitState.END
        if self.end.state is RolloutState.GIVEN_UP:
            return WaitState.NOTHING
        if self.end.calls_closed and not self._has_its_calls():
            return WaitState.COUNTED
        if self.end.state is RolloutState.ABORTED:
            # Spans are left out of an aborted attempt's record, so nobody waits for them.
            return WaitState.NOTHING if self.end.calls_closed else WaitState.UNCOUNTED
        if not self._has_its_rewards() or not self._has_its_spans():
            return WaitState.COUNTED
        is_counted = self.end.calls_closed and self.end.spans_exported is not None and self.end.spans_lost == 0
        if AGENT_REWARD in self.end.rewards_awaited and not self._has_agents_reward():
            # Nobody counts what an agent says, and it may say nothing.
            is_counted = False
        return WaitState.NOTHING if is_counted else WaitState.UNCOUNTED

    def _has_its_calls(self) -> bool:
        return self.closed is not None and self.closed.outcomes.keys() <= self.calls.keys()

    def _has_its_spans(self) -> bool:
        """Whether all that the agent host counted are here. Spans of other processes that share the trace are taken in
        and not waited for; were they counted, they would close the episode before the host's own came."""
        assert self.end is not None
        num_here = self._sent.num_here(self._own_senders(), is_marked=self.end.spans_marked)
        return num_here >= (self.end.spans_exported or 0)

    def _has_its_rewards(self) -> bool:
        assert self.end is not None
        scored = {reward.name for (counts, _, _), reward in self.rewards.items() if counts}
        return scored.issuperset(name for name in self.end.rewards_awaited if name != AGENT_REWARD)

    def _has_agents_reward(self) -> bool:
        posted = any(counts and reward.name == AGENT_REWARD for (counts, _, _), reward in self.rewards.items())
        return posted or any(said.target is None for span in self.own_spans for said in span.rewards)
