"""A command on a terminal of its own, as a person has it: keys are typed, Ctrl-C is one, what it shows is read."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Sequence

from tests.serving import Background, until
from tracegrad.compose.die_with_parent import guarded

CTRL_C = "\x03"
_CONTROLLED = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Else the terminal would send nobody a signal."""


class Terminal(Background):
    """As a context manager; the command ends with the block."""

    def __init__(self, command: Sequence[str]) -> None:
        super().__init__(self._read)
        self._keys, theirs = pty.openpty()
        self.text = ""
        self.process = subprocess.Popen(
            guarded([sys.executable, "-c", _CONTROLLED, *command]),
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
        )
        os.close(theirs)

    def __enter__(self) -> Terminal:
        super().__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        super().__exit__()
        os.close(self._keys)

    def type(self, keys: str) -> None:
        """As by a person."""
        os.write(self._keys, keys.encode())

    def shows(self, text: str, timeout_s: float = 120.0) -> None:
        """Waits for it."""
        until(lambda: text in self.text or self.process.poll() is not None, timeout_s, what=f"{text!r}")
        assert text in self.text, self.text

    def _read(self, stop: threading.Event) -> None:
        with contextlib.suppress(OSError):  # its end
            while part := os.read(self._keys, 4096):
                self.text += part.decode("utf-8", "replace")
