"""What shows that a process has work in flight: read from topics, offsets, sockets and folders, never from its word.

Each look gives a sentence, or "" when nothing is in flight. They are taken while the process is frozen (SIGSTOP), so
what they see cannot end before the SIGKILL.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from tests.e2e.live_run import LiveRun, Observer
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic
from tracegrad.trainer.store.checkpoint import CheckpointState

Look = Callable[[], str]

_PRODUCE_BYTES = 250
"""What a gateway asks of the broker besides producing (one partition's fetch, metadata) is shorter."""
_SAMPLED_BYTES = 500
"""What the engine answers besides samples and prompts (its label, its health) is shorter."""


def looks(run: LiveRun, seen: Observer, *, per_host: int) -> dict[str, Look]:
    """Process -> how to see work in flight in it; after a colon, one kind of work.

    `per_host`: attempts that one of the two agent hosts can run; when more are open, each of the two runs some.
    """
    endpoints = run.wiring.endpoints
    found: dict[str, Look] = {
        "otlp": lambda: _open_request(endpoints.otlp_endpoint),
        "llm": lambda: _unrecorded(run, _port(endpoints.engine_urls[0])),
        "engine": lambda: _open_request(endpoints.engine_urls[0]),
        "runner": lambda: _attempts(seen),
        "agent-host": lambda: _attempts(seen, more_than=per_host),
        "tasks": lambda: f"{len(seen.open_rollouts)} rollouts without a final event" if seen.open_rollouts else "",
        "trainer": lambda: _half_written(run, "checkpoints", "weights") or _untrained(run, seen),
        "trainer:half-written": lambda: _half_written(run, "weights"),
        "weight-sync": lambda: _unacknowledged(seen),
        "kafka": lambda: _unproduced(run, _port(endpoints.bootstrap_servers)),
    }
    for stage in STREAMS:
        for ordinal in range(3):
            found[f"streams-{stage.value}-{ordinal}"] = _stage_look(run, seen, stage, ordinal)
    return found


def _stage_look(run: LiveRun, seen: Observer, stage: Stage, ordinal: int) -> Look:
    def look() -> str:
        assigned = run.worker(stage, ordinal)
        if assigned is None:
            return ""
        count = seen.uncommitted(stage, INPUTS[stage], assigned)
        return f"{count} uncommitted inputs on its partitions {assigned}" if count else ""

    return look


def _attempts(seen: Observer, more_than: int = 0) -> str:
    count = len(seen.open_attempts)
    return f"{count} attempts started and not ended" if count > more_than else ""


def _unacknowledged(seen: Observer) -> str:
    behind = seen.manifest and seen.manifest != seen.acked
    return f"manifest {seen.manifest} without an acknowledgement (last {seen.acked or 'none'})" if behind else ""


class _Connection(NamedTuple):
    """One end of an established connection on this machine."""

    port: int
    peer: int
    """The other end's port."""
    unread_bytes: int
    """Received, and not yet read by the process."""
    inode: str


def _connections() -> Iterator[_Connection]:
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "01":
                port, peer = (int(address.rpartition(":")[2], 16) for address in fields[1:3])
                yield _Connection(port, peer, int(fields[4].partition(":")[2], 16), fields[9])


def _sockets(run: LiveRun, name: str) -> set[str]:
    """The inodes of a process's sockets."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for descriptor in Path(f"/proc/{run.pid_of(name)}/fd").iterdir():
            with contextlib.suppress(OSError):
                kind, _, inode = str(descriptor.readlink()).partition(":")
                if kind == "socket":
                    found.add(inode.strip("[]"))
    return found


def _port(url: str) -> int:
    return int(url.rpartition(":")[2])


def _open_request(url: str) -> str:
    """Bytes of a request that lie unread in the process's sockets: somebody waits for an answer."""
    count = sum(known.port == _port(url) and known.unread_bytes > 0 for known in _connections())
    return f"{count} connections with an unread request" if count else ""


def _unrecorded(run: LiveRun, engine: int) -> str:
    """Answers of the engine that the LLM gateway has not read: half-served calls, of which Kafka knows nothing."""
    unread = {known.inode for known in _connections() if known.peer == engine and known.unread_bytes >= _SAMPLED_BYTES}
    count = len(unread & _sockets(run, "llm")) if unread else 0
    return f"{count} answers of the engine unread, their calls not recorded" if count else ""


def _unproduced(run: LiveRun, broker: int) -> str:
    """Unread requests of the two gateways to write records: they wait for the broker's acknowledgement."""
    found = list(_connections())
    waiting = {known.peer: known.unread_bytes for known in found if known.port == broker}
    waiting = {port: num_bytes for port, num_bytes in waiting.items() if num_bytes >= _PRODUCE_BYTES}
    if not waiting:
        return ""
    gateways = _sockets(run, "llm") | _sockets(run, "otlp")
    theirs = {known.port for known in found if known.peer == broker and known.inode in gateways}
    total = [num_bytes for port, num_bytes in waiting.items() if port in theirs]
    return f"{sum(total)} unread bytes of records from {len(total)} connections of the gateways" if total else ""


def newest_checkpoint(trainer: Path) -> CheckpointState | None:
    """The newest complete checkpoint under a trainer's folder: by epoch, then step, then version."""
    found: list[CheckpointState] = []
    for path in (trainer / "checkpoints").glob("step-*/state.json"):
        with contextlib.suppress(FileNotFoundError):
            found.append(msgspec.json.decode(path.read_bytes(), type=CheckpointState))
    return max(found, key=lambda state: (state.epoch, state.step, state.version), default=None)


def _half_written(run: LiveRun, *parts: str) -> str:
    half = [path for part in parts for path in (run.path / "trainer" / part).glob(".tmp-*")]
    return f"half-written {half[0].parent.name}/{half[0].name}" if half else ""


def _untrained(run: LiveRun, seen: Observer) -> str:
    state = newest_checkpoint(run.path / "trainer")
    if state is None:
        return ""
    if state.step > seen.step:
        return f"checkpoint of step {state.step} without its training_step"
    end = seen.end_of(Topic.TRANSITIONS)
    return f"{end - state.next_offset} groups taken and not in a checkpoint" if end > state.next_offset else ""
