"""Kills what a runner left behind when the runner itself was killed.

Started by path with any Python; imports only the standard library. In: lines `+PGID` and `-PGID` on stdin.
At the end of input every process group that was added and not removed is killed. Invariant: it outlives its
parent, in a session of its own, and ends right after.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterable


def leftovers(lines: Iterable[str]) -> set[int]:
    """The process groups that were added and not removed."""
    groups: set[int] = set()
    for line in lines:
        with contextlib.suppress(ValueError):
            if line.startswith("+"):
                groups.add(int(line[1:]))
            elif line.startswith("-"):
                groups.discard(int(line[1:]))
    return groups


def main() -> None:
    """Entry point of the process."""
    for group in leftovers(sys.stdin):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
