"""Dies by SIGKILL at a chosen place of a streams worker, once per file: the worst moment, for tests of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path


def kill_once(once: Path) -> Callable[[], None]:
    """A hook that does not return the first time; the file remembers it for the processes after this one."""

    def kill() -> None:
        if not once.exists():
            once.parent.mkdir(parents=True, exist_ok=True)
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    return kill
