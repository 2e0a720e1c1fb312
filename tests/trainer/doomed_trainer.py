"""A trainer for a process of its own, which kills itself with SIGKILL at a named seam.

In: bootstrap servers, topics, its configuration, the seam (`none` trains on) and at which call of it. Out: what the
trainer writes, and a file with what it said on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, FatalError
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
from tracegrad.trainer import loop
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.store import checkpoint, publish, store

SEAMS: dict[str, tuple[Any, str, bool]] = {
    "before the step": (loop.Trainer, "_learn", True),
    "after the step": (loop.Trainer, "_learn", False),
    "half-written checkpoint": (checkpoint, "describe_files", True),
    "between checkpoint and publish": (store.Store, "_publish", True),
    "half-written version": (publish, "describe_files", True),
    "between manifest and training_step": (store.Store, "_publish", False),
}


def arm(seam: str, call: int) -> None:
    """The call-th call of the seam's function ends this process, before or after it ran."""
    owner, name, is_before = SEAMS[seam]
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def armed(*args: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == call and is_before:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **named)
        if calls == call:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, armed)


def train(
    servers: str,
    topics: Topics,
    config: TrainerConfig,
    algorithm: AlgorithmConfig,
    alarms: AlarmsConfig,
    handles: TrainerHandles,
    seam: str,
    call: int,
    errors: Path,
) -> None:
    """What the process runs; 78 when fenced, as the command line has it."""
    sys.stderr = errors.open("w", buffering=1)
    if seam != "none":
        arm(seam, call)
    try:
        log, stop = KafkaLog(servers), threading.Event()
        loop.run(config, algorithm, alarms, handles, topics=topics, log=log, stop=stop, metrics=Metrics())
    except FatalError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(FATAL_EXIT_STATUS)
