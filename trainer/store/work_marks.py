"""What the trainer has in work, marked on disk, so that its successor knows what it died of.

    in-work/record-43      reading the record at offset 43 of the policy's partition
    in-work/step-40-48     the step on the batch of offsets [40, 48); in each file: how often it was begun and not ended

In: the two pieces of work that depend on what a record holds. Out: nothing, or a ConfigurationError when three trainers
died in the same piece: by the kernel's out-of-memory killer, a segmentation fault, an exception, or as frozen.
Invariant: marked before it begins, so that nothing need be said by who dies; never left out, never tried for ever: who
starts the run again after the refusal has acted, and gets three more tries. Failure: OSError of a disk that is full.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError, TracegradError
from tracegrad.schemas.log.protocol import Record, TopicPartition

from ..batch.batches import Batch

_log = logging.getLogger(__name__)
MAX_DEATHS = 3
"""In the same piece of work: once may be anybody's doing, three times is its own."""


class WorkMarks:
    """The marks of one policy's trainer under a folder; one trainer at a time."""

    def __init__(self, folder: Path, partition: TopicPartition) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._partition = partition

    def reading(self, record: Record) -> contextlib.AbstractContextManager[None]:
        """Around the decoding of one record. Raises ConfigurationError instead of a fourth try."""
        what = f"reading offset {record.offset}"
        size = f"{len(record.value or b'')} bytes"
        remedy = "Give the trainer more memory, or start a new run without the record"
        return self._marked(f"record-{record.offset}", what, size, remedy)

    def step(self, batch: Batch) -> contextlib.AbstractContextManager[None]:
        """Around the step on one batch. Raises ConfigurationError instead of a fourth try."""
        rows = [(len(row.token_ids), group.offset) for group in batch.groups for row in group.rows]
        longest, offset = max(rows, default=(0, batch.begin_offset))
        what = f"the step on offsets [{batch.begin_offset}, {batch.next_offset})"
        size = (
            f"{len(batch.groups)} groups, {len(rows)} rows, {sum(length for length, _ in rows)} tokens; "
            f"the longest row, of {longest}, is in the record at offset {offset}"
        )
        remedy = (
            "If memory ran out, lower [trainer] micro_batch_tokens or micro_batch_logits, or give the trainer more; "
            f"max_row_tokens below {longest} excludes that record's group as too_long"
        )
        return self._marked(f"step-{batch.begin_offset}-{batch.next_offset}", what, size, remedy)

    @contextlib.contextmanager
    def _marked(self, name: str, what: str, size: str, remedy: str) -> Iterator[None]:
        mark = self._folder / name
        num_deaths = int(mark.read_text() or 0) if mark.exists() else 0
        if num_deaths >= MAX_DEATHS:
            mark.unlink()
            topic, number = self._partition
            raise ConfigurationError(
                f"expected {what} of {topic!r} partition {number} to end, got the trainer's death in it "
                f"{num_deaths} times ({size}). {remedy}. Nothing was left out: start the run again for {MAX_DEATHS} "
                "more tries"
            )
        if num_deaths:
            _log.warning("%s is tried again: the trainer died in it %d times (%s)", what, num_deaths, size)
        scratch = mark.with_suffix(".tmp")
        scratch.write_text(str(num_deaths + 1))
        scratch.replace(mark)
        # Not `finally`: an exception that nobody foresaw is a death like SIGKILL; one of ours says what it is.
        try:
            yield
        except TracegradError:
            mark.unlink()
            raise
        mark.unlink()
