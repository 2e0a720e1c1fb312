"""Who owns the policy: a starting trainer claims an epoch on `weights`, reads it back, and watches for higher claims.

In: the `weights` topic from its beginning. Out: claims and manifests on it; rollback requests for the live trainer.
Invariant: nothing is announced that this trainer does not know to be its own to announce; a record that a higher
claim precedes is void for every reader (schemas/records/weights.py Lineage), and its writer learns so on reading.
On failure: FencedError, which ends the process with status 78: two trainers must not restart against each other.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque

from tracegrad.schemas.errors import FencedError, RecordError, UnavailableError
from tracegrad.schemas.log.follow import Chunk, follow
from tracegrad.schemas.log.protocol import Log, LogWriter, TopicPartition
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, Lineage, RollbackRequest, VersionManifest
from tracegrad.schemas.topics import Topic, Topics, policy_key

from ..config import TrainerHandles
from .outbox import PATIENCE_S, acknowledged

__all__ = ["Ownership"]

_log = logging.getLogger(__name__)
_LOOK_S = 0.02
"""A look at what has come waits so long when nothing has."""
_PARTITION = 0
"""`weights` has one partition: claims and manifests need one order."""


class Ownership:
    """This process's claim on a policy. One thread at a time."""

    def __init__(self, handles: TrainerHandles, *, topics: Topics, log: Log, writer: LogWriter) -> None:
        self._policy = handles.policy
        self._run = handles.run
        self._at = TopicPartition(topics.name(Topic.WEIGHTS), _PARTITION)
        self._log = log
        self._writer = writer
        self._chunks = follow(log, [self._at.topic], poll_s=_LOOK_S, patience_s=PATIENCE_S)
        self._next_offset = 0
        self._requests: deque[tuple[int, RollbackRequest]] = deque()
        self.trainer_id = uuid.uuid4().hex
        self.epoch = 0
        """0 until claimed."""
        self.lineage = Lineage(handles.policy)

    def claim(self) -> None:
        """Takes the next epoch. Blocks for at most a minute at each of three waits.

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

    def look(self) -> None:
        """Takes what has come since. Raises FencedError on a higher claim."""
        self._take(next(self._chunks))
        self._require()

    def check(self) -> None:
        """Reads to the topic's present end. Raises FencedError on a higher claim."""
        self._read_until(self._end())
        self._require()

    def announce(self, record: EpochClaim | VersionManifest) -> None:
        """Appends a record and reads it back. Raises FencedError when a higher claim precedes it."""
        future = self._writer.append(
            self._at.topic, key=policy_key(self._policy), value=WEIGHTS.encode(record), partition=self._at.partition
        )
        self._read_until(acknowledged(future).offset + 1)
        self._require()

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
        return self._log.offsets(self._at.topic)[self._at.partition].end

    def _read_until(self, next_offset: int) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self._next_offset < next_offset:
            self._take(next(self._chunks))
            if time.monotonic() > deadline and self._next_offset < next_offset:
                raise UnavailableError(
                    f"expected to read {self._at.topic!r} up to offset {next_offset} in {PATIENCE_S:g} s, "
                    f"got to {self._next_offset}"
                )

    def _take(self, chunk: Chunk) -> None:
        for record in chunk.records:
            try:
                decoded = WEIGHTS.decode(record.value)
            except RecordError as error:
                _log.warning("weights offset=%d is not readable and skipped: %s", record.offset, error.reason)
                continue
            if self.lineage.fold(decoded) and isinstance(decoded, RollbackRequest):
                self._requests.append((record.offset, decoded))
        self._next_offset = chunk.positions.get(self._at, 0)
