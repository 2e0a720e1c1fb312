"""Keeps our own traffic out of a proxy: gateways and engines listen on this machine, where no proxy reaches them.

In: an environment. Out: the variables to put over it. Invariant: what the user excepted stays excepted. Failure: none.
"""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["without_proxy"]

_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")


def without_proxy(environ: Mapping[str, str]) -> dict[str, str]:
    """`no_proxy` with loopback added, in both spellings, since clients differ in the one they read; empty without a
    proxy."""
    if not any(name.lower() in _PROXIES and value for name, value in environ.items()):
        return {}
    given = ",".join(environ.get(name, "") for name in ("no_proxy", "NO_PROXY")).split(",")
    names = dict.fromkeys([*filter(None, map(str.strip, given)), *_LOOPBACK])
    # Everything is excepted; beside other names urllib takes it for a name.
    excepted = "*" if "*" in names else ",".join(names)
    return {"no_proxy": excepted, "NO_PROXY": excepted}
