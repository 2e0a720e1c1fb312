"""Decides what to run next: admits groups of rollouts as fast as training consumes them, and gives up lost ones.

    version 0 served -> validation before -> training groups, paced -> last version served -> validation after -> done

In: the dataset; `rollouts`, `rollout_events`, `episodes`, `training_steps`, `weight_acks`, `process_status`, from where
the run began. Out: `rollouts`, and a final `rollout_events` record for a rollout that nobody will end, or of which no
episode came, so that its group closes; for a group that does not even then, or that closes and never comes to the
trainer, another is admitted; `dead_letters` of unreadable records that no stage reads as a group. Invariant: ids follow
from run, purpose and number, so that a restart (or a second process) asks for the same rollouts again and no others.
Failure: a dataset that cannot be read, group after group lost -> ConfigurationError; the log is away -> waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any

from msgspec.structs import replace

from tracegrad.schemas.beat import acknowledged, beat
from tracegrad.schemas.errors import ConfigurationError, OverloadedError, RecordError, UnavailableError
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, group_id, new_attempt, rollout_id
from tracegrad.schemas.log.follow import Chunk, decoded, follow
from tracegrad.schemas.log.protocol import AWAY_S, Log, LogWriter, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import DEAD_LETTERS, GROUPS_ADMITTED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.process_status import PROCESS_STATUS
from tracegrad.schemas.records.rollouts import (
    MAX_GIVEN_UP,
    ROLLOUT_EVENTS,
    ROLLOUTS,
    GroupRef,
    Limits,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.records.tasks import Task
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS
from tracegrad.schemas.topics import Topic, Topics, original_key, rollout_key

from ..rollout_histories import event_of
from .admission_state import AdmissionState, OpenRollout, Score
from .config import PaceConfig, TasksConfig, TasksHandles
from .dataset import read_tasks, task_of_group
from .pace import RunProgress, capacity

__all__ = ["TaskAdmission", "run"]

_POLL_S = 0.1
_SAY_EVERY_S = 30.0
_GIVE_UP_S = 1800.0
"""A rollout of which nothing was heard for so long, queueing included, is given up; never less than twice the
attempt's time limit and ten minutes."""
_USED_UP_GRACE_S = 60.0
"""After its last attempt was aborted, until a rollout is given up in its runner's stead."""
_MAX_LOST = 100
"""Groups lost in a row, with none consumed in between, after which tasks stops."""
_ONLY_READ_HERE = (Topic.TRAINING_STEPS, Topic.WEIGHT_ACKS, Topic.PROCESS_STATUS)
"""No stage reads them as a group, so that the dead letters of their records are written here."""

logger = logging.getLogger(__name__)


class TaskAdmission:
    """The decisions, one `advance` at a time. Not thread-safe."""

    def __init__(
        self,
        config: TasksConfig,
        pace: PaceConfig,
        handles: TasksHandles,
        *,
        topics: Topics,
        writer: LogWriter,
        metrics: Metrics,
    ) -> None:
        self._handles = handles
        self._pace = pace
        self._group_size = config.group_size
        fills = -(-handles.concurrency // config.group_size)
        self._max_running = config.max_running or fills + 1
        self._limits = Limits(time_s=handles.time_limit_s, max_attempts=config.max_attempts)
        self._tasks = read_tasks(config.file)
        self._held_out = read_tasks(config.eval_file) if config.eval_file else ()
        self.codecs: dict[str, Codec[Any]] = {
            topics.name(Topic.ROLLOUTS): ROLLOUTS,
            topics.name(Topic.ROLLOUT_EVENTS): ROLLOUT_EVENTS,
            topics.name(Topic.EPISODES): EPISODES,
            topics.name(Topic.TRAINING_STEPS): TRAINING_STEPS,
            topics.name(Topic.WEIGHT_ACKS): WEIGHT_ACKS,
            topics.name(Topic.PROCESS_STATUS): PROCESS_STATUS,
        }
        """Of the topics to be followed."""
        self._topics = topics
        self._writer = writer
        self._metrics = metrics
        self._said: tuple[str, float] = ("", 0.0)
        self._reported: set[str] = set()
        self._came: tuple[int, int] | None = None
        """Groups consumed, and how many were lost when that number came."""
        self.state = AdmissionState(handles.run_hash, handles.policy)
        self._refusals = Refusals(topics, metrics, then=self._set_aside)
        self._dead: list[tuple[Record, RecordError]] = []

    def fold(self, chunk: Chunk) -> bool:
        """Takes what is new on the topics. True: the run is complete."""
        for _, record in decoded(chunk.records, self.codecs, self._refusals):
            self.state.fold(record)
        try:
            self._write_dead_letters()
            return chunk.is_caught_up and self._advance()
        except (UnavailableError, OverloadedError) as error:
            logger.warning("tasks: the log did not take a record, trying again: %s", error)
            return False

    def _set_aside(self, record: Record, error: RecordError) -> None:
        if record.topic in {self._topics.name(topic) for topic in _ONLY_READ_HERE}:
            self._dead.append((record, error))

    def _write_dead_letters(self) -> None:
        """Raises as `_write`; again after a restart, which reads them again."""
        name, stage = self._topics.name(Topic.DEAD_LETTERS), "tasks"
        futures = [
            self._writer.append(
                name,
                key=original_key(record),
                value=record.value,
                headers=dead_letter_headers(record, stage=stage, reason=error.reason, detail=str(error)),
            )
            for record, error in self._dead
        ]
        for future in futures:
            acknowledged(future, AWAY_S, "append a dead letter")
        for _, error in self._dead:
            self._metrics.add(DEAD_LETTERS, error.reason)
        self._dead.clear()

    def _advance(self) -> bool:
        """Admits what may be admitted now; the state holds all that lay on the log at the start."""
        self._give_up()
        progress = self.state.progress()
        if progress.acked is None:
            return self._wait("an engine to acknowledge version 0")
        if progress.admitted == 0 and not self._validate("before", 0):
            return False
        if progress.step < self._handles.steps:
            self._check_lost(progress)
            self._admit_training()
            return False
        if progress.acked < progress.version:
            return self._wait(f"an engine to acknowledge version {progress.version}")
        return self._validate("after", len(self._held_out))

    def _check_lost(self, progress: RunProgress) -> None:
        """Raises ConfigurationError when group after group is lost: so would be those in their stead."""
        if self._came is None or self._came[0] != progress.consumed:
            self._came = (progress.consumed, progress.lost)
        elif progress.lost - self._came[1] >= _MAX_LOST:
            raise ConfigurationError(
                f"expected groups that come to the trainer, got {progress.lost - self._came[1]} in a row that are "
                "lost; `tracegrad tail dead_letters` says why: a broker's limit below [kafka]'s, or a trainer "
                "([trainer] python) of another release? Mend it and start the run again"
            )

    def _wait(self, what: str) -> bool:
        now = time.monotonic()
        if self._said[0] != what or now - self._said[1] > _SAY_EVERY_S:
            self._said = (what, now)
            logger.info("tasks: waiting for %s", what)
        return False

    def _admit_training(self) -> None:
        for index in self.state.admitted[Purpose.TRAIN].incomplete():
            self._admit_group(index)
        progress = self.state.progress()
        room = capacity(progress, self._pace, self._handles, self._max_running)
        for index in range(progress.admitted, progress.admitted + room):
            self._admit_group(index)

    def _admit_group(self, index: int) -> None:
        task = task_of_group(self._tasks, index, seed=self._handles.seed)
        self._admit(Purpose.TRAIN, index, task, self._group_size)

    def _validate(self, when: str, first: int) -> bool:
        """Runs the held-out tasks once, as groups first, first + 1, ... True: all have a final episode, or none that
        will ever come."""
        room = self._max_running * self._group_size - self.state.num_open(Purpose.VALIDATION)
        asked = self.state.admitted[Purpose.VALIDATION]
        lacking = [place for place in range(len(self._held_out)) if asked.missing(first + place, 1)]
        for place in lacking[: max(room, 0)]:
            self._admit(Purpose.VALIDATION, first + place, self._held_out[place], 1)
        found = dict.fromkeys(self.state.lost_groups(Purpose.VALIDATION), Score(None, "lost")) | self.state.scores
        scores = [found.get(first + place) for place in range(len(self._held_out))]
        if None in scores:
            return self._wait(f"validation {when} training: {scores.count(None)} of {len(scores)} episodes")
        if when not in self._reported and scores:
            self._reported.add(when)
            rewards = [score.reward for score in scores if score and score.reward is not None]
            excluded = Counter(score.excluded for score in scores if score and score.reward is None)
            mean = sum(rewards) / len(rewards) if rewards else float("nan")
            logger.info(
                "validation %s training: mean reward %.4f over %d tasks, without reward: %s",
                when,
                mean,
                len(rewards),
                dict(excluded) or "none",
            )
        return True

    def _admit(self, purpose: Purpose, index: int, task: Task, size: int) -> None:
        """Asks for the members of a group that were not asked for."""
        group = group_id(self._handles.run_hash, purpose.value, index)
        requests = [
            RolloutRequest(
                rollout_id=rollout_id(group, member),
                group=GroupRef(id=group, size=size, member=member, index=index),
                task_id=task.id,
                input=task.input,
                expected=task.expected,
                policy=self._handles.policy,
                purpose=purpose,
                limits=self._limits,
                rewards_awaited=self._handles.rewards_awaited,
                created_at_ms=int(time.time() * 1000),
            )
            for member in self.state.admitted[purpose].missing(index, size)
        ]
        self._write(Topic.ROLLOUTS, requests)
        self._metrics.add(GROUPS_ADMITTED, purpose)

    def _write(self, topic: Topic, records: Sequence[RolloutRequest | RolloutEvent]) -> None:
        """Raises UnavailableError or OverloadedError when the log does not take all."""
        name = self._topics.name(topic)
        encode = self.codecs[name].encode
        futures = [self._writer.append(name, key=rollout_key(one.rollout_id), value=encode(one)) for one in records]
        for future in futures:
            acknowledged(future, AWAY_S, f"append to {name!r}")
        for record in records:
            self.state.fold(record)

    def _give_up(self) -> None:
        """Ends rollouts that nobody else will end, so that their groups close."""
        now = time.monotonic()
        for rollout in list(self.state.open.values()):
            reason = self._lost(rollout, now)
            if not reason:
                continue
            request = rollout.request
            history = self.state.histories.of(request)
            aborted = [
                replace(event_of(request, attempt, number, RolloutState.ABORTED, error=reason), calls_closed=False)
                for number, attempt in history.open_attempts
            ]
            number = history.next_number
            given_up = event_of(request, GIVEN_UP_ATTEMPT, number, RolloutState.GIVEN_UP, is_final=True, error=reason)
            logger.warning("rollout %s of group %d given up: %s", request.rollout_id, request.group.index, reason)
            self._write(Topic.ROLLOUT_EVENTS, [*aborted, given_up])

        read_until_s = now - self.state.stream_delay.seconds(now)
        for rollout in list(self.state.awaited.values()):
            waited_s = read_until_s - rollout.active_s
            if waited_s > self._handles.episode_wait_s:
                self._give_up_unheard(rollout, f"no episode of it came within {waited_s:.0f} s")
        if (more := self.state.count_vanished(now, self._handles.episode_wait_s)) > 0:
            logger.error("%d groups closed and came to no batch: lost, others are admitted; see dead_letters", more)
            if more == self.state.num_vanished:
                self._came = None  # a restart counts at once what an earlier process told one by one

    def _give_up_unheard(self, rollout: OpenRollout, reason: str) -> None:
        """Asks for an episode that says so; where the real one is only late, it wins until the group closes. Each time
        as another attempt, for an episode that was closed once is never written again."""
        request = rollout.request
        before = self.state.given_up.get(request.rollout_id, set())
        if len(before) >= MAX_GIVEN_UP:
            return
        attempt = new_attempt() if GIVEN_UP_ATTEMPT in before else GIVEN_UP_ATTEMPT
        logger.warning("rollout %s of group %d given up: %s", request.rollout_id, request.group.index, reason)
        self._write(
            Topic.ROLLOUT_EVENTS,
            [event_of(request, attempt, 0, RolloutState.GIVEN_UP, is_final=True, error=reason)],
        )
        if len(self.state.given_up[request.rollout_id]) == MAX_GIVEN_UP:
            then = ", another is admitted" if request.purpose is Purpose.TRAIN else ""
            logger.error(
                "%s group %d does not close: excluded as lost%s", request.purpose.value, request.group.index, then
            )

    def _lost(self, rollout: OpenRollout, now: float) -> str:
        silent_s = now - rollout.active_s
        limit_s = max(_GIVE_UP_S, 2 * rollout.request.limits.time_s + 600.0)
        if silent_s > limit_s:
            return f"nothing was heard of it for {silent_s:.0f} s"
        history = self.state.histories.of(rollout.request)
        is_used_up = history.next_number >= rollout.request.limits.max_attempts and not history.open_attempts
        if is_used_up and history.ended and silent_s > _USED_UP_GRACE_S:
            return f"{history.next_number} attempts were aborted, the last one: {history.error}"
        return ""


def run(
    config: TasksConfig,
    pace: PaceConfig,
    handles: TasksHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
    starts: Mapping[TopicPartition, int] | None = None,
) -> None:
    """Admits tasks until the run is complete or `stop` is set. Blocks.

    `starts`: where the run began on the raw topics, which it shares with others; None: at their beginning.

    Raises:
        ConfigurationError: the settings or the dataset cannot work; the message names line and remedy.
    """
    with closing(log.writer()) as writer:
        admission = TaskAdmission(config, pace, handles, topics=topics, writer=writer, metrics=metrics)
        with closing(follow(log, list(admission.codecs), starts=starts, poll_s=_POLL_S, stop=stop)) as chunks:
            for chunk in chunks:
                beat()
                if admission.fold(chunk):
                    excluded = dict(admission.state.exclusions) or "none"
                    logger.info("tasks: %d steps done; training rollouts excluded: %s", handles.steps, excluded)
                    return
