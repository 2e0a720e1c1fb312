"""Stage `normalize`: raw records become facts, grouped by episode; the first stage, and one without state.

In: `otlp_spans`, `llm_calls`, `rewards`, `rollout_events`. Out: `episode_events`, keyed by rollout id, else trace id.
Invariant: facts depend on the raw record only (its origin travels in a header), so a replay gives equal bytes. A raw
record gives at most one record of facts for an episode, and one more for each further 500 spans: facts are larger than
spans, so those of a request of 8 MiB fit in no single record. That is sound, since the cuts are the request's own: a
re-delivery appends equal records, in order, under one key; the request is done when all are acknowledged; and whoever
reads only some of them takes each fact once and closes by counts, never by records.
Failure: what cannot be read is a dead letter with its reason; what belongs to other runs is dropped and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import FACTS, NOT_SELECTED, Metrics
from tracegrad.schemas.records.calls import CALLS, CallRecord, CallsClosed
from tracegrad.schemas.records.facts import (
    EPISODE_EVENTS,
    CallFact,
    CallsClosedFact,
    Fact,
    Facts,
    RewardFact,
    RolloutFact,
)
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, Reward, RolloutEvent
from tracegrad.schemas.topics import Stage, Topic, Topics

from ..config import StreamRules
from ..dead_letter import dead_letter
from .identity import EpisodeKey, Identities
from .read_spans import SpanReader

__all__ = ["ORIGIN_HEADER", "Normalize"]

ORIGIN_HEADER = "tracegrad.origin"
"""Header of a fact: topic/partition/offset of the raw record."""
MAX_FACTS_PER_RECORD = 500
"""Keeps a record below the topic's message limit: a span's fact is at most 6 KB, for its texts are cut."""


class Normalize:
    """The fold of `normalize`; each record is done as soon as its facts are acknowledged."""

    marker_topic: Topic | None = None
    num_open = 0

    def __init__(self, rules: StreamRules, topics: Topics, metrics: Metrics | None = None) -> None:
        self.metrics = metrics or Metrics()
        self._topics = topics
        self._identities = Identities(rules.runs)
        self._spans = SpanReader(
            self._identities,
            tool_error_prefixes=rules.streams.tool_error_prefixes,
            metrics=self.metrics,
        )
        self._readers = {
            topics.name(Topic.OTLP_SPANS): self._fold_spans,
            topics.name(Topic.LLM_CALLS): self._fold_call,
            topics.name(Topic.REWARDS): self._fold_reward,
            topics.name(Topic.ROLLOUT_EVENTS): self._fold_event,
        }

    def reset(self) -> None:
        """As Fold.reset; there is nothing to forget."""

    def restore(self, markers: Iterable[Record]) -> None:
        """As Fold.restore; there are no markers."""

    def propose(self, now_s: float) -> Sequence[Output]:
        """As Fold.propose; nothing is ever due."""
        return ()

    def fold(self, record: Record) -> Emission:
        """As Fold.fold."""
        try:
            if record.value is None:
                raise RecordError("expected a record, got a tombstone (null value)", reason="null_value")
            reader = self._readers.get(record.topic)
            if reader is None:
                raise RecordError(f"expected a raw topic, got {record.topic!r}", reason="unknown_topic")
            outputs = reader(record, record.value)
        except RecordError as error:
            outputs = [dead_letter(record, error, stage=Stage.NORMALIZE)]
        return Emission(outputs=tuple(outputs), done=(record.position,))

    def _fold_spans(self, record: Record, value: bytes) -> list[Output]:
        scan = self._spans.read(value)
        outputs = []
        for episode, facts in scan.facts.items():
            self.metrics.add(FACTS, "spans", num=len(facts))
            for start in range(0, len(facts), MAX_FACTS_PER_RECORD):
                outputs.append(self._facts(record, episode, facts[start : start + MAX_FACTS_PER_RECORD]))
        for refused in scan.refused.values():
            outputs.append(
                dead_letter(
                    record,
                    refused.error,
                    stage=Stage.NORMALIZE,
                    value=refused.request.SerializeToString(),
                    item=refused.item,
                )
            )
        return outputs

    def _fold_call(self, record: Record, value: bytes) -> list[Output]:
        decoded = CALLS.decode(value)
        if isinstance(decoded, CallsClosed):
            return self._one(record, decoded, CallsClosedFact(closed=decoded), "calls_closed")
        fact = CallFact(call=decoded, order=record.offset)
        return self._one(record, decoded, fact, "calls", trace=decoded.trace_id)

    def _fold_reward(self, record: Record, value: bytes) -> list[Output]:
        reward = REWARDS.decode(value)
        return self._one(record, reward, RewardFact(reward=reward), "rewards")

    def _fold_event(self, record: Record, value: bytes) -> list[Output]:
        event = ROLLOUT_EVENTS.decode(value)
        return self._one(record, event, RolloutFact(event=event), "rollout_events")

    def _one(
        self,
        record: Record,
        claim: CallRecord | CallsClosed | Reward | RolloutEvent,
        fact: Fact,
        what: str,
        *,
        trace: str | None = None,
    ) -> list[Output]:
        """The single fact of a record, by the identity that it claims."""
        # A call's own trace may be any: behind the rollout path the caller's trace id is its framework's.
        episode = self._identities.of(claim.rollout_id, claim.attempt_id, trace if claim.rollout_id is None else None)
        if episode is None:
            self.metrics.add(NOT_SELECTED, what)
            return []
        self.metrics.add(FACTS, what)
        return [self._facts(record, episode, [fact])]

    def _facts(self, record: Record, episode: EpisodeKey, facts: Sequence[Fact]) -> Output:
        try:
            value = EPISODE_EVENTS.encode(Facts(episode_id=episode.episode_id, facts=tuple(facts)))
        except (OverflowError, RecursionError) as error:
            raise RecordError(f"expected values that msgpack can hold, got others: {error}") from error
        self._topics.check_size(Topic.EPISODE_EVENTS, value)
        origin = f"{record.topic}/{record.partition}/{record.offset}".encode()
        return Output(topic=Topic.EPISODE_EVENTS, key=episode.key, value=value, headers=((ORIGIN_HEADER, origin),))
