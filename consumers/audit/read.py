"""What an audit needs of each topic of a run: which ids are there, where they lie, what they point at.

In: a Log, a run's topics and hash. Out: `Evidence`. Invariant: topics are read from the last to the first, and
committed offsets before all, so that on a living run an id that went on meanwhile looks open, never lost. No
payload is kept: ids, positions and hashes only. Undecodable records are the stages' business (dead letters); those
that no key vouches for are nobody's: they are evidence of nothing but themselves.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.attributes import ROLLOUT_KEYS
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunHash, attempt_of, episode_id, run_hash_of
from tracegrad.schemas.log.follow import PATIENCE_S, read_to_end
from tracegrad.schemas.log.mac import KeyRing, is_by_own_run, signer_of
from tracegrad.schemas.log.protocol import Log, Position, Record, TopicPartition
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.policies import partition_of
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
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import (
    CLOSED,
    EPISODE_SCORES,
    EPISODES,
    ClosedMarker,
    EmittedEpisode,
    Episode,
    Score,
)
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Close, Facts, LinkFact, LogFact, RewardFact, SpanFact
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.process_status import TRAINER
from tracegrad.schemas.records.rollouts import (
    AGENT_SOURCE,
    REWARDS,
    ROLLOUT_EVENTS,
    ROLLOUTS,
    Reward,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, TrainingStep
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, decode_group, group_id_of
from tracegrad.schemas.records.weights import (
    WEIGHT_ACKS,
    WEIGHTS,
    EpochClaim,
    Lineage,
    RollbackRequest,
    VersionManifest,
    WeightAck,
    WeightRecord,
)
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import INPUTS, Stage, Topic, Topics

from .evidence import EpisodeEvidence, Evidence
from .fact_key import event_key, fact_key, reward_key

T = TypeVar("T")
_COMPACTED = (Topic.CLOSED_EPISODES, Topic.CLOSED_GROUPS)


def gather(
    log: Log, topics: Topics, run: RunHash, policy: str, *, ring: KeyRing, starts: Mapping[TopicPartition, int] | None
) -> Evidence:
    """Reads every topic of the run once; a log that is away is waited for. `starts`: where the run began on the raw
    topics. Raises UnavailableError: it was away for too long.
    """
    committed = {
        stage: {
            TopicPartition(topics.name(topic), partition): offset
            for topic in read
            for partition, offset in _patiently(log.committed, topics.group(stage), topics.name(topic)).items()
        }
        for stage, read in INPUTS.items()
    }
    seen = Evidence(run=run, committed=committed, lineage=Lineage(policy))
    partition = partition_of(policy)
    for topic, decode, fold in _FOLDS:
        name = topics.name(topic)
        if any(offsets.begin > 0 for offsets in _patiently(log.offsets, name).values()) and topic not in _COMPACTED:
            seen.expired.add(topic)
        for record in read_to_end(log, name, starts=starts):
            letter = seen.unseen_origins.get(record.position)
            if letter is not None and letter in (b"", _digest(record)):
                del seen.unseen_origins[record.position]
            if refusal := ring.refusal(topic, record):
                if refusal is not Reason.OTHER_RUN:
                    seen.leave_out(record, str(refusal))
                continue
            if topic is Topic.TRANSITIONS and record.partition == partition:
                _note_place(seen, record)
            try:
                decoded = decode(record.value)
            except RecordError:
                if topic is Topic.LLM_CALLS:
                    seen.undecodable_calls.add(record.position)
                elif topic is Topic.TRANSITIONS and record.partition == partition:
                    seen.transitions[record.offset] = group_id_of(record.value)
            else:
                if topic is Topic.LLM_CALLS and _is_own(decoded, run) and not _is_proved(record, run, ring):
                    seen.leave_out(record, "unproved")
                    continue
                fold(seen, record, decoded)
    # A gateway's letters are of requests, which lie nowhere.
    judged = {topics.name(topic) for topic, _, _ in _FOLDS if topic not in seen.expired}
    seen.unseen_origins = {origin: kept for origin, kept in seen.unseen_origins.items() if origin.topic in judged}
    return seen


def _digest(record: Record) -> bytes:
    return hashlib.sha256(record.value or b"").digest()


def _patiently(ask: Callable[..., T], *args: str) -> T:
    return retry(functools.partial(ask, *args), doing="asking Kafka for offsets", patience_s=PATIENCE_S)


def _step(seen: Evidence, record: Record, step: TrainingStep | GroupsGivenBack) -> None:
    if isinstance(step, TrainingStep):
        seen.steps.append(step)
    elif step.policy == seen.lineage.policy:  # what was given back waits for the step that excludes it
        seen.given_back.setdefault((step.epoch, step.step), set()).update(step.group_ids)


def _transition(seen: Evidence, record: Record, group: tuple[GroupSummary, list[SegmentRow]]) -> None:
    summary = group[0]
    if record.partition == partition_of(seen.lineage.policy):
        seen.transitions[record.offset] = summary.group_id
    _note_digest(seen, summary.group_id, record)
    seen.groups.setdefault(summary.group_id, (record.offset, summary))


def _note_place(seen: Evidence, record: Record) -> None:
    seen.transition_digests[record.offset] = _digest(record)
    if reason := seen.trainer_letters.get(record.position):
        seen.unusable[record.offset] = reason


def _note_digest(seen: Evidence, id_: str, record: Record) -> None:
    digest = _digest(record)
    if seen.digests.setdefault((record.topic, id_), digest) != digest:
        seen.differing.add(id_)


def _group_marker(seen: Evidence, record: Record, marker: ClosedMarker) -> None:
    if marker.disposition == "emitted":
        seen.group_markers.add(marker.id)
    elif marker.disposition == "unscored":
        seen.unscored.add(marker.id)
    seen.feedback.close_group(marker)


def _episode(seen: Evidence, record: Record, episode: Episode) -> None:
    _note_digest(seen, episode.episode_id, record)
    first = EpisodeEvidence(
        position=record.position,
        group=episode.group.id if episode.group else None,
        group_size=episode.group.size if episode.group else 0,
        rollout=episode.rollout_id,
        is_final=episode.is_final,
        is_validation=episode.purpose.value == "validation",
        closed_by=episode.closed_by,
        calls=frozenset(call.call_id for call in episode.calls),
        conversation=episode.conversation,
        # What an agent says of itself may stand on its spans alone.
        is_rated=episode.is_rated,
        rewards=tuple(reward_key(reward) for reward in episode.rewards if reward.source != AGENT_SOURCE),
    )
    seen.episodes.setdefault(episode.episode_id, first)


def _score(seen: Evidence, record: Record, score: Score | EmittedEpisode | Close) -> None:
    if isinstance(score, Score):
        seen.scores.add(reward_key(score.reward))
        seen.feedback.add_reward(score.reward, Stage.CREDIT, record.position)


def _episode_marker(seen: Evidence, record: Record, marker: ClosedMarker) -> None:
    seen.add_marker(marker)
    seen.feedback.close_episode(marker)


def _facts(seen: Evidence, record: Record, batch: Facts | Close) -> None:
    if isinstance(batch, Close):
        seen.closes.add((batch.episode_id, batch.reason))
        return
    seen.fact_places.setdefault(batch.episode_id, []).append(record.position)
    for fact in batch.facts:
        if isinstance(fact, LinkFact):
            continue
        seen.add_fact(fact_key(fact), fact, batch)
        if isinstance(fact, RewardFact):
            seen.feedback.add_reward(fact.reward, Stage.ASSEMBLE, record.position)
        if not isinstance(fact, SpanFact | LogFact):
            seen.spoken_of.add(batch.episode_id)


def _dead(seen: Evidence, record: Record, _: None) -> None:
    fields = dead_letter_fields(record.headers)
    topic, partition, offset = (fields.get(name, "") for name in ("topic", "partition", "offset"))
    if not (partition.isdigit() and offset.isdigit()):
        return
    origin = Position(topic, int(partition), int(offset))
    seen.dead.add(origin)
    if fields.get("stage") == TRAINER:
        seen.trainer_letters[origin] = fields.get("reason", "")
    is_whole = record.value and "item" not in fields
    seen.unseen_origins[origin] = _digest(record) if is_whole else b""
    with contextlib.suppress(RecordError):  # a dead letter of any topic; only facts name raw keys
        batch = EPISODE_EVENTS.decode(record.value)
        if isinstance(batch, Facts):
            seen.dead_facts.update(fact_key(fact) for fact in batch.facts if not isinstance(fact, LinkFact))


def _reward(seen: Evidence, record: Record, reward: Reward) -> None:
    if reward.conversation_key is not None or run_hash_of(reward.rollout_id) == seen.run:
        seen.raw[reward_key(reward)] = record.position
        seen.feedback.add_reward(reward, Stage.NORMALIZE, record.position)


def _event(seen: Evidence, record: Record, event: RolloutEvent) -> None:
    if run_hash_of(event.rollout_id) == seen.run:
        seen.raw[event_key(event)] = record.position
        if event.is_final:
            seen.final_rollouts.add(event.rollout_id)
        if event.state is RolloutState.GIVEN_UP:
            seen.given_up.setdefault(event.rollout_id, set()).add(event.attempt_id)


def _is_own(call: LlmCall, run: RunHash) -> bool:
    """Whether the record says that it is of a runner's rollout of the run."""
    if call.rollout_id is not None:
        return run_hash_of(call.rollout_id) == run
    return not isinstance(call, CallsClosed) and attempt_of(call.trace_id or "", {run}) is not None


def _is_proved(record: Record, run: RunHash, ring: KeyRing) -> bool:
    return ring.vouches(Topic.LLM_CALLS, record) and is_by_own_run(signer_of(record), run)


def _call(seen: Evidence, record: Record, call: LlmCall) -> None:
    if call.rollout_id is not None and run_hash_of(call.rollout_id) != seen.run:
        if isinstance(call, CallRecord | UpstreamCall):
            seen.foreign_calls.add(call.call_id)
    elif isinstance(call, CallRecord):
        seen.raw[f"call:{call.call_id}"] = record.position
        for span in call.versions:
            seen.sampled.setdefault(span.label, call.call_id)
    elif isinstance(call, CallOpen):
        seen.raw[f"call_open:{call.call_id}"] = record.position
    elif isinstance(call, CallEnded):
        seen.raw[f"call_ended:{call.call_id}"] = record.position
    elif isinstance(call, UpstreamCall):  # no account holds it
        seen.raw[f"context_call:{call.call_id}"] = record.position
    elif isinstance(call, CallsClosed):
        seen.raw[f"calls_closed:{call.rollout_id}/{call.attempt_id}"] = record.position
        seen.outcomes[episode_id(call.rollout_id, call.attempt_id)] = frozenset(call.outcomes)


def _span(seen: Evidence, record: Record, request: ExportTraceServiceRequest) -> None:
    for of_resource, _, span in spans_of(request):
        # A trace of the run's own attempts bears its hash; one that names a rollout of another run is the other's.
        others = (
            pair
            for pair in (*of_resource.resource.attributes, *span.attributes)
            if pair.key in ROLLOUT_KEYS and run_hash_of(pair.value.string_value) != seen.run
        )
        if run_hash_of(span.trace_id.hex()) == seen.run and not any(others):
            seen.raw[f"span:{span.trace_id.hex()}/{span.span_id.hex()}"] = record.position


def _rollout(seen: Evidence, record: Record, request: RolloutRequest) -> None:
    seen.rollouts.setdefault(request.rollout_id, record.position)
    if run_hash_of(request.rollout_id) == seen.run:
        groups = seen.asked.setdefault(request.purpose, {})
        groups.setdefault(request.group.index, {})[request.group.member] = (request.rollout_id, request.group)


def _ack(seen: Evidence, record: Record, ack: WeightAck) -> None:
    if ack.policy == seen.lineage.policy:
        seen.acknowledged.setdefault(ack.label, set()).add(ack.engine_id)


def _weights(seen: Evidence, record: Record, weight: WeightRecord) -> None:
    if not seen.lineage.fold(weight):
        return
    if isinstance(weight, VersionManifest):
        seen.manifests.append(weight)
    elif isinstance(weight, EpochClaim):
        seen.epochs.add(weight.epoch)
    elif isinstance(weight, RollbackRequest):
        seen.rolled_back_to.add(weight.to_version)
    elif isinstance(weight, HeldOutPass) and weight.score is None:
        seen.passes_begun.add(weight.number)


_FOLDS: tuple[tuple[Topic, Callable[[bytes | None], Any], Callable[[Evidence, Record, Any], None]], ...] = (
    (Topic.DEAD_LETTERS, lambda value: None, _dead),
    (Topic.TRAINING_STEPS, TRAINING_STEPS.decode, _step),
    (Topic.CLOSED_GROUPS, CLOSED.decode, _group_marker),
    (Topic.TRANSITIONS, decode_group, _transition),
    (Topic.CLOSED_EPISODES, CLOSED.decode, _episode_marker),
    (Topic.EPISODES, EPISODES.decode, _episode),
    (Topic.EPISODE_SCORES, EPISODE_SCORES.decode, _score),
    (Topic.EPISODE_EVENTS, EPISODE_EVENTS.decode, _facts),
    (Topic.REWARDS, REWARDS.decode, _reward),
    (Topic.LLM_CALLS, LLM_CALLS.decode, _call),
    (Topic.OTLP_SPANS, decode_spans, _span),
    (Topic.ROLLOUT_EVENTS, ROLLOUT_EVENTS.decode, _event),
    (Topic.ROLLOUTS, ROLLOUTS.decode, _rollout),
    (Topic.WEIGHT_ACKS, WEIGHT_ACKS.decode, _ack),
    (Topic.WEIGHTS, WEIGHTS.decode, _weights),
)
"""Dead letters, which come before a commit, and then from the last topic to the first; how a record of it is read, what
is noted of it."""
