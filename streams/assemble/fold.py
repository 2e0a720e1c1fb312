"""Stage `assemble`: folds facts into episodes and closes each of them exactly once.

In: `episode_events` (facts, and close proposals that some worker's clock made). Out: `episodes`, and a marker on
`closed_episodes` in the input's partition. Invariant: closing is decided by records only, so a replay closes alike;
facts of a closed episode are late: counted, acknowledged, never folded. Which episodes a run takes (its own rollouts,
and what `[select]` names) is judged after the join. An input position is done when its episode's
marker is acknowledged. Traces of which nothing but spans has come are strays: bounded apart, so that a flood of them
takes no room from rollouts; those that `[select]` cannot want end without a close, a record or a marker. Failure: an
unreadable record, or one above a bound, is a dead letter.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import attempt_of, is_rollout, waiting_id
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.made_of import origin_header, origins_in
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import (
    EPISODES_CLOSED,
    EPISODES_CLOSED_BY,
    FACTS_LATE,
    LINKS,
    PROPOSALS,
    PROPOSALS_VOID,
    Metrics,
)
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import ClosedMarker
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    CallFact,
    Close,
    ContextCallFact,
    Fact,
    Facts,
    LinkFact,
    LogFact,
    SpanFact,
)
from tracegrad.schemas.records.rollouts import Reward
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..config import StreamRules
from ..ratings import pieces_of
from ..stage_fold import StageFold
from .agent_rewards import is_authorised
from .air.apply import Rewarder
from .bounds import Bounds, Strays
from .deadlines import due
from .late_feedback import divided, emitted, feedback_in, scores
from .links import MAX_HOPS, asked_of, forwarded, is_of_conversation, may_complete, moved
from .open_episode import OpenEpisode, WaitState
from .stretches import Stretches
from .told_calls import ToldCalls
from .write.again import Judge, judged
from .write.emit import disposition_of, emit


class Assemble(StageFold[OpenEpisode]):
    """The fold of `assemble`."""

    marker_topic = Topic.CLOSED_EPISODES
    stage = Stage.ASSEMBLE

    def __init__(
        self,
        rules: StreamRules,
        topics: Topics,
        metrics: Metrics | None = None,
        *,
        told_calls: ToldCalls | None = None,
        judge: Judge | None = None,
    ) -> None:
        """Of a replay of a history alone: who makes calls of what spans tell, and who rates its episodes."""
        super().__init__(rules, topics, metrics)
        self._told_calls = told_calls
        self._judge = judge
        limits = rules.streams
        self._bounds = Bounds(rules)
        self._strays = Strays(limits.max_stray_traces, limits.max_bytes_per_episode)
        self._stretches = Stretches(max(limits.max_closed_ids // 10, 1))
        self._reward = Rewarder(rules.air, self.metrics)

    def reset(self) -> None:
        """As Fold.reset."""
        super().reset()
        self._bounds.clear()
        self._strays.clear()
        self._stretches.clear()

    def propose(self, now_s: float, now_ms: int = 0) -> Sequence[Output]:
        """As Fold.propose; due are lost and uncounted spans, silence, and too many open episodes."""
        proposals = []
        strays = [episode for id_, episode in self._open.items() if id_ in self._strays]
        others = [episode for id_, episode in self._open.items() if id_ not in self._strays]
        for episode, reason in (pair for group in (others, strays) for pair in due(group, now_s, self._rules.streams)):
            if episode.episode_id in self._strays and not self._may_want(episode):
                self._strays.discard(episode.episode_id)
                self._let_stray_go(episode.episode_id)
                continue
            self.metrics.add(PROPOSALS, reason)
            rollout = episode.attempt[0] if episode.attempt else None
            num_records = len(episode.positions) if reason == "idle" else 0
            close = Close(episode_id=episode.episode_id, reason=reason, num_records=num_records)
            proposals.append(
                Output(
                    topic=Topic.EPISODE_EVENTS,
                    key=episode_key(rollout, episode.episode_id),
                    value=EPISODE_EVENTS.encode(close),
                    partition=episode.partition,
                )
            )
        return proposals

    def _may_want(self, stray: OpenEpisode) -> bool:
        """Whether `[select]` could name it; a stray that bears a run's hash is not known to that run's runner."""
        select = self._rules.select
        return stray.attempt is None and bool(stray.links or select.capture_all or select.services or select.agents)

    def _let_stray_go(self, episode_id: str) -> None:
        stray = self._open.pop(episode_id)
        self._bounds.forget(stray)
        self._let_go.extend(stray.positions)
        self.metrics.add(EPISODES_CLOSED, "stray")

    def _take(self, record: Record) -> Emission:
        event = EPISODE_EVENTS.decode(record.value)
        # That this worker can read its own proposals says nothing of what normalize writes.
        if isinstance(event, Facts):
            self._refusals.accept(record)
            event = self._to_attempt(event)
            to = self._forwarded_to(event.episode_id)
            if to is not None and event.hops < MAX_HOPS and not self._stays(event, to):
                return self._forward_on(record, event, to)
        key = event.episode_id
        if isinstance(event, Facts) and self._is_closed(key):
            event = self._of_stretch(event)
        if self._is_closed(event.episode_id):
            self._count_late(event)
            late = self._feedback(event.facts) if isinstance(event, Facts) else []
            of_record = origin_header(origins_in(record.headers))
            return Emission(outputs=scores(key, late, lambda _: of_record), done=(record.position,))
        return self._obey(record, event) if isinstance(event, Close) else self._add(record, event, key)

    def _of_stretch(self, facts: Facts) -> Facts:
        """As those of the episode that goes on with a conversation; its first call takes what has waited for it."""
        key = facts.episode_id
        stretch = self._stretches.episode(facts, is_moved=self._forwarded_to(key) is not None)
        waiting = self._open.get(waiting_id(key))
        if waiting is not None and stretch not in (None, waiting.episode_id):
            was_stray = waiting.episode_id in self._strays
            self._strays.discard(waiting.episode_id)
            self._open[stretch] = self._open.pop(waiting.episode_id)
            waiting.episode_id = stretch
            if was_stray:
                self._strays.add_trace(stretch, waiting.num_bytes, is_proved=any(waiting.held))
        return msgspec.structs.replace(facts, episode_id=stretch or key)

    def _remember(self, marker: ClosedMarker) -> None:
        super()._remember(marker)
        if marker.key is not None and (marker.forwarded_to is None or marker.id != marker.key):
            self._stretches.closed(marker)
        elif marker.forwarded_to is not None and marker.num_calls:
            self._stretches.move(marker.id)

    def _target(self, episode: OpenEpisode) -> tuple[str | None, bool]:
        """As OpenEpisode.target; nothing goes back to where it came from, or on from where it stayed."""
        to, is_torn = episode.target()
        is_round = episode.episode_id != episode.key and self._forwarded_to(episode.key) is not None
        return (None, True) if to is not None and (is_round or to in episode.sources) else (to, is_torn)

    def _stays(self, facts: Facts, to: str) -> bool:
        """Whether no span moves it: calls, which no attempt is to get, what comes while these are open, and what is
        of a conversation, whose key a stranger may have given to a trace; but a call may go on from one of a trace that
        was moved, and is of a conversation that is called like it."""
        if self._stretches.is_open(facts.episode_id):
            return True
        if is_rollout(to) and any(isinstance(fact, CallFact | ContextCallFact) for fact in facts.facts):
            return True
        if self._stretches.has_moved(facts.episode_id):
            return False
        return self._stretches.is_known(facts.episode_id) or is_of_conversation(facts)

    def _count_late(self, event: Facts | Close) -> None:
        if isinstance(event, Facts):
            num_calls = sum(isinstance(fact, CallFact) for fact in event.facts)
            self.metrics.add(FACTS_LATE, "calls", num=num_calls)
            self.metrics.add(FACTS_LATE, "other", num=len(event.facts) - num_calls)

    def _obey(self, record: Record, close: Close) -> Emission:
        """Closes what a clock proposed to close. A proposal for nothing has nothing to wait for, and one of silence is
        void when something came before it: whoever made it lagged behind."""
        episode = self._open.get(close.episode_id)
        if episode is None:
            return Emission(done=(record.position,))
        if close.num_records and close.num_records != len(episode.positions):
            self.metrics.add(PROPOSALS_VOID)
            return Emission(done=(record.position,))
        episode.positions.append(record.position)
        if episode.episode_id == waiting_id(episode.key):
            return self._give_up(episode)
        return self._write(record, episode, close.reason)

    def _give_up(self, waiting: OpenEpisode) -> Emission:
        """No call of the conversation has come, so that what waited for it came too late for the one before."""
        del self._open[waiting.episode_id]
        self._strays.discard(waiting.episode_id)
        self._bounds.forget(waiting)
        facts = waiting.facts()
        self.metrics.add(FACTS_LATE, "other", num=len(facts))
        late = scores(waiting.key, self._feedback(facts), waiting.origin_of)
        return Emission(outputs=late, done=tuple(sorted(set(waiting.positions))))

    def _add(self, record: Record, facts: Facts, key: str) -> Emission:
        episode = self._open.get(facts.episode_id)
        was_stray = episode is None or facts.episode_id in self._strays
        is_stray = was_stray and all(isinstance(fact, SpanFact | LinkFact | LogFact) for fact in facts.facts)
        if was_stray and not is_stray:
            num_open = len(self._open) - len(self._strays)
            if num_open >= self._rules.streams.max_open_episodes:
                raise RecordError(f"expected at most {num_open} open episodes", reason=Reason.TOO_MANY_OPEN)
        if episode is None:
            attempt = attempt_of(facts.episode_id, self._rules.runs)
            episode = OpenEpisode(facts.episode_id, attempt, partition=record.partition, key=key)
        self._bounds.check(episode, record, facts)
        self._open[facts.episode_id] = episode
        episode.positions.append(record.position)
        episode.origins.add_record(facts.facts, origins_in(record.headers))
        self._bounds.hold(episode, record, facts)
        episode.silent_since_s, episode.next_proposal_s = None, 0.0
        if facts.forwarded_from is not None:
            episode.sources.add(facts.forwarded_from)
        for fact in facts.facts:
            episode.add_fact(fact, self._rules.reward_sources)
        self._strays.discard(facts.episode_id)
        if episode.links and any(map(may_complete, facts.facts)):
            to, _ = self._target(episode)
            if to is not None and (
                episode.links.are_asked_for(to) or (episode.is_whole() and episode.links.are_sure_of(to))
            ):
                return self._forward(episode, to)
        if is_stray:
            self._strays.add_trace(facts.episode_id, episode.num_bytes, is_proved=any(episode.held))
            for surplus in self._strays.surplus():
                self._let_stray_go(surplus)
        elif episode.waiting() is WaitState.NOTHING:
            return self._write(record, episode, "complete")
        # With calls of its links' other keys here, too: a further key is asked as the first two were.
        asked = (Facts(episode_id=pull.trace_id, facts=(pull,)) for pull in episode.pulls())
        return Emission(outputs=tuple(moved(one, {}) for one in asked))

    def _to_attempt(self, facts: Facts) -> Facts:
        """Of what was forwarded to a rollout: to the attempt whose call bears one of the ids, which has to be open."""
        if facts.forwarded_from is not None and attempt_of(facts.episode_id, self._rules.runs):
            raise RecordError(f"expected facts of {facts.episode_id}, got others", reason=Reason.IDENTITY_CONFLICT)
        if not is_rollout(facts.episode_id):
            return facts
        minted = {fact.minted_id for fact in facts.facts if isinstance(fact, LinkFact)}
        attempts = (one for one in self._open.values() if one.attempt and one.key == facts.episode_id)
        of_spans = all(isinstance(fact, SpanFact | LogFact | LinkFact) for fact in facts.facts)
        known = (one for one in attempts if of_spans and one.is_told_of(facts.forwarded_from, minted))
        found = next((one.episode_id for one in known), None)
        if found is None:
            raise RecordError(f"expected an open attempt of rollout {facts.episode_id}, got none", reason=Reason.LATE)
        return msgspec.structs.replace(facts, episode_id=found)

    def _forward(self, episode: OpenEpisode, to: str) -> Emission:
        """Closes a captured trace, whose facts go to the key that it names."""
        self._strays.discard(episode.episode_id)
        self._bounds.forget(episode)
        self.metrics.add(LINKS, "forwarded")
        self.metrics.add(EPISODES_CLOSED, "forwarded")
        marker = msgspec.structs.replace(episode.marker("forwarded"), forwarded_to=to)
        batches = forwarded(episode.key, to, episode.links.away, episode.facts())
        outputs = tuple(moved(batch, episode.origins.of(batch.facts)) for batch in batches)
        return self._close(marker, episode.positions, outputs)

    def _forward_on(self, record: Record, facts: Facts, to: str) -> Emission:
        """What comes of a trace that was forwarded goes the same way."""
        links = [fact for fact in facts.facts if isinstance(fact, LinkFact)]
        others = [link for link in links if link.key != to]
        if others:
            self.metrics.add(LINKS, "late")
        rest = [fact for fact in facts.facts if not isinstance(fact, LinkFact)]
        parts = origins_in(record.headers)
        outputs = [moved(one, parts) for one in forwarded(facts.episode_id, to, links, rest, hops=facts.hops + 1)]
        outputs += [moved(one, {}) for one in asked_of(others, rest)]
        marker = None
        num_calls = sum(isinstance(fact, CallFact | ContextCallFact) for fact in rest)
        if num_calls and not self._stretches.has_moved(facts.episode_id):
            # Told anew, for its calls show that it is a trace.
            closed = ClosedMarker(id=facts.episode_id, disposition="forwarded", num_calls=num_calls, forwarded_to=to)
            self._remember(closed)
            marker = self._told(closed, record.partition)
        return Emission(outputs=tuple(outputs), marker=marker, done=(record.position,))

    def _write(self, record: Record, episode: OpenEpisode, closed_by: str) -> Emission:
        to, is_torn = self._target(episode)
        if to is not None:
            return self._forward(episode, to)
        if is_torn:
            self.metrics.add(LINKS, "two_keys")
        if episode.links.are_cut:
            self.metrics.add(LINKS, "too_many")
        if strangers := len(episode.links.strangers(episode.minted)):
            self.metrics.add(LINKS, "unknown_id", num=strangers)
        self._strays.discard(episode.episode_id)
        disposition = disposition_of(episode, self._rules)
        self.metrics.add(EPISODES_CLOSED, disposition)
        self.metrics.add(EPISODES_CLOSED_BY, closed_by)
        marker = episode.marker(disposition)
        outputs: tuple[Output, ...] = ()
        if disposition == "emitted":
            if self._told_calls is not None:
                episode.calls = self._told_calls.made(episode.calls.values(), episode.spans, self.metrics)
            outputs = emit(
                episode,
                record,
                closed_by,
                reward=judged(self._judge, episode, self._reward),
                rules=self._rules,
                topics=self._topics,
                metrics=self.metrics,
            )
        if episode.attempt is None:
            said, minted = self._feedback(episode.facts()), episode.minted() if disposition == "emitted" else None
            # Where nothing trains on them no earlier one waits, and it would be late though it counts here.
            has_earlier = self._rules.select.train and self._stretches.is_known(episode.key)
            here, elsewhere = divided(said, minted, has_earlier=has_earlier)
            if self._rules.select.train and minted is not None:
                outputs = (*outputs, emitted(episode.key, episode.episode_id))
            outputs = (*outputs, *scores(episode.key, elsewhere, episode.origin_of))
            marker = msgspec.structs.replace(marker, heard=pieces_of(here))
        self._bounds.forget(episode)
        return self._close(marker, episode.positions, outputs)

    def _feedback(self, facts: Iterable[Fact]) -> list[Reward]:
        """What people said, if that counts."""
        return [reward for reward in feedback_in(facts) if is_authorised(reward, self._rules.reward_sources)]
