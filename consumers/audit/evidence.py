"""What is known of a run from its topics: ids, places, and what points at what.

In: `read.py` fills it. Out: the checks read it. Invariant: no payload is kept. Failure: none.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Position, Record, TopicPartition
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import ClosedMarker
from tracegrad.schemas.records.facts import CallFact, Fact, Facts
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.transitions import GroupSummary
from tracegrad.schemas.records.weights import Lineage, VersionManifest
from tracegrad.schemas.topics import Stage, Topic

from .feedback import FeedbackAccount

MAX_NAMED = 1_000
"""Missing ids, and unverified records, that a report names; the rest are counted."""


class EpisodeEvidence(msgspec.Struct, kw_only=True):
    """An episode as it lies on `episodes`."""

    position: Position
    group: str | None
    group_size: int
    rollout: str | None
    is_final: bool
    is_validation: bool
    closed_by: str
    calls: frozenset[str]
    conversation: str | None
    rewards: tuple[str, ...]
    is_rated: bool
    """Somebody said what it, or an answer in it, was worth."""


class Evidence(msgspec.Struct, kw_only=True):
    """Ids and places, by topic."""

    run: RunHash
    committed: dict[Stage, dict[TopicPartition, int]]
    lineage: Lineage
    expired: set[Topic] = msgspec.field(default_factory=set)
    """Topics whose first records retention has taken: absence there proves nothing."""
    raw: dict[str, Position] = msgspec.field(default_factory=dict)
    """`call:ID`, `calls_closed:ROLLOUT/ATTEMPT`, `event:...`, `reward:...`, `span:...` of this run -> place."""
    foreign_calls: set[str] = msgspec.field(default_factory=set)
    """Calls of other runs' rollouts."""
    outcomes: dict[str, frozenset[str]] = msgspec.field(default_factory=dict)
    """Episode id -> the call ids that its `calls_closed` names."""
    scores: set[str] = msgspec.field(default_factory=set)
    """Feedback that came behind its episode, by `reward_key`."""
    feedback: FeedbackAccount = msgspec.field(default_factory=FeedbackAccount)
    dead: set[Position] = msgspec.field(default_factory=set)
    """Origins of dead letters."""
    unseen_origins: dict[Position, bytes] = msgspec.field(default_factory=dict)
    """Those of them, on topics that are read here, where the record was not found -> its sha256, empty where the letter
    holds only a part of it."""
    closes: set[tuple[str, str]] = msgspec.field(default_factory=set)
    """(episode id, reason) of the proposals to close."""
    undecodable_calls: set[Position] = msgspec.field(default_factory=set)
    facts: dict[str, str] = msgspec.field(default_factory=dict)
    """Raw key -> episode id, as on `episode_events`."""
    forwarded: set[str] = msgspec.field(default_factory=set)
    """Raw keys whose facts assemble forwarded; they count where they went."""
    fact_places: dict[str, list[Position]] = msgspec.field(default_factory=dict)
    """Episode id -> where its facts lie."""
    spoken_of: set[str] = msgspec.field(default_factory=set)
    """Episode ids of which more than spans has come; others are strays, which may end without a marker."""
    dead_facts: set[str] = msgspec.field(default_factory=set)
    """Raw keys in dead-lettered batches of facts."""
    orders: dict[str, tuple[str, int, int]] = msgspec.field(default_factory=dict)
    """Call id -> its own key, its partition and place on `llm_calls`."""
    stretches: dict[str, list[ClosedMarker]] = msgspec.field(default_factory=dict)
    """Key of a captured conversation -> the markers of its episodes."""
    markers: dict[str, str] = msgspec.field(default_factory=dict)
    """Episode id -> disposition."""
    episodes: dict[str, EpisodeEvidence] = msgspec.field(default_factory=dict)
    differing: set[str] = msgspec.field(default_factory=set)
    """Ids emitted again with other bytes."""
    group_markers: set[str] = msgspec.field(default_factory=set)
    unscored: set[str] = msgspec.field(default_factory=set)
    """Episodes that closed in credit and that nobody had rated."""
    groups: dict[str, tuple[int, GroupSummary]] = msgspec.field(default_factory=dict)
    """Group id -> its first offset on `transitions`, and what it says."""
    transitions: dict[int, str | None] = msgspec.field(default_factory=dict)
    """Offset in the policy's partition -> the group there; None: the record names none."""
    transition_digests: dict[int, bytes] = msgspec.field(default_factory=dict)
    """The same offset -> sha256 of the record."""
    trainer_letters: dict[Position, str] = msgspec.field(default_factory=dict)
    """Origin of a dead letter of the trainer's -> its reason."""
    unusable: dict[int, str] = msgspec.field(default_factory=dict)
    """Offset in the policy's partition -> why the trainer wrote a dead letter of the record, if it is known."""
    digests: dict[tuple[str, str], bytes] = msgspec.field(default_factory=dict)
    """(topic, id) -> sha256 of what was emitted first."""
    steps: list[TrainingStep] = msgspec.field(default_factory=list)
    given_back: dict[tuple[int, int], set[str]] = msgspec.field(default_factory=dict)
    """(epoch, step) -> the groups that the trainer gave back before it."""
    rollouts: dict[str, Position] = msgspec.field(default_factory=dict)
    """Rollout id -> where it was first asked for."""
    final_rollouts: set[str] = msgspec.field(default_factory=set)
    """Rollouts with a final event."""
    asked: dict[Purpose, dict[int, dict[int, tuple[str, GroupRef]]]] = msgspec.field(default_factory=dict)
    """Purpose -> index of a group -> member -> its rollout and its place, as requested."""
    given_up: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """Rollout -> attempts as which it was given up."""
    manifests: list[VersionManifest] = msgspec.field(default_factory=list)
    """Those that were in force when they were written."""
    epochs: set[int] = msgspec.field(default_factory=set)
    passes_begun: set[int] = msgspec.field(default_factory=set)
    """Numbers of the held-out passes that were begun; `lineage` has what became of each."""
    rolled_back_to: set[int] = msgspec.field(default_factory=set)
    """Versions that somebody asked to have again."""
    acknowledged: dict[str, set[str]] = msgspec.field(default_factory=dict)
    """Label of a version -> engines that served it."""
    sampled: dict[str, str] = msgspec.field(default_factory=dict)
    """Label of a version -> a call of this run that it sampled."""
    unverified: list[str] = msgspec.field(default_factory=list)
    """`topic/partition/offset: reason` of the first records that no key vouches for; those of other runs are not among
    them."""
    num_unverified: int = 0

    def add_fact(self, key: str, fact: Fact, batch: Facts) -> None:
        """Notes where a fact belongs; one that was forwarded, where it went."""
        if isinstance(fact, CallFact):
            self.orders[fact.call.call_id] = (fact.call.key, fact.partition, fact.order)
        if batch.forwarded_from is not None:
            self.forwarded.add(key)
        if batch.forwarded_from is not None or key not in self.forwarded:
            self.facts[key] = batch.episode_id

    def add_marker(self, marker: ClosedMarker) -> None:
        """Notes that an episode has closed."""
        self.markers[marker.id] = marker.disposition
        if marker.key is not None and marker.forwarded_to is None:
            self.stretches.setdefault(marker.key, []).append(marker)

    def leave_out(self, record: Record, reason: str) -> None:
        """Counts a record that no key vouches for."""
        self.num_unverified += 1
        if len(self.unverified) < MAX_NAMED:
            self.unverified.append(f"{record.topic}/{record.partition}/{record.offset}: {reason}")

    def is_done(self, stage: Stage, position: Position) -> bool:
        """Whether the stage has committed past this input record."""
        where = TopicPartition(position.topic, position.partition)
        return position.offset < self.committed[stage].get(where, 0)
