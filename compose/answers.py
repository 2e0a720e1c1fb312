"""Whether a program that is being started listens yet.

In: the URL of its health. Out: True once it answers 200. Invariant: one question, bounded in time. Failure: none; an
address that nobody listens on does not answer.
"""

from __future__ import annotations

import urllib.error
import urllib.request

__all__ = ["answers"]

_TIMEOUT_S = 1.0


def answers(url: str, timeout_s: float = _TIMEOUT_S) -> bool:
    """Whether the URL answers 200 now. Blocks for as long as `timeout_s`."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False
