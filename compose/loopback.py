"""Addresses of this machine: free ports, sockets that outlive who serves on them, whether somebody answers there, no
proxy in between.

In: a port, an address, a URL, an environment. Out: an answer about it; for the supervisor a descriptor that each start
of a gateway inherits, for the gateway its number; the variables to put over the environment. Invariants: who connects
while a gateway is dead waits until its successor accepts, and is not refused; what the user excepted from a proxy stays
excepted; a question to a URL is bounded in time. Failure: an address that nobody listens on does not answer; one that
cannot be bound is left to the gateway, which says what holds it.
"""

from __future__ import annotations

import os
import random
import re
import socket
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping, MutableMapping
from pathlib import Path

from tracegrad.producers.exposure import bind
from tracegrad.schemas.errors import UnavailableError

LOOPBACK = "127.0.0.1"
_NAMES = (LOOPBACK, "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_FIRST_PORT = 20_000
_TIMEOUT_S = 1.0
_SERVED = re.compile(r"^vllm:request_success_total\{[^\n]*\} ([0-9.e+]+)$", re.MULTILINE)
_VARIABLE = "TRACEGRAD_LISTENING_FD"


def is_free(port: int) -> bool:
    """Whether a listener could bind this loopback port now."""
    with socket.socket() as probe:
        # As Java does: connections that linger after a kill do not hold the port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
        return True


def free_port(*, excluding: Collection[int] = ()) -> int:
    """A free port below the ephemeral range, where no outgoing connection takes it while its server is down."""
    for _ in range(1000):
        port = random.randrange(_FIRST_PORT, _ephemeral_begin())
        if port not in excluding and is_free(port):
            return port
    raise UnavailableError("expected a free loopback port, got 1000 taken ones")


def _ephemeral_begin() -> int:
    try:
        begin = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        begin = 32_768
    return begin if begin > _FIRST_PORT + 1000 else 60_000


def answers(url: str, timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether the URL answers 200 now. Blocks for as long as `timeout_s`."""
    return _text(url, timeout_s) is not None


def num_served(engine_url: str) -> int | None:
    """Requests that an engine has served since its start; None: it does not answer now. Blocks for a second."""
    text = _text(f"{engine_url}/metrics", _TIMEOUT_S)
    return None if text is None else int(sum(float(count) for count in _SERVED.findall(text)))


def _text(url: str, timeout_s: float) -> str | None:
    """What it answers with 200, else None."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return response.read().decode(errors="replace") if response.status == 200 else None
    except (urllib.error.URLError, OSError, ValueError):
        return None


class GatewaySocket:
    """The listening socket of one address, held from the first start of a gateway to the end of the run."""

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


def without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """`no_proxy` with loopback added, in both spellings, since clients differ in the one they read; empty without a
    proxy."""
    if not any(name.lower() in _PROXIES and value for name, value in environ.items()):
        return {}
    given = ",".join(environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    names = dict.fromkeys([*filter(None, map(str.strip, given)), *_NAMES])
    # Everything is excepted; beside other names urllib takes it for a name.
    excepted = "*" if "*" in names else ",".join(names)
    return {"no_proxy": excepted, "NO_PROXY": excepted}
