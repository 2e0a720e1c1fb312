"""What shows that a process has work in flight: read from topics, offsets, sockets and folders, never from its word.

Each look gives a sentence, or "" when nothing is in flight. They are taken while the process is frozen (SIGSTOP), so
what they see cannot end before the SIGKILL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import msgspec

from tests.e2e.live_run import LiveRun, Observer
from tracegrad.schemas.topics import INPUTS, Stage, Topic
from tracegrad.trainer.checkpoint import CheckpointState

__all__ = ["Look", "looks", "newest_checkpoint"]

Look = Callable[[], str]


def looks(run: LiveRun, seen: Observer, *, per_host: int) -> dict[str, Look]:
    """Process -> how to see work in flight in it; after a colon, one kind of work.

    `per_host`: attempts that one of the two agent hosts can run; when more are open, each of the two runs some.
    """
    endpoints = run.wiring.endpoints
    found: dict[str, Look] = {
        "otlp": lambda: _open_request(endpoints.otlp_endpoint),
        "llm": lambda: _open_request(endpoints.llm_url),
        "engine": lambda: _open_request(endpoints.engine_url),
        "runner": lambda: _attempts(seen),
        "agent-host": lambda: _attempts(seen, more_than=per_host),
        "tasks": lambda: f"{len(seen.open_rollouts)} rollouts without a final event" if seen.open_rollouts else "",
        "trainer": lambda: _half_written(run) or _untrained(run, seen),
        "trainer:half-written": lambda: _half_written(run),
        "weight-sync": lambda: _unacknowledged(seen),
        "kafka": lambda: _attempts(seen),
    }
    for stage in INPUTS:
        for ordinal in range(3):
            found[f"streams-{stage.value}-{ordinal}"] = _stage_look(run, seen, stage, ordinal)
    return found


def _stage_look(run: LiveRun, seen: Observer, stage: Stage, ordinal: int) -> Look:
    def look() -> str:
        status = run.worker(stage, ordinal)
        if status is None or not status["is_ready"]:
            return ""
        count = seen.uncommitted(stage, INPUTS[stage], status["assigned"])
        return f"{count} uncommitted inputs on its partitions {status['assigned']}" if count else ""

    return look


def _attempts(seen: Observer, more_than: int = 0) -> str:
    count = len(seen.open_attempts)
    return f"{count} attempts started and not ended" if count > more_than else ""


def _unacknowledged(seen: Observer) -> str:
    behind = seen.manifest and seen.manifest != seen.acked
    return f"manifest {seen.manifest} without an acknowledgement (last {seen.acked or 'none'})" if behind else ""


def _open_request(url: str) -> str:
    """Bytes of a request that lie unread in the process's sockets: somebody waits for an answer."""
    port = int(url.rpartition(":")[2])
    count = 0
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            is_established = fields[3] == "01"
            unread = int(fields[4].partition(":")[2], 16)
            if is_established and unread and int(fields[1].rpartition(":")[2], 16) == port:
                count += 1
    return f"{count} connections with an unread request" if count else ""


def newest_checkpoint(trainer: Path) -> CheckpointState | None:
    """The newest complete checkpoint under a trainer's folder: by epoch, then step, then version."""
    found: list[CheckpointState] = []
    for path in (trainer / "checkpoints").glob("step-*/state.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(msgspec.json.decode(path.read_bytes(), type=CheckpointState))
    return max(found, key=lambda state: (state.epoch, state.step, state.version), default=None)


def _half_written(run: LiveRun) -> str:
    folder = run.path / "trainer"
    half = [path for part in ("checkpoints", "weights") for path in (folder / part).glob(".tmp-*")]
    return f"half-written {half[0].parent.name}/{half[0].name}" if half else ""


def _untrained(run: LiveRun, seen: Observer) -> str:
    state = newest_checkpoint(run.path / "trainer")
    if state is None:
        return ""
    if state.step > seen.step:
        return f"checkpoint of step {state.step} without its training_step"
    end = seen.end_of(Topic.TRANSITIONS)
    return f"{end - state.next_offset} groups taken and not in a checkpoint" if end > state.next_offset else ""
