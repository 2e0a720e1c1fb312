"""What a run looks like: the one state that every view reads, folded from the run's topics alone.

In: records of the run's topics, in any order between topics, each with the reader's clock. Out: `RunState`, whose
fields views turn into lines and numbers. Invariants: pure (no log, clock or thread of its own); idempotent,
so that a record read twice counts once; bounded: the last 20,000 steps, of attempts, groups and processes the last
100,000, which is 100 MB at most, and of each version half a kilobyte. Failure: a record that cannot be decoded is
somebody else's dead letter and is passed over. Admission and the audit fold for themselves, and share only rules.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.alarms import MemberOutcome, UntrainedGroups
from tracegrad.schemas.alarms.causes import Causes
from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunHash, attempt_of, episode_id, run_hash_of
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.otlp.read import decode_spans, service_of, spans_of
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, LlmCall, Purpose, UpstreamCall
from tracegrad.schemas.records.episodes import CLOSED, EPISODES, ClosedMarker, Episode
from tracegrad.schemas.records.held_out import HeldOutPasses
from tracegrad.schemas.records.process_status import (
    PROCESS_STATUS,
    ProcessReport,
    ProcessStatus,
    SupervisedProcess,
    engine_of,
)
from tracegrad.schemas.records.rollouts import MAX_GIVEN_UP, ROLLOUT_EVENTS, RolloutEvent, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import (
    WEIGHT_ACKS,
    WEIGHTS,
    Lineage,
    VersionManifest,
    WeightAck,
    WeightRecord,
    folder_of,
)
from tracegrad.schemas.topics import Topic, Topics

from .captured import CapturedTraffic

_EMITTED = "emitted"
_STEPS = 20_000
"""A step without its ids is about 2 kB; a curve of more points says no more."""
_IDS = 100_000
"""Of 200 bytes. A topic may be read so far ahead of the next, and each attempt's start still finds its end."""


class RunState:
    """The fold of one policy's run. One thread at a time."""

    causes_since_ms = 0
    """Causes are of records that were written then or later: who starts a run again may have mended it."""
    _at_ms = 0

    def __init__(self, topics: Topics, run: RunHash, policy: str, *, root: str = "", remembered: int = _IDS) -> None:
        """
        Args:
            run, policy: the run's hash, for raw topics hold other runs' rollouts too; whose steps are followed.
            root: where the run's versions lie now.
            remembered: how many ids of each kind are kept.
        """
        self._folds: dict[str, tuple[Callable[[bytes | None], Any], Callable[[Any], None]]] = {
            topics.name(Topic.TRAINING_STEPS): (TRAINING_STEPS.decode, self._step),
            topics.name(Topic.WEIGHTS): (WEIGHTS.decode, self._weights),
            topics.name(Topic.WEIGHT_ACKS): (WEIGHT_ACKS.decode, self._ack),
            topics.name(Topic.ROLLOUT_EVENTS): (ROLLOUT_EVENTS.decode, self._event),
            topics.name(Topic.EPISODES): (EPISODES.decode, self._episode),
            topics.name(Topic.CLOSED_GROUPS): (CLOSED.decode, self._closed),
            topics.name(Topic.OTLP_SPANS): (decode_spans, self._spans),
            topics.name(Topic.LLM_CALLS): (LLM_CALLS.decode, self._call),
            topics.name(Topic.PROCESS_STATUS): (PROCESS_STATUS.decode, self._process),
        }
        self._run, self._policy, self._weight_root = run, policy, root
        self._lineage = Lineage(policy)
        self._steps: BoundedMap[int, TrainingStep] = BoundedMap(_STEPS)
        self._ended: BoundedMap[str, None] = BoundedMap(remembered)
        self._members: BoundedMap[str, tuple[MemberOutcome, ...]] = BoundedMap(remembered)
        self._num_closed_groups = 0
        self._final: BoundedMap[str, None] = BoundedMap(remembered)
        """Rollouts with a final episode."""
        self._given_up: BoundedMap[str, tuple[str, set[str]]] = BoundedMap(remembered)
        """Training rollout without one -> its group, and the attempts as which it was given up."""
        self.open_attempts: BoundedMap[str, None] = BoundedMap(remembered)
        """Ids of attempts that started and have no episode yet."""
        self.newest_step: TrainingStep | None = None
        """The step of the greatest number, without its ids."""
        self.acks: BoundedMap[str, WeightAck] = BoundedMap(remembered)
        """Engine -> the last that it acknowledged."""
        self.reports: BoundedMap[str, ProcessReport] = BoundedMap(remembered)
        """Process -> its last report of itself."""
        self.supervised: BoundedMap[str, SupervisedProcess] = BoundedMap(remembered)
        """Process -> its supervisor's last word on it."""
        self.first_span: tuple[str, str] | None = None
        """Its name, and the service that it is of. Spans, calls and episodes of held-out rollouts are no part of what
        arrives."""
        self.captured, self.untrained, self.causes = CapturedTraffic(), UntrainedGroups(), Causes(policy)
        """Of agents that people run; closed groups of tasks; why attempts have nothing to train on."""
        self.first_call: CallRecord | None = None
        self.first_upstream_call: UpstreamCall | None = None
        self.num_upstream_calls = 0
        self.last_episode: Episode | None = None
        self.num_episodes = 0
        self.first_sign_s: float | None = None
        """The reader's clock when the first span or call came."""

    @property
    def steps(self) -> list[TrainingStep]:
        """The surviving steps in order, without their ids."""
        return surviving_steps(self._steps.values())

    @property
    def num_waiting_groups(self) -> int:
        """Training groups whose members all ended and which no batch has consumed yet."""
        consumed = self.newest_step.accounting.consumed if self.newest_step else 0
        return max(0, self._num_closed_groups - consumed)

    @property
    def num_lost_groups(self) -> int:
        """Training groups that do not close: a member was given up as often as tasks does, and has no episode."""
        given_up = self._given_up.values()
        return len({group for group, attempts in given_up if len(attempts) >= MAX_GIVEN_UP})

    @property
    def held_out(self) -> HeldOutPasses:
        """The held-out passes, and which is the best."""
        return self._lineage.held_out

    @property
    def versions(self) -> Mapping[int, VersionManifest]:
        """The surviving versions, without their files."""
        return self._lineage.versions

    @property
    def serving(self) -> list[WeightAck]:
        """What each engine acknowledged last, in the order of their names; not what one did that has started again
        since, which loads its model or the newest version yet."""
        began_ms = {engine_of(one.process): one.since_ms for one in self.supervised.values()}
        return [ack for id_, ack in sorted(self.acks.items()) if ack.at_ms >= began_ms.get(id_, 0)]

    def folder(self, version: int) -> str | None:
        """Where a version lies, or lay when it was published."""
        manifest = self._lineage.versions.get(version)
        return folder_of(manifest.uri, self._weight_root) if manifest else None

    def fold(self, record: Record, now_s: float) -> None:
        """Takes one record, read at `now_s`; a topic that says nothing about the run's looks is passed over."""
        if record.topic in self._folds:
            decode, fold = self._folds[record.topic]
            self._at_ms = record.timestamp_ms
            with contextlib.suppress(RecordError):
                fold(decode(record.value))
            if self.first_sign_s is None and (self.first_span or self.first_call or self.first_upstream_call):
                self.first_sign_s = now_s

    def _step(self, step: TrainingStep | GroupsGivenBack) -> None:
        if not isinstance(step, TrainingStep) or step.policy != self._policy:
            return
        step = msgspec.structs.replace(step, group_ids=(), excluded_ids={})
        known = self._steps.get(step.step)
        if known is None or step.epoch > known.epoch:
            self._steps[step.step] = step
        if self.newest_step is None or step.step > self.newest_step.step:
            self.newest_step = step

    def _weights(self, weight: WeightRecord) -> None:
        if isinstance(weight, VersionManifest):
            weight = msgspec.structs.replace(weight, files=(), metrics={})
        self._lineage.fold(weight)

    def _ack(self, ack: WeightAck) -> None:
        known = self.acks.get(ack.engine_id)
        # Whoever may append can copy a record with its MAC: what was said before says nothing of now.
        if known is None or (ack.at_ms, ack.epoch, ack.version) > (known.at_ms, known.epoch, known.version):
            self.acks[ack.engine_id] = ack

    def _event(self, event: RolloutEvent) -> None:
        self._note_given_up(event)
        id_ = episode_id(event.rollout_id, event.attempt_id)
        # Topics are read side by side, so an episode may come before its attempt's start.
        if run_hash_of(event.rollout_id) == self._run and not event.state.is_end and id_ not in self._ended:
            self.open_attempts[id_] = None

    def _note_given_up(self, event: RolloutEvent) -> None:
        is_ours = run_hash_of(event.rollout_id) == self._run and event.purpose is Purpose.TRAIN
        if is_ours and event.state is RolloutState.GIVEN_UP and event.rollout_id not in self._final:
            _, attempts = self._given_up.get(event.rollout_id, ("", set[str]()))
            self._given_up[event.rollout_id] = (event.group.id, attempts | {event.attempt_id})

    def _episode(self, episode: Episode) -> None:
        id_ = episode.episode_id
        if id_ in self._ended:
            return
        self.open_attempts.pop(id_, None)
        self._ended[id_] = None
        if episode.purpose is not Purpose.VALIDATION:
            self.num_episodes += 1
            self.last_episode = episode
        self.captured.add_episode(episode)
        group = episode.group
        if group is None or not episode.is_final:
            return
        if episode.rollout_id is not None:
            self._final[episode.rollout_id] = None
            self._given_up.pop(episode.rollout_id, None)
        if self._at_ms >= self.causes_since_ms:
            self.causes.add_episode(episode)
        if episode.purpose is Purpose.VALIDATION:
            return
        members = (*self._members.get(group.id, ()), MemberOutcome.of(episode, self._policy))
        self._members[group.id] = members
        if len(members) == group.size:
            del self._members[group.id]
            self._num_closed_groups += 1
            self.untrained.close(members)

    def _closed(self, marker: ClosedMarker) -> None:
        is_new = self.captured.add_marker(marker)
        # A task's group, whose id begins with the run's hash, is counted by its episodes.
        self._num_closed_groups += is_new and marker.disposition == _EMITTED and run_hash_of(marker.id) != self._run

    def _spans(self, request: ExportTraceServiceRequest) -> None:
        if self.first_span is None:
            arrived = (one for one in spans_of(request) if attempt_of(one[2].trace_id.hex(), (self._run,)) is None)
            if (first := next(arrived, None)) is not None:
                self.first_span = (first[2].name, service_of(first[0]))

    def _call(self, call: LlmCall) -> None:
        if isinstance(call, CallRecord):
            if call.purpose is not Purpose.VALIDATION:
                self.first_call = self.first_call or call
            self.captured.add_call(call)
        elif isinstance(call, UpstreamCall):
            self.first_upstream_call = self.first_upstream_call or call
            self.num_upstream_calls += 1

    def _process(self, status: ProcessStatus) -> None:
        if isinstance(status, ProcessReport):
            if status.at_ms >= self.reports.get(status.process, status).at_ms:
                self.reports[status.process] = status
        elif status.at_ms >= self.supervised.get(status.process, status).at_ms:
            self.supervised[status.process] = status
