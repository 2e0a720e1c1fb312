"""Whether a program that we start listens, and what it says it has done.

In: the URL of its health, or of an engine. Out: True once it answers 200; vLLM's count of requests served. Invariant:
one question, bounded in time. Failure: none; an address that nobody listens on does not answer.
"""

from __future__ import annotations

import re
import urllib.error
import urllib.request

__all__ = ["answers", "num_served"]

_TIMEOUT_S = 1.0
_SERVED = re.compile(r"^vllm:request_success_total\{[^\n]*\} ([0-9.e+]+)$", re.MULTILINE)


def answers(url: str, timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether the URL answers 200 now. Blocks for as long as `timeout_s`."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def num_served(engine_url: str, timeout_s: float = _TIMEOUT_S) -> int | None:
    """Requests that an engine has served since its start; None: it does not answer now. Blocks for `timeout_s`."""
    try:
        with urllib.request.urlopen(f"{engine_url}/metrics", timeout=timeout_s) as response:
            text = response.read().decode(errors="replace")
    except (urllib.error.URLError, OSError, ValueError):
        return None
    return int(sum(float(count) for count in _SERVED.findall(text)))
