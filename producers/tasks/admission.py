"""Decides what to run next: admits groups of rollouts as fast as training consumes them, and gives up lost ones.

    version 0 served -> held-out pass -> training groups, paced -> last version served -> held-out pass -> done
                                         held-out passes beside them

A run that trains on captured traffic admits no training groups: what is left are the passes.
In: the dataset; `rollouts`, `rollout_events`, `episodes`, `training_steps`, `weights` (held-out passes), `weight_acks`,
`process_status`, from where the run began. Out: `rollouts`; held-out passes and their scores on `weights`
(held_out.py), by which the trainer knows the best version; a final `rollout_events` record for a rollout that nobody
will end, or of which no episode came, so that its group closes; for a group that does not even then, or that closes and
never comes to the trainer, another is admitted; `dead_letters` of unreadable records that no stage reads as a group.
Invariant: ids follow from run, purpose and number, so that a restart (or a second process) asks for the same rollouts
again and no others.
Failure: a dataset that cannot be read, group after group lost, one cause of all attempts that no training mends
-> ConfigurationError; the log is away -> waits.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from typing import Any

from msgspec.structs import replace

from tracegrad.schemas.alarms import NOTHING_TRAINS
from tracegrad.schemas.alarms.causes import Causes
from tracegrad.schemas.beat import acknowledged, beat
from tracegrad.schemas.errors import ConfigurationError, OverloadedError, RecordError, UnavailableError
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT, group_id, new_attempt, rollout_id
from tracegrad.schemas.keys import original_key, policy_key, rollout_key
from tracegrad.schemas.log.follow import Chunk, decoded, follow
from tracegrad.schemas.log.protocol import AWAY_S, Headers, Log, LogWriter, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import ALARMS_BEGUN, DEAD_LETTERS, GROUPS_ADMITTED, Metrics
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.held_out import HeldOutPass
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
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS
from tracegrad.schemas.topics import Topic, Topics

from ..rollout_histories import event_of
from .admission_state import AdmissionState, OpenRollout
from .config import PaceConfig, TasksConfig, TasksHandles
from .dataset import read_tasks, task_of_group
from .held_out import HeldOut
from .pace import RunProgress, capacity

_POLL_S = 0.1
_SAY_EVERY_S = 30.0
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
        self._tasks = read_tasks(config.file) if config.file is not None else ()
        """Of training; none in a run that trains on captured traffic."""
        self.codecs: dict[str, Codec[Any]] = {
            topics.name(Topic.ROLLOUTS): ROLLOUTS,
            topics.name(Topic.ROLLOUT_EVENTS): ROLLOUT_EVENTS,
            topics.name(Topic.EPISODES): EPISODES,
            topics.name(Topic.TRAINING_STEPS): TRAINING_STEPS,
            topics.name(Topic.WEIGHTS): WEIGHTS,
            topics.name(Topic.WEIGHT_ACKS): WEIGHT_ACKS,
            topics.name(Topic.PROCESS_STATUS): PROCESS_STATUS,
        }
        """Of the topics to be followed."""
        self._topics = topics
        self._writer = writer
        self._metrics = metrics
        self._said: tuple[str, float] = ("", 0.0)
        self._came: tuple[int, int] | None = None
        """Groups consumed, and how many were lost when that number came."""
        self._nothing_trains = False
        self._is_begun = False
        """What lay on the log at the start is folded."""
        self.state = AdmissionState(handles.run_hash, handles.policy, handles.engine_ids)
        self._held_out = HeldOut(
            config,
            pace,
            handles,
            self.state,
            ask=partial(self._admit, Purpose.VALIDATION),
            tell=self._tell,
            wait=self._wait,
            num_running=self._max_running * config.group_size,
        )
        self._refusals = Refusals(topics, metrics, then=self._set_aside)
        self._dead: list[tuple[bytes | None, bytes | None, Headers]] = []

    def fold(self, chunk: Chunk) -> bool:
        """Takes what is new on the topics. True: the run is complete."""
        for _, record in decoded(chunk.records, self.codecs, self._refusals):
            self.state.fold(record)
        if chunk.is_caught_up and not self._is_begun:
            # Whoever starts a run again may have mended what it ended by.
            self._is_begun, self.state.causes = True, Causes(self._handles.policy)
        try:
            self._append(Topic.DEAD_LETTERS, *self._dead)
            self._dead.clear()
            return chunk.is_caught_up and self._advance()
        except (UnavailableError, OverloadedError) as error:
            logger.warning("tasks: the log did not take a record, trying again: %s", error)
            return False

    def _set_aside(self, record: Record, error: RecordError) -> None:
        """Makes the letter, for `fold` to write; after a restart the record is read again."""
        if record.topic in {self._topics.name(topic) for topic in _ONLY_READ_HERE}:
            headers = dead_letter_headers(record, stage="tasks", reason=error.reason, detail=str(error))
            self._dead.append((original_key(record), record.value, headers))
            self._metrics.add(DEAD_LETTERS, error.reason)

    def _advance(self) -> bool:
        """Admits what may be admitted now; the state holds all that lay on the log at the start."""
        self._give_up()
        self._check_causes()
        before, self._nothing_trains = self._nothing_trains, self.state.untrained.holds(self._handles.groups_per_step)
        if self._nothing_trains and not before:
            self._metrics.add(ALARMS_BEGUN, NOTHING_TRAINS)
            logger.warning("alarm %s: %s", NOTHING_TRAINS, self.state.untrained.text)
        progress = self.state.progress()
        if progress.acked is None:
            return self._wait("an engine to acknowledge version 0")
        self._held_out.advance(progress)
        due = self._held_out.due(progress.step)
        if progress.step < self._handles.steps:
            if self._tasks and (due is None or due.number > 0):
                self._check_lost(progress)
                self._admit_training()
            return False
        if progress.acked < progress.version:
            return self._wait(f"an engine to acknowledge version {progress.version}")
        return due is None

    def _check_causes(self) -> None:
        """Raises ConfigurationError where every attempt ended by one cause that no training can mend."""
        cause = self.state.stopping_cause(2 * self._group_size)
        if cause is not None and self._handles.stops_by_cause:
            raise ConfigurationError(
                f"{cause.text} Then give the same command, which goes on; [alarms] on = 'warn' ends no run by this"
            )

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

    def _wait(self, what: str, detail: str = "") -> bool:
        now = time.monotonic()
        if self._said[0] != what or now - self._said[1] > _SAY_EVERY_S:
            self._said = (what, now)
            logger.info("tasks: waiting for %s", f"{what}: {detail}" if detail else what)
        return False

    def _admit_training(self) -> None:
        for index in self.state.admitted[Purpose.TRAIN].incomplete():
            self._admit_group(index)
        progress = self.state.progress()
        room = capacity(
            progress,
            self._pace,
            self._handles,
            max_running=self._max_running,
            last_step=self._held_out.last_step(progress.step),
        )
        for index in range(progress.admitted, progress.admitted + room):
            self._admit_group(index)

    def _admit_group(self, index: int) -> None:
        task = task_of_group(self._tasks, index, seed=self._handles.seed)
        self._admit(Purpose.TRAIN, index, task, self._group_size)

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
        encode = self.codecs[self._topics.name(topic)].encode
        self._append(topic, *((rollout_key(one.rollout_id), encode(one), ()) for one in records))
        for record in records:
            self.state.fold(record)

    def _tell(self, held_out: HeldOutPass) -> None:
        """Raises as `_write`."""
        self._append(Topic.WEIGHTS, (policy_key(held_out.policy), WEIGHTS.encode(held_out), ()))
        self.state.fold(held_out)

    def _append(self, topic: Topic, *rows: tuple[bytes | None, bytes | None, Headers]) -> None:
        """Keys, values and headers. Raises as `_write`."""
        name = self._topics.name(topic)
        futures = [self._writer.append(name, key=key, value=value, headers=headers) for key, value, headers in rows]
        for future in futures:
            acknowledged(future, AWAY_S, f"append to {name!r}")

    def _give_up(self) -> None:
        """Ends rollouts that nobody else will end, so that their groups close."""
        now = time.monotonic()
        for rollout in list(self.state.open.values()):
            reason = self.state.why_lost(rollout, now)
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
