"""`python -m tests.compose.history.doomed_replay SEAM CALL ARGUMENTS`: a replay killed by SIGKILL, or after its broker.

A seam is a function that the replay calls: at its call of that number the process is killed before the call's work.
Each run has its name's hash, whenever it is made, so that two of one name can be compared.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from tracegrad.compose.cli import app
from tracegrad.compose.history import replay as replaying
from tracegrad.compose.history.exports import import_files as importing
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.run import run_dir
from tracegrad.consumers.history import replay as writing
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.ids import run_hash
from tracegrad.schemas.topics import Topic

BROKER = "broker, in the fold"
_CALLS_ON = 5
"""That it makes without its broker; it gives up by itself after a minute."""
SEAMS: dict[str, tuple[Any, str]] = {
    "import, before its window is acknowledged": (importing._Import, "_save"),
    "import, before its progress is written": (importing, "write_record"),
    "between import and fold": (replaying, "prepare_topics"),
    "fold": (Refold, "fold"),
    BROKER: (Refold, "fold"),
    "transitions": (writing._Written, "add"),
    "all is written": (writing._Written, "close"),
}
_BROKERS: list[LocalKafka] = []


def _doomed(call: Callable[..., Any], seam: str, number: int) -> Callable[..., Any]:
    num_calls = 0

    def killed(*args: Any, **kwargs: Any) -> Any:
        nonlocal num_calls
        num_calls += seam != "transitions" or args[1].topic is Topic.TRANSITIONS
        if num_calls == number and seam == BROKER:
            _BROKERS[-1].kill()
        elif num_calls == number + _CALLS_ON * (seam == BROKER):
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)

    return killed


def _start(broker: LocalKafka) -> None:
    _BROKERS.append(broker)
    _started(broker)


_started = LocalKafka.start


def main(seam: str, number: str, *arguments: str) -> int:
    """The replay's exit status."""
    setattr(run_dir, "run_hash", lambda name, created_at: run_hash(name, ""))  # noqa: B010
    importing._WINDOW_RECORDS = 20
    if seam:
        owner, name = SEAMS[seam]
        setattr(owner, name, _doomed(getattr(owner, name), seam, int(number)))
        setattr(LocalKafka, "start", _start)  # noqa: B010
    status: int = app(["replay", *arguments], standalone_mode=False)
    return status


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
