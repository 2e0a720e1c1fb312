"""A listening socket that outlives the processes that serve on it.

In: an address. Out: for the supervisor, a descriptor that each start of a gateway inherits; for the gateway, its
number. Invariant: who connects while the gateway is dead waits until its successor accepts, and is not refused.
Failure: none: an address that cannot be bound is left to the gateway, which says what holds it.
"""

from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping

from tracegrad.producers.exposure import bind
from tracegrad.schemas.errors import UnavailableError

__all__ = ["Listening", "inherited_fd"]

_VARIABLE = "TRACEGRAD_LISTENING_FD"


class Listening:
    """One address, held from the first start of a child to the end of the run."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._socket: socket.socket | None = None

    def inherited(self) -> tuple[dict[str, str], tuple[int, ...]]:
        """The variable and the descriptor of a child that starts now; both empty where the address cannot be had."""
        if self._socket is None:
            try:
                self._socket = bind(self._host, self._port)
            except UnavailableError:
                return {}, ()
        fd = self._socket.fileno()
        return {_VARIABLE: str(fd)}, (fd,)

    def close(self) -> None:
        """Who connects from now on is refused, once the child has closed it too."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def inherited_fd(environ: MutableMapping[str, str]) -> int | None:
    """What the supervisor holds for this process; None: it binds its address by itself. Taken out of `environ`."""
    fd = environ.pop(_VARIABLE, None)
    if fd is None:
        return None
    os.set_inheritable(int(fd), False)
    return int(fd)
