"""All that one trainer writes of its policy, and the claim that it may: epochs, versions, training steps, dead letters.

A starting trainer claims an epoch on `weights`, reads it back, and watches for higher claims. In: the `weights` topic
from its beginning. Out: claims and manifests on it, `training_steps`, dead letters, each acknowledged before the
trainer goes on; rollback requests for the live trainer, and the held-out passes, which say what it keeps. Invariant:
nothing is announced that this trainer does not know to be its own to announce; a record that a higher claim precedes is
void for every reader (schemas/records/weights.py Lineage), and its writer learns so on reading. On failure:
FencedError, which ends the process with status 78: two trainers must not restart against each other; UnavailableError
past a minute: the process ends, resumes from its checkpoint and appends again (a dead letter may then stand there
twice, as each trainer writes one of each record of `weights` that it cannot read, any other record only if its first
append was still under way).
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial

from tracegrad.schemas.beat import acknowledged, beat
from tracegrad.schemas.errors import FencedError, RecordError, UnavailableError
from tracegrad.schemas.keys import original_key, policy_key
from tracegrad.schemas.log.follow import Chunk, decoded, follow, read_to_end
from tracegrad.schemas.log.protocol import AWAY_S, Log, LogWriter, Position, Record, TopicPartition
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import DEAD_LETTERS, Metrics
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.records.process_status import TRAINER
from tracegrad.schemas.records.training import (
    ADVANTAGES,
    TRAINING_STEPS,
    CallAdvantage,
    GroupAdvantages,
    TrainingStep,
    surviving_steps,
)
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, Lineage, RollbackRequest, VersionManifest
from tracegrad.schemas.retry import retry
from tracegrad.schemas.topics import Topic, Topics

from ..batch.groups import Verdict
from ..config import TrainerHandles

_log = logging.getLogger(__name__)
_AT_ONCE = 16
"""Appends that wait for their acknowledgement: a record may have 32 MiB, and the writer's queue is bounded."""
_LOOK_S = 0.02
"""A look at what has come waits so long when nothing has."""
_PARTITION = 0
"""Of `weights`, `training_steps` and `advantages`, which have one: claims and manifests need one order."""


class PolicyLog:
    """This process's claim on a policy, and its hand on the log. One thread at a time."""

    def __init__(
        self, handles: TrainerHandles, *, topics: Topics, log: Log, writer: LogWriter, metrics: Metrics
    ) -> None:
        self._policy = handles.policy
        self._run = handles.run_hash
        self._topics = topics
        self._at = TopicPartition(topics.name(Topic.WEIGHTS), _PARTITION)
        self._log = log
        self._writer = writer
        self._metrics = metrics
        self._chunks = follow(log, [self._at.topic], poll_s=_LOOK_S, patience_s=AWAY_S)
        self._next_offset = 0
        self._refused: list[Verdict] = []
        self._refusals = Refusals(topics, metrics, then=self._set_aside)
        self._requests: deque[tuple[int, RollbackRequest]] = deque()
        self.trainer_id = uuid.uuid4().hex
        self.epoch = 0
        """0 until claimed."""
        self.lineage = Lineage(handles.policy)

    def claim(self) -> None:
        """Takes the next epoch. Blocks for little more than a minute at each of four waits.

        Raises:
            FencedError: another trainer's claim of the same number came first.
        """
        self._read_until(self._end())
        epoch = 1 + (self.lineage.claim.epoch if self.lineage.claim else 0)
        claim = EpochClaim(
            policy=self._policy,
            run=self._run,
            epoch=epoch,
            trainer_id=self.trainer_id,
            at_ms=time.time_ns() // 1_000_000,
        )
        self.epoch = epoch
        self.announce(claim)
        _log.info("policy=%s epoch=%d claimed, trainer_id=%s", self._policy, epoch, self.trainer_id)

    @property
    def transitions_id(self) -> str:
        """What tells the policy's `transitions` from a topic that is made anew under its name."""
        ask = partial(self._log.topic_id, self._topics.name(Topic.TRANSITIONS))
        return retry(ask, doing="asking for the id of transitions", patience_s=AWAY_S)

    def look(self) -> None:
        """Takes what has come since. Raises FencedError on a higher claim."""
        self._take(next(self._chunks))
        self._require()

    def await_score(self, stop: threading.Event) -> bool:
        """Waits for that of the pass before training, if it is under way: tasks admits nothing meanwhile, but traffic
        comes on its own. A first pass that began later, behind a checkpoint that was lost, is none. False: told to
        stop. Raises FencedError on a higher claim."""
        while (first := self.lineage.held_out.by_number.get(0)) and first.since_version == 0 and first.score is None:
            if stop.is_set():
                return False
            beat()
            self.look()
        return True

    def check(self) -> None:
        """Reads to the topic's present end. Raises FencedError on a higher claim."""
        self._read_until(self._end())
        self._require()

    def announce(self, record: EpochClaim | VersionManifest | RollbackRequest) -> None:
        """Appends a record and reads it back. Raises FencedError when a higher claim precedes it."""
        self._read_until(self._append(Topic.WEIGHTS, WEIGHTS.encode(record)).offset + 1)
        self._require()

    def training_step(self, encoded: bytes) -> None:
        """Appends one record of `training_steps`."""
        self._append(Topic.TRAINING_STEPS, encoded)

    def advantages(self, step: TrainingStep, groups: Iterable[tuple[str, tuple[CallAdvantage, ...]]]) -> None:
        """Appends what the step makes of the returns of each of its groups; nothing is built on it, so one that is too
        large for the topic is left out."""
        append = partial(self._writer.append, self._topics.name(Topic.ADVANTAGES), key=policy_key(self._policy))
        begun: deque[Callable[[], None]] = deque()
        for group, calls in groups:
            if len(begun) == _AT_ONCE:
                begun.popleft()()
            record = GroupAdvantages(
                run=step.run, policy=step.policy, step=step.step, epoch=step.epoch, group_id=group, calls=calls
            )
            whole = partial(append, value=ADVANTAGES.encode(record), partition=_PARTITION)
            begun.append(partial(_told, group, whole, whole()))
        for told in begun:
            told()

    def training_steps(self, newest: bytes) -> list[TrainingStep]:
        """The run's records up to this one, which is appended unless these very bytes are on the topic."""
        topic, is_missing = self._topics.name(Topic.TRAINING_STEPS), True
        steps, last = list[TrainingStep](), TRAINING_STEPS.decode(newest)
        assert isinstance(last, TrainingStep)
        for record in read_to_end(self._log, topic, patience_s=AWAY_S):
            is_missing = is_missing and record.value != newest
            with contextlib.suppress(RecordError):  # a view's to tell; here one less is looked at
                step = TRAINING_STEPS.decode(record.value)
                if isinstance(step, TrainingStep) and step.run == self._run and step.step < last.step:
                    steps.append(step)
        if is_missing:
            _log.info("the checkpoint's training_step is not on the log: emitted again")
            self.training_step(newest)
        return [*surviving_steps(steps), last]

    def dead_letter(self, verdicts: Iterable[Verdict]) -> None:
        """Appends malformed records, with reason and origin."""
        letters = []
        for verdict in verdicts:
            record, reason = verdict.record, verdict.reason
            _log.warning("%s is not usable: reason=%s group=%s", record, reason, verdict.group_id)
            headers = dead_letter_headers(record, stage=TRAINER, reason=reason, detail=verdict.detail)
            name = self._topics.name(Topic.DEAD_LETTERS)
            letter = partial(self._writer.append, name, key=original_key(record), headers=headers)
            whole = partial(letter, value=record.value)
            letters.append((reason, letter, whole, whole()))
        for reason, letter, whole, begun in letters:
            try:
                _appended(whole, begun)
            except RecordError:  # too large for the topic: its headers still name where the original lies
                _appended(partial(letter, value=b""))
            self._metrics.add(DEAD_LETTERS, reason)

    def _append(self, topic: Topic, value: bytes) -> Position:
        name, key = self._topics.name(topic), policy_key(self._policy)
        return _appended(partial(self._writer.append, name, key=key, value=value, partition=_PARTITION))

    def next_request(self, handled_below: int) -> tuple[int, RollbackRequest] | None:
        """The oldest rollback request at or above an offset, with its offset; each is given once."""
        while self._requests:
            offset, request = self._requests.popleft()
            if offset >= handled_below:
                return offset, request
        return None

    def close(self) -> None:
        """Releases the reader."""
        self._chunks.close()

    def _require(self) -> None:
        claim = self.lineage.claim
        if claim is None or claim.trainer_id != self.trainer_id:
            raise FencedError(
                f"expected epoch {self.epoch} of policy {self._policy!r} to be this trainer's, got epoch "
                f"{claim.epoch if claim else 0} claimed by another trainer "
                f"({claim.trainer_id if claim else 'none'}); this trainer stops: run one trainer per policy"
            )

    def _end(self) -> int:
        ask = partial(self._log.offsets, self._at.topic)
        return retry(ask, doing="asking how far weights reaches", patience_s=AWAY_S)[self._at.partition].end

    def _read_until(self, next_offset: int) -> None:
        deadline = time.monotonic() + AWAY_S
        while self._next_offset < next_offset:
            self._take(next(self._chunks))
            if time.monotonic() > deadline and self._next_offset < next_offset:
                raise UnavailableError(
                    f"expected to read {self._at.topic!r} up to offset {next_offset} in {AWAY_S:g} s, "
                    f"got to {self._next_offset}"
                )

    def _take(self, chunk: Chunk) -> None:
        for record, weight in decoded(chunk.records, {self._at.topic: WEIGHTS}, self._refusals):
            if self.lineage.fold(weight) and isinstance(weight, RollbackRequest):
                self._requests.append((record.offset, weight))
        self._next_offset = chunk.positions.get(self._at, 0)
        refused, self._refused = self._refused, []
        self.dead_letter(refused)

    def _set_aside(self, record: Record, error: RecordError) -> None:
        self._refused.append(Verdict(record, None, None, error.reason, str(error)))


def _told(group: str, append: Callable[[], Future[Position]], begun: Future[Position]) -> None:
    try:
        _appended(append, begun)
    except RecordError as error:
        _log.warning("the advantages of group %s are not told: %s", group, error)


def _appended(append: Callable[[], Future[Position]], begun: Future[Position] | None = None) -> Position:
    """Where an appended record lies; appended again where a client that lost the brokers threw it away. Raises
    UnavailableError when the log does not say so in time."""
    waits = [begun] if begun is not None else []

    def end() -> Position:
        return acknowledged(waits.pop() if waits else append(), AWAY_S, "acknowledge a record")

    return retry(end, doing="appending a record", patience_s=AWAY_S)
