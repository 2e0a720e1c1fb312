"""What a worker says about itself: a small JSON file for whoever watches it, and one wide log line per interval.

In: its figures, as plain data. Out: `<data_dir>/status/streams-<stage>-<instance>.json`, always a whole document, and
log lines without payloads. A clean stop removes the file; the file of a worker that died stays, with its old time.
`tracegrad status` shows those whose process the supervisor knows.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from pathlib import Path

import msgspec

from tracegrad.schemas.topics import Stage

from .instance import file_name

__all__ = ["Heartbeat", "Status", "read_statuses"]

logger = logging.getLogger(__name__)

_LOG_INTERVAL_S = 10.0


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """One worker now. Counts are since its start."""

    stage: str
    instance_id: str | None
    pid: int
    at_s: float
    """Unix time of this report: an old one means a worker that died or hangs."""
    is_ready: bool
    """False while partitions are taken over."""
    assigned: dict[str, list[int]]
    """Input partitions by topic."""
    records: int
    """Inputs folded."""
    emissions: int
    in_flight: int
    """Emissions that wait for acknowledgement."""
    open: int
    """Inputs on which something open depends."""
    open_ids: int = 0
    """Episodes or groups that wait for something."""
    ranges: int
    """What the ledger holds for them."""
    lag: int
    """Records on the log not yet delivered, as of the last liveness check."""
    dead_letters: int
    shell: dict[str, int]
    """The shell's own counts: commits, proposals, deliveries dropped around a rebalance."""
    outputs: dict[str, int]
    """Records appended, by topic; dead letters by reason."""
    fold: dict[str, int]
    """The fold's counts: late facts, drops, each with its reason."""


class Heartbeat:
    """Writes and logs the status of one worker."""

    def __init__(self, data_dir: Path, stage: Stage, instance_id: str | None) -> None:
        name = file_name(instance_id) if instance_id is not None else f"pid{os.getpid()}"
        self.path = data_dir / "status" / f"streams-{stage.value}-{name}.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._logged_at = time.monotonic()
        self._logged_records = 0

    def write(self, status: Status) -> None:
        """Replaces the file as a whole; logs a line now and then."""
        temporary = self.path.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_bytes(msgspec.json.encode(status))
        temporary.replace(self.path)
        elapsed_s = time.monotonic() - self._logged_at
        if elapsed_s < _LOG_INTERVAL_S:
            return
        rate = (status.records - self._logged_records) / elapsed_s
        self._logged_at, self._logged_records = time.monotonic(), status.records
        logger.info(
            "streams %s: records=%d rate=%.0f/s emissions=%d in_flight=%d open=%d lag=%d dead_letters=%d fold=%s",
            status.stage,
            status.records,
            rate,
            status.emissions,
            status.in_flight,
            status.open,
            status.lag,
            status.dead_letters,
            status.fold,
        )

    def remove(self) -> None:
        """After a clean stop nobody is alive under this name."""
        self.path.unlink(missing_ok=True)


def read_statuses(data_dir: Path) -> dict[int, Status]:
    """The last report of each worker, by process id; one that another release wrote is passed over."""
    found = {}
    for path in sorted((data_dir / "status").glob("streams-*.json")):
        with contextlib.suppress(OSError, msgspec.DecodeError, msgspec.ValidationError):
            status = msgspec.json.decode(path.read_bytes(), type=Status)
            found[status.pid] = status
    return found
