"""A trainer for a process of its own, which kills itself with SIGKILL at a named seam or in any of its own functions.

In: bootstrap servers, topics, its configuration, the seam or the function (`none` trains on) and at which call of it.
Out: what the trainer writes, and a file with what it said on stderr.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, FatalError
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.topics import Topics
from tracegrad.trainer import loop, optimiser
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.run import run
from tracegrad.trainer.source import LiveSource
from tracegrad.trainer.store import checkpoint, publish, store

SEAMS: dict[str, tuple[Any, str, bool]] = {
    "before the step": (loop.Trainer, "_learn", True),
    "between updates": (SingleLearner, "_update", True),
    "inside an update": (optimiser.Optimiser, "step", False),
    "after the step": (loop.Trainer, "_learn", False),
    "half-written checkpoint": (checkpoint, "write_tensors", False),
    "between checkpoint and publish": (publish.Versions, "write", True),
    "half-written version": (publish.Publisher, "_copy_base", False),
    "between manifest and training_step": (publish.Versions, "announce", False),
    "before a rollback is asked for": (store.Rollbacks, "ask_where_worse", True),
    "before a rollback": (store.Rollbacks, "_roll_back", True),
    "after a rollback": (store.Rollbacks, "_roll_back", False),
    "before groups are given back": (LiveSource, "_give_back", True),
    "after groups were given back": (LiveSource, "_give_back", False),
}
"""Whose function, its name, and whether death comes before it or after."""

_TRAINER = str(Path(loop.__file__).parent)


def function_of(frame: FrameType) -> str:
    """`/batch/batches.py:OpenBatch.add_record`; "" where it is no function of the trainer's."""
    code = frame.f_code
    return f"{code.co_filename[len(_TRAINER) :]}:{code.co_qualname}" if code.co_filename.startswith(_TRAINER) else ""


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


def arm_function(function: str, call: int) -> None:
    """The call-th call of a function of the trainer's own ends this process, before it runs."""
    calls = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        if event == "call" and function_of(frame) == function:
            calls += 1
            if calls == call:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


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
    overlaps: bool | None,
) -> None:
    """What the process runs; 78 when fenced, as the command line has it."""
    sys.stderr = errors.open("w", buffering=1)
    if seam != "none":
        (arm if seam in SEAMS else arm_function)(seam, call)
    try:
        log, stop = KafkaLog(servers), threading.Event()
        run(config, algorithm, alarms, handles, topics=topics, log=log, stop=stop, metrics=Metrics(), overlaps=overlaps)
    except FatalError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(FATAL_EXIT_STATUS)
