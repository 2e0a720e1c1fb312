"""What the trainer appends besides `weights`: training steps and dead letters, each acknowledged before it goes on.

On failure: UnavailableError past the time given; the process ends, resumes from its checkpoint and appends again
(a dead letter may then stand there twice, a training step only if its first append was still under way).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial

from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log, LogWriter, Position
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics, original_key, policy_key

from ..batch.groups import Verdict

__all__ = ["PATIENCE_S", "Outbox", "acknowledged"]

PATIENCE_S = 60.0
"""For the log to acknowledge one record, or to give what is known to lie there."""

_log = logging.getLogger(__name__)


def acknowledged(future: Future[Position]) -> Position:
    """Where an appended record lies. Raises UnavailableError when the log does not say so in time."""
    try:
        return future.result(PATIENCE_S)
    except TimeoutError as error:
        raise UnavailableError(f"expected an acknowledgement within {PATIENCE_S:g} s, got none") from error


class Outbox:
    """One policy's training steps and dead letters."""

    def __init__(self, policy: str, *, topics: Topics, log: Log, writer: LogWriter) -> None:
        self._key = policy_key(policy)
        self._steps_topic = topics.name(Topic.TRAINING_STEPS)
        self._dead_topic = topics.name(Topic.DEAD_LETTERS)
        self._log = log
        self._writer = writer

    def training_step(self, encoded: bytes) -> None:
        """Appends one record of `training_steps`."""
        acknowledged(self._writer.append(self._steps_topic, key=self._key, value=encoded, partition=0))

    def training_step_if_missing(self, encoded: bytes) -> None:
        """Appends it unless these very bytes are on the topic."""
        steps = read_to_end(self._log, self._steps_topic, patience_s=PATIENCE_S)
        if not any(record.value == encoded for record in steps):
            _log.info("the checkpoint's training_step is not on the log: emitted again")
            self.training_step(encoded)

    def dead_letter(self, verdicts: Iterable[Verdict]) -> None:
        """Appends malformed records, with reason and origin."""
        letters = []
        for verdict in verdicts:
            headers = dead_letter_headers(verdict.record, stage="trainer", reason=verdict.reason, detail=verdict.detail)
            _log.warning(
                "transitions offset=%d is not usable: reason=%s group=%s",
                verdict.record.offset,
                verdict.reason,
                verdict.group_id,
            )
            letter = partial(self._writer.append, self._dead_topic, key=original_key(verdict.record), headers=headers)
            letters.append((letter, letter(value=verdict.record.value)))
        for letter, future in letters:
            try:
                acknowledged(future)
            except RecordError:  # too large for the topic: its headers still name where the original lies
                acknowledged(letter(value=b""))
