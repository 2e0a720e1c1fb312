"""Where a gateway listens, and who may reach it: whoever is on this machine, or, elsewhere, who has a token.

Apart from `asgi.py`, so that settings can be checked without loading a server.
"""

from __future__ import annotations

import ipaddress

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import Port, Section

__all__ = ["ListenConfig"]


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
