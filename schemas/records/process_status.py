"""`process_status`: how each process of a run stands, told by two writers that never share a key.

A `ProcessReport` is the process's own, every 2 s; engine and broker, other programs, write none. A
`SupervisedProcess` is its supervisor's, of every process, at each change and every 2 s, for what a dead one cannot
say. The last record of each says all; older ones are compacted away.
"""

from __future__ import annotations

import msgspec

from .codec import Codec, OpenEnum

TRAINER = "trainer"
"""The trainer's process, and the stage of its dead letters."""
_STREAMS, _ENGINE = "streams", "engine"


class ProcessState(OpenEnum):
    """Where a supervised process stands."""

    WAITING = "waiting"
    """Not started yet, or waiting for its next try."""
    RUNNING = "running"
    DONE = "done"
    """A job that ended with 0."""
    FATAL = "fatal"
    """Ended with 78, or died too often: a restart would fail in the same way."""
    STOPPED = "stopped"
    UNKNOWN = "unknown"
    """How a value of a later release is read."""


class ProcessReport(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """A process of itself. Example: ProcessReport(process="llm", pid=7, since_ms=1, at_ms=2, counters={"calls": 3})."""

    schema: str = "process_report/1"
    process: str
    """As the supervisor calls it: `llm`, `streams-credit-0`."""
    pid: int
    since_ms: int
    """When it started, unix ms."""
    at_ms: int
    """When this was said: an old report means a process that died or is stopped. A work loop that hangs is its
    supervisor's to see (schemas/beat.py): a thread says this."""
    counters: dict[str, float] = {}
    """By series, such as `records` and `dead_letters{reason=malformed}`; docs/metrics.md says what each means."""


class SupervisedProcess(msgspec.Struct, frozen=True, kw_only=True, tag="supervised"):
    """A process as its supervisor sees it."""

    schema: str = "supervised_process/1"
    process: str
    state: ProcessState
    pid: int | None = None
    """Of the living process."""
    since_ms: int = 0
    """When it started last; 0: never."""
    num_restarts: int = 0
    why: str = ""
    """How it ended last, one line; what it wrote stays in its log."""
    at_ms: int = 0


ProcessStatus = ProcessReport | SupervisedProcess
PROCESS_STATUS: Codec[ProcessStatus] = Codec(
    ProcessStatus, released=("process_report/1", "supervised_process/1"), wire="json"
)


def process_name(name: str, stage: str | None, ordinal: int) -> str:
    """What a `serve` process is called: `llm`, `streams-credit-0`, `llm-1`."""
    if stage is not None:
        return f"{name}-{stage}-{ordinal}"
    return f"{name}-{ordinal}" if ordinal else name


def engine_of(process: str) -> str | None:
    """Of an engine's process the id under which it acknowledges versions."""
    name, _, ordinal = process.partition("-")
    return f"{_ENGINE}-{ordinal or 0}" if name == _ENGINE else None


def worker_stage(process: str) -> str | None:
    """Of a stream worker, the stage that it works for."""
    name, _, rest = process.partition("-")
    return rest.split("-")[0] if name == _STREAMS and rest else None
