"""A trainer in a process of its own that kills itself with SIGKILL at a named seam.

argv: bootstrap servers, Topics as JSON, TrainerConfig and TrainerHandles as JSON, the seam (`none` trains on), at
which call of it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

import msgspec

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import FATAL_EXIT_STATUS, FatalError
from tracegrad.schemas.topics import Topics
from tracegrad.trainer import loop
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.store import checkpoint, publish

SEAMS: dict[str, tuple[Any, str, bool]] = {
    "before the step": (loop.Trainer, "_learn", True),
    "after the step": (loop.Trainer, "_learn", False),
    "half-written checkpoint": (checkpoint, "describe_files", True),
    "between checkpoint and publish": (loop.Trainer, "_publish", True),
    "half-written version": (publish, "describe_files", True),
    "between manifest and training_step": (loop.Trainer, "_publish", False),
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


def main() -> int:
    """78 when fenced, as the command line has it."""
    servers, topics, settings, seam, call = sys.argv[1:]
    if seam != "none":
        arm(seam, int(call))
    try:
        loop.run(
            *msgspec.json.decode(settings, type=tuple[TrainerConfig, TrainerHandles]),
            topics=msgspec.json.decode(topics, type=Topics),
            log=KafkaLog(servers),
            stop=threading.Event(),
        )
    except FatalError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return FATAL_EXIT_STATUS
    return 0


if __name__ == "__main__":
    sys.exit(main())
