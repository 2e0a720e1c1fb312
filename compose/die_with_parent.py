"""Ties a child's life to its parent's: a launcher that asks the kernel to kill it when the parent dies, then execs.

In: a command. Out: the same process, now running that command (the pid that Popen told stays right). Invariant:
no orphan, even when the parent is SIGKILLed; if the parent died before the launcher could ask, the launcher ends
instead. The kernel watches the *thread* that started the child, so start children from a thread that lives as
long as the process (the main one). Linux only; elsewhere the command runs unguarded. Imports nothing of ours: it
is run by path, with a bare interpreter (about 20 ms).
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1
_EXIT_STATUS = 79


def guarded(command: Sequence[str]) -> list[str]:
    """The command line that runs `command` and sends it SIGKILL when the calling process dies."""
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), str(os.getpid()), *command]


def _main(arguments: Sequence[str]) -> None:
    parent, command = int(arguments[0]), list(arguments[1:])
    if sys.platform == "linux":
        if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
            sys.exit(f"die_with_parent: prctl failed with errno {ctypes.get_errno()}")
        if os.getppid() != parent:
            sys.exit(_EXIT_STATUS)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.exit(f"die_with_parent: cannot run {command[0]}: {error.strerror}")


if __name__ == "__main__":
    _main(sys.argv[1:])
