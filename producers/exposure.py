"""Where a gateway listens, and who may reach it: whoever is on this machine, or, elsewhere, who has a token.

Apart from `asgi.py`, so that settings can be checked without loading a server.
"""

from __future__ import annotations

import ipaddress
import socket

import msgspec

from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.section import Port, Section

_BACKLOG = 1024


class ListenConfig(Section, frozen=True, kw_only=True):
    """What `[llm]` and `[otlp]` have in common."""

    host: str = "127.0.0.1"
    """Loopback unless you say otherwise."""
    port: Port | None = None
    """None: a free port, kept for the life of the run."""
    token: str | None = None
    """Required to listen elsewhere than on loopback; callers send it as a Bearer key."""

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            is_loopback = ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            is_loopback = self.host == "localhost"
        if not is_loopback and not self.token:
            raise ConfigurationError(
                f"host: expected 127.0.0.1, since there is no token, got {self.host!r}; set a token to listen elsewhere"
            )


class GatewayHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway of a run."""

    port: int
    run_hash: RunHash
    """8 hex; a trace id that begins with it names a rollout's attempt, which needs proof."""
    key: bytes
    """The run's secret, by which credentials are verified."""
    fd: int | None = None
    """A socket that listens there already, held by the supervisor; None: the gateway binds one."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.run_hash})"


def bind(host: str, port: int) -> socket.socket:
    """A socket that listens there; port 0 takes a free one. Raises UnavailableError when the address is taken."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        both = family == socket.AF_INET6 and socket.has_dualstack_ipv6()
        return socket.create_server((host, port), family=family, backlog=_BACKLOG, dualstack_ipv6=both)
    except OSError as error:
        raise UnavailableError(
            f"expected a free port at {host}:{port}, got {error}; end what holds it or set another"
        ) from error
