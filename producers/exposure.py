"""Who may reach a gateway: whoever is on this machine, or, elsewhere, who has a token.

Apart from `asgi.py`, so that settings can be checked without loading a server.
"""

from __future__ import annotations

import ipaddress

from tracegrad.schemas.errors import ConfigurationError

__all__ = ["check_exposure"]


def check_exposure(host: str, token: str | None, *, section: str) -> None:
    """Raises ConfigurationError when a service would be reachable from outside without a token.

    Args:
        host: where it listens.
        token: what it asks for; None or empty: nothing.
        section: of the settings, for the message.
    """
    try:
        is_loopback = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_loopback = host == "localhost"
    if not is_loopback and not token:
        raise ConfigurationError(
            f"[{section}] host: expected 127.0.0.1, since there is no token, got {host!r}; "
            f"set [{section}] token to listen elsewhere"
        )
