"""Where a run stands, folded from its topics: what was asked for, what has ended, what was trained, what is served.

In: records of `rollouts`, `rollout_events`, `episodes`, `training_steps`, `weights`, `weight_acks`, `process_status`,
each topic in its own order.
Out: RunProgress, open rollouts, validation scores, exclusions. Invariant: the same records give the same state, so a
restart goes on where the log ends. Failure: none; records of other runs and policies are ignored. Memory follows the
groups in the works and the tasks of a held-out pass, not the rollouts of the run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from tracegrad.schemas.alarms import MemberOutcome, UntrainedGroups
from tracegrad.schemas.alarms.causes import Cause, Causes
from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.metrics import GROUPS_TAKEN
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode, why_excluded
from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutPasses
from tracegrad.schemas.records.process_status import TRAINER, ProcessReport
from tracegrad.schemas.records.rollouts import MAX_GIVEN_UP, RolloutEvent, RolloutRequest, RolloutState, is_usable
from tracegrad.schemas.records.training import GroupsGivenBack, TrainingStep
from tracegrad.schemas.records.weights import WeightAck

from ..rollout_histories import Histories, Members
from .pace import RunProgress
from .score import Score, version_shares
from .stream_delay import StreamDelay

_MAX_REASONS = 100
_GIVE_UP_S = 1800.0
"""A rollout of which nothing was heard for so long, queueing included, is given up; never less than twice the
attempt's time limit and ten minutes."""
_USED_UP_GRACE_S = 60.0
"""After its last attempt was aborted, until a rollout is given up in its runner's stead."""

logger = logging.getLogger(__name__)


@dataclass
class OpenRollout:
    """A rollout without a final event, or without the episode that should follow it."""

    request: RolloutRequest
    active_s: float
    """When something was last heard of it."""


class AdmissionState:
    """One run, its policy and the engines that serve it. Not thread-safe."""

    def __init__(self, run_hash: str, policy: str, engine_ids: Sequence[str]) -> None:
        self._run_hash = run_hash
        self._policy = policy
        self._engine_ids = engine_ids
        self.histories = Histories(run_hash)
        self.admitted = {Purpose.TRAIN: Members(), Purpose.VALIDATION: Members()}
        """Asked for; a request may be on the log twice, and a restart may come between those of a group."""
        self._acked: dict[str, int] = {}
        self._outcomes: dict[str, list[tuple[str, MemberOutcome]]] = defaultdict(list)
        """Group -> of each rollout that has a final episode why it cannot train, in words; empty: it can."""
        self.untrained, self.causes = UntrainedGroups(), Causes(policy)
        self._seen_final = {Purpose.TRAIN: Members(), Purpose.VALIDATION: Members()}
        """Have a final episode; a restarted stage may emit it again, and two attempts may both claim to be final."""
        self.open: dict[str, OpenRollout] = {}
        self.awaited: dict[str, OpenRollout] = {}
        """Rollouts that are final, and of which no final episode came yet."""
        self.given_up: defaultdict[str, set[str]] = defaultdict(set)
        """Rollout -> the attempts in whose names it was given up, as long as no final episode of it came."""
        self.stream_delay = StreamDelay()
        self.held_out = HeldOutPasses()
        self._scores: dict[tuple[int, int], Score] = {}
        """Index of a validation group and member -> what its final episode was worth, until its pass has its score."""
        self._num_scored_groups = 0
        """Validation groups 0 .. this - 1 are of passes that have one."""
        self.newest_step: TrainingStep | None = None
        self._given_back: GroupsGivenBack | None = None
        """The greatest word on a batch that is read; nothing once it is concluded."""
        self.num_vanished = 0
        """Training groups that closed and are in no batch, as of the last time that nothing was on its way."""
        self._closed_s = time.monotonic()
        """When the last of them closed."""
        self._taken: tuple[int, float] | None = None
        """Groups that the trainer has taken when no record was left to read, and when it was heard of; None: it reads,
        or trains."""
        self.exclusions: Counter[str] = Counter()
        """Reason -> training rollouts that could not train."""

    def fold(self, record: object) -> None:
        """Takes the next record of any of the topics."""
        if isinstance(record, RolloutRequest):
            self._fold_request(record)
        elif isinstance(record, RolloutEvent):
            self._fold_event(record)
        elif isinstance(record, Episode):
            self._fold_episode(record)
        elif isinstance(record, TrainingStep):
            self._fold_step(record)
        elif isinstance(record, GroupsGivenBack):
            self._fold_given_back(record)
        elif isinstance(record, HeldOutPass):
            self._fold_pass(record)
        elif isinstance(record, ProcessReport):
            self._fold_report(record, time.monotonic())
        elif isinstance(record, WeightAck) and record.policy == self._policy:
            # Versions only grow; a copy of an older word, which verifies, would have the run wait for ever.
            self._acked[record.engine_id] = max(record.version, self._acked.get(record.engine_id, 0))

    def _fold_report(self, report: ProcessReport, now_s: float) -> None:
        self.stream_delay.fold(report, now_s)
        if report.process == TRAINER:
            taken = report.counters.get(GROUPS_TAKEN.name)
            self._taken = None if taken is None else (int(taken), now_s)

    def _fold_request(self, request: RolloutRequest) -> None:
        if request.purpose not in self.admitted or run_hash_of(request.rollout_id) != self._run_hash:
            return
        if not self.admitted[request.purpose].add_member(request.group):
            return
        rollout = OpenRollout(request, time.monotonic())
        if not self.histories.of(request).is_final:
            self.open[request.rollout_id] = rollout
        elif request.group not in self._seen_final[request.purpose]:
            self.awaited[request.rollout_id] = rollout

    def _fold_event(self, event: RolloutEvent) -> None:
        seen = self._seen_final.get(event.purpose)
        if seen is None or not self.histories.fold(event):
            return
        id_, now = event.rollout_id, time.monotonic()
        if event.state is RolloutState.GIVEN_UP and event.group not in seen:
            if id_ in self.awaited and event.attempt_id not in self.given_up[id_]:
                self.awaited[id_].active_s = now
            self.given_up[id_].add(event.attempt_id)
        # Nothing else that comes after the end is a sign of life: it may be a copy of what was said before.
        rollout = self.open.get(id_)
        if rollout is None:
            return
        rollout.active_s = now
        if self.histories.of(rollout.request).is_final:
            del self.open[id_]
            if event.group not in seen:
                self.awaited[id_] = rollout

    def _fold_episode(self, episode: Episode) -> None:
        group, rollout, seen = episode.group, episode.rollout_id, self._seen_final.get(episode.purpose)
        if group is None or rollout is None or seen is None or run_hash_of(rollout) != self._run_hash:
            return
        if not episode.is_final or not seen.add_member(group):
            return
        self.awaited.pop(rollout, None)
        self.given_up.pop(rollout, None)
        self.causes.add_episode(episode)
        if episode.purpose is Purpose.VALIDATION:
            if group.index >= self._num_scored_groups:
                reward = episode.reward if is_usable(episode.reward) else None
                shares = version_shares(episode, self._policy, self._run_hash)
                self._scores[group.index, group.member] = Score(reward, self._why_excluded(episode), shares)
            return
        reason = self._why_excluded(episode)
        if reason:
            # A grader may word every reason anew; the table of reasons stays small all the same.
            known = reason in self.exclusions or len(self.exclusions) < _MAX_REASONS
            self.exclusions[reason if known else Reason.UNSCORED] += 1
        self._outcomes[group.id].append((reason, MemberOutcome.of(episode, self._policy)))
        if len(self._outcomes[group.id]) >= group.size:
            self._closed_s = time.monotonic()
            reasons, members = zip(*self._outcomes.pop(group.id), strict=True)
            self.untrained.close(members)
            excluded = list(filter(None, reasons))
            if excluded:
                logger.warning(
                    "group %d: %d of %d rollouts excluded: %s", group.index, len(excluded), group.size, _told(excluded)
                )

    def _why_excluded(self, episode: Episode) -> str:
        reason = why_excluded(episode, self._policy)
        return f"unscored ({episode.unscored[:80]})" if reason == Reason.UNSCORED else reason

    def _fold_step(self, step: TrainingStep) -> None:
        newest = self.newest_step
        if step.policy != self._policy or (newest and _place(step) < _place(newest)):
            return
        self.newest_step = step
        self._end_wait({*step.group_ids, *step.excluded_ids})
        if step.skipped:
            logger.warning("step %d trained nothing: %s", step.step, step.skipped)
        if step.excluded_ids:
            reasons = _told(step.excluded_ids.values())
            logger.warning("step %d: %d groups excluded: %s", step.step, len(step.excluded_ids), reasons)

    def _fold_given_back(self, given: GroupsGivenBack) -> None:
        known = self._given_back
        is_newer = known is None or (_place(given), given.consumed) > (_place(known), known.consumed)
        if given.policy == self._policy and is_newer:
            self._given_back = given
            self._end_wait(given.group_ids)

    def _fold_pass(self, held_out: HeldOutPass) -> None:
        if held_out.policy == self._policy and self.held_out.fold(held_out) and held_out.score is not None:
            self._num_scored_groups = held_out.first_group + held_out.num_tasks
            kept = self._scores.items()
            self._scores = {place: score for place, score in kept if place[0] >= self._num_scored_groups}

    def _end_wait(self, groups: Collection[str]) -> None:
        """Credit may have closed a group without the member that nobody hears of."""
        for id_ in [id_ for id_, rollout in self.awaited.items() if rollout.request.group.id in groups]:
            self._seen_final[Purpose.TRAIN].add_member(self.awaited.pop(id_).request.group)
            self.given_up.pop(id_, None)

    def num_open(self, purpose: Purpose) -> int:
        """Rollouts without a final event."""
        return sum(rollout.request.purpose is purpose for rollout in self.open.values())

    def stopping_cause(self, least: int) -> Cause | None:
        """Of a run that has not learned yet: the cause of all its attempts, if no training can mend it."""
        newest = self.newest_step
        has_learned = newest is not None and (newest.version or newest.num_unpublished)
        return None if has_learned else self.causes.stopping(least)

    def why_lost(self, rollout: OpenRollout, now: float) -> str:
        """Why nobody will end an open rollout; empty: somebody may."""
        silent_s = now - rollout.active_s
        limit_s = max(_GIVE_UP_S, 2 * rollout.request.limits.time_s + 600.0)
        if silent_s > limit_s:
            return f"nothing was heard of it for {silent_s:.0f} s"
        history = self.histories.of(rollout.request)
        is_used_up = history.next_number >= history.max_attempts(rollout.request.limits) and not history.open_attempts
        if is_used_up and history.ended and silent_s > _USED_UP_GRACE_S:
            return f"{history.next_number} attempts were aborted, the last one: {history.error}"
        return ""

    def _lost(self, purpose: Purpose) -> set[tuple[int, int]]:
        """Group and member of rollouts that were given up and given up, and no episode of them came."""
        return {
            (rollout.request.group.index, rollout.request.group.member)
            for id_, rollout in self.awaited.items()
            if len(self.given_up.get(id_, ())) >= MAX_GIVEN_UP and rollout.request.purpose is purpose
        }

    def lost_groups(self) -> set[int]:
        """Training groups that cannot close, for a member is lost. One that closes after all is none."""
        return {group for group, _ in self._lost(Purpose.TRAIN)}

    def held_out_scores(self) -> dict[tuple[int, int], Score]:
        """Validation group and member -> what came of it, of passes without a score; one that is lost has no reward."""
        return dict.fromkeys(self._lost(Purpose.VALIDATION), Score(None, "lost")) | self._scores

    def count_vanished(self, now_s: float, wait_s: float) -> int:
        """Counts anew the groups that closed and are in no batch, if none closed for `wait_s`, the streams have read
        all that there was, and so has the trainer; how many more than before. What became of their records, a dead
        letter or bytes that name no group, need not be known.
        """
        if self._taken is None:
            return 0
        num_taken, heard_s = self._taken
        if min(heard_s, now_s - self.stream_delay.seconds(now_s)) - self._closed_s <= wait_s:
            return 0
        before = self.num_vanished
        # Anybody may write a report; a step, which says what was consumed, is signed.
        num_taken = max(num_taken, self.newest_step.accounting.consumed if self.newest_step else 0)
        self.num_vanished = max(0, self._seen_final[Purpose.TRAIN].num_complete - num_taken)
        return self.num_vanished - before

    def _served_by_all(self) -> int | None:
        """The version of the slowest engine, for rollouts meet it too; None while one serves none. One that the run
        had before it was started with fewer does not count."""
        served = [self._acked.get(engine) for engine in self._engine_ids]
        known = [version for version in served if version is not None]
        return min(known) if len(known) == len(served) else None

    def progress(self) -> RunProgress:
        """What the pace is computed from."""
        step, given = self.newest_step, self._given_back
        if given is not None and step is not None and _place(given) <= _place(step):
            given = None
        running = {
            rollout.request.group.index for rollout in self.open.values() if rollout.request.purpose is Purpose.TRAIN
        }
        return RunProgress(
            admitted=self.admitted[Purpose.TRAIN].num_groups,
            running=len(running),
            lost=len(self.lost_groups()) + self.num_vanished,
            consumed=given.consumed if given else step.accounting.consumed if step else 0,
            step=given.step - 1 if given else step.step if step else 0,
            version=step.version if step else 0,
            acked=self._served_by_all(),
        )


def _place(record: TrainingStep | GroupsGivenBack) -> tuple[int, int]:
    """In a run's order; a higher epoch's are later than all of a lower one's."""
    return record.epoch, record.step


def _told(reasons: Iterable[str]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(Counter(reasons).items()))
