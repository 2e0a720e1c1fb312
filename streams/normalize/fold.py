"""Stage `normalize`: raw records become facts, grouped by episode; the first stage, and one without state.

In: `otlp_spans`, `otlp_logs`, `llm_calls`, `rewards`, `rollout_events`. Out: `episode_events`, keyed as the raw
records are: by rollout id, else a conversation's key, else trace id.
Invariant: facts depend on the raw record only (its origin travels in a header), so a replay gives equal bytes. A raw
record gives at most one record of facts for an episode, and one more for each further 500 spans: facts are larger than
spans, so those of a request of 8 MiB fit in no single record. That is sound, since the cuts are the request's own: a
re-delivery appends equal records, in order, under one key; the request is done when all are acknowledged; and whoever
reads only some of them takes each fact once and closes by counts, never by records.
Failure: what cannot be read is a dead letter with its reason; what belongs to other runs is dropped and counted.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Any

from tracegrad.schemas.errors import RecordError, UndecodableError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import attempt_of
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.mac import is_by_own_run, signer_of
from tracegrad.schemas.log.made_of import origin_header, place_of
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import CALLS_UNPROVED, CONTEXT_CALLS, FACTS, LINKS, NOT_SELECTED, Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import (
    LLM_CALLS,
    CallEnded,
    CallOpen,
    CallRecord,
    CallsClosed,
    LlmCall,
    UpstreamCall,
)
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    MAX_FACTS_PER_RECORD,
    MAX_LINKS,
    CallEndedFact,
    CallFact,
    CallOpenFact,
    CallsClosedFact,
    ContextCallFact,
    Fact,
    Facts,
    LinkFact,
    RewardFact,
    RolloutFact,
    link_order,
)
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, Reward, RolloutEvent
from tracegrad.schemas.topics import INPUTS, Stage, Topic, Topics

from ..config import StreamRules
from ..stage_fold import StageFold, dead_letter
from .read_logs import LogReader
from .read_spans import SpanReader
from .reading.judge_tool import ToolJudge
from .scan import TOLD, episode_of
from .span_links import link_of_call

_MAX_TOLD = 8
"""Calls that spans tell, in a record: each may be some 100 kB."""


class Normalize(StageFold[None]):
    """The fold of `normalize`; each record is done as soon as its facts are acknowledged, so nothing is ever open."""

    stage = Stage.NORMALIZE

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        super().__init__(rules, topics, metrics)
        self._runs = rules.runs
        judge = ToolJudge(rules.streams.tools)
        self._spans = SpanReader(self._runs, judge=judge, metrics=self.metrics, history=rules.history)
        self._logs = LogReader(self._runs, judge=judge, metrics=self.metrics, history=rules.history)
        self._raw = {topics.name(topic): topic for topic in INPUTS[Stage.NORMALIZE]}
        self._spans_topic, self._logs_topic = topics.name(Topic.OTLP_SPANS), topics.name(Topic.OTLP_LOGS)
        self._codecs: dict[str, Codec[Any]] = {
            topics.name(Topic.LLM_CALLS): LLM_CALLS,
            topics.name(Topic.REWARDS): REWARDS,
            topics.name(Topic.ROLLOUT_EVENTS): ROLLOUT_EVENTS,
        }

    def _take(self, record: Record) -> Emission:
        if record.topic == self._spans_topic:
            outputs = self._fold_items(record, self._spans, "spans")
        elif record.topic == self._logs_topic:
            outputs = self._fold_items(record, self._logs, "logs")
        elif record.topic in self._codecs:
            outputs = self._fold_item(record, self._codecs[record.topic])
        else:
            raise RecordError(f"expected a raw topic, got {record.topic!r}", reason=Reason.UNKNOWN_TOPIC)
        return Emission(outputs=tuple(outputs), done=(record.position,))

    def _fold_items(self, record: Record, reader: SpanReader | LogReader, what: str) -> list[Output]:
        """The facts of the items of an OTLP request."""
        if record.value is None:
            raise UndecodableError("expected a record, got a tombstone (null value)", reason=Reason.NULL_VALUE)
        scan = reader.read(record.value, signer=signer_of(record))
        self._refusals.accept(record)
        outputs = []
        for (episode, sender), facts in scan.facts.items():
            self.metrics.add(FACTS, what, num=len(facts))
            most = _MAX_TOLD if sender == TOLD else MAX_FACTS_PER_RECORD
            for start in range(0, len(facts), most):
                # Links first: the spans behind them may complete the trace.
                links = self._links(scan.links.get(episode, ())) if start == 0 else ()
                outputs.append(self._facts(record, episode, [*links, *facts[start : start + most]]))
        for refused in scan.refused.values():
            value = refused.request.SerializeToString()
            outputs.append(dead_letter(record, refused.error, stage=self.stage, value=value, item=refused.item))
        if scan.damage is not None:
            outputs.append(dead_letter(record, scan.damage, stage=self.stage))
        return outputs

    def _links(self, named: Collection[LinkFact]) -> list[LinkFact]:
        """Those of one trace in a record, few enough for one."""
        if len(named) > MAX_LINKS:
            self.metrics.add(LINKS, "left_out", num=len(named) - MAX_LINKS)
        return heapq.nsmallest(MAX_LINKS, named, key=link_order) if len(named) > MAX_LINKS else list(named)

    def _fold_item(self, record: Record, codec: Codec[Any]) -> list[Output]:
        """The single fact of a record, by the identity that it claims."""
        item: LlmCall | Reward | RolloutEvent = codec.decode(record.value)
        self._refusals.accept(record)
        what, fact = _fact_of(item, record)
        trace = None
        if isinstance(item, UpstreamCall):
            self.metrics.add(CONTEXT_CALLS)
        if isinstance(item, CallRecord | UpstreamCall | CallOpen | CallEnded) and item.rollout_id is None:
            # Behind the rollout path the caller's trace id is its framework's, and names no episode.
            trace = item.conversation_key or item.trace_id
        rollout: str | None = item.rollout_id
        if isinstance(item, Reward) and item.conversation_key is not None:
            rollout, trace = item.rollout_id or None, item.conversation_key
        episode = episode_of(rollout, item.attempt_id, trace, self._runs)
        if episode is None:
            self.metrics.add(NOT_SELECTED, what)
            return []
        attempt = attempt_of(episode, self._runs)
        if isinstance(item, LlmCall) and attempt and not is_by_own_run(signer_of(record), episode):
            # Another run's gateway knows no key of this one, and writes what its clients claim.
            self.metrics.add(CALLS_UNPROVED, what)
            return []
        self.metrics.add(FACTS, what)
        outputs = [self._facts(record, episode, [fact])]
        if isinstance(item, CallRecord | UpstreamCall) and (link := link_of_call(item, self._runs)):
            outputs.append(self._facts(record, link.trace_id, [link]))
        return outputs

    def _facts(self, record: Record, episode: str, facts: Sequence[Fact]) -> Output:
        try:
            value = EPISODE_EVENTS.encode(Facts(episode_id=episode, facts=tuple(facts)))
        except (OverflowError, RecursionError) as error:
            raise RecordError(f"expected values that msgpack can hold, got others: {error}") from error
        self._topics.check_size(Topic.EPISODE_EVENTS, value)
        attempt = attempt_of(episode, self._runs)
        key = episode_key(attempt[0] if attempt else None, episode)
        at = place_of(self._raw[record.topic], record.partition)
        headers = origin_header({episode: {at: [(record.offset, record.offset + 1)]}})
        return Output(topic=Topic.EPISODE_EVENTS, key=key, value=value, headers=headers)


def _fact_of(item: LlmCall | Reward | RolloutEvent, record: Record) -> tuple[str, Fact]:
    """How it is counted, and the fact that it is."""
    place = {"order": record.offset, "partition": record.partition}
    match item:
        case CallRecord():
            return "calls", CallFact(call=item, order=record.offset, partition=record.partition)
        case UpstreamCall():
            return "context_calls", ContextCallFact(call=item, **place)
        case CallOpen():
            return "calls_open", CallOpenFact(open=item, **place)
        case CallEnded():
            return "calls_ended", CallEndedFact(ended=item)
        case CallsClosed():
            return "calls_closed", CallsClosedFact(closed=item)
        case Reward():
            return "rewards", RewardFact(reward=item)
        case RolloutEvent():
            return "rollout_events", RolloutFact(event=item)
