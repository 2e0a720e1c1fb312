"""How busy an engine is, for whoever waits for it: slots in use, slots in all, requests waiting, tokens a second.

In: vLLM's own `/metrics`, and once of each engine `/server_info`. Out: gauges of weight sync's Metrics, and with them
on process_status. Invariants: two seconds lie between two looks; an answer is bounded in bytes and in time; an engine
that does not answer, or not so, has no gauges, and is counted. Failure: none: nothing is decided by these figures.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import msgspec

from tracegrad.schemas.metrics import (
    ENGINE_LOOKS_FAILED,
    ENGINE_SLOTS,
    ENGINE_SLOTS_USED,
    ENGINE_TOKENS,
    ENGINE_WAITING,
    Metrics,
)

_EVERY_S = 2.0
_TIMEOUT = httpx.Timeout(1.0)
_MAX_BYTES = 4 * 1024 * 1024
_SERIES = re.compile(
    rb"^vllm:(num_requests_running|num_requests_waiting|generation_tokens_total)(?:\{[^\n]*\})? (\S+)$", re.MULTILINE
)
_GAUGES = (ENGINE_SLOTS, ENGINE_SLOTS_USED, ENGINE_WAITING, ENGINE_TOKENS)


class EngineLoad:
    """Of one engine. Blocks for a few seconds at most; not thread-safe."""

    def __init__(self, client: httpx.Client, metrics: Metrics, *, clock: Callable[[], float] = time.monotonic) -> None:
        """`client` has the engine's base URL and token; owned by the caller."""
        self._client = client
        self._metrics = metrics
        self._clock = clock
        self._looked_at = -_EVERY_S
        self._slots: int | None = None
        """Of one of the engine's schedulers; asked for again of an engine that was away."""
        self._tokens: float | None = None

    def look(self) -> None:
        """Sets the gauges anew, if it is time."""
        now = self._clock()
        elapsed_s = now - self._looked_at
        if elapsed_s < _EVERY_S:
            return
        self._looked_at = now
        try:
            found = self._read(self._fetch("/metrics"))
            if self._slots is None:
                told: Any = msgspec.json.decode(self._fetch("/server_info?config_format=json"))
                self._slots = int(told["vllm_config"]["scheduler_config"]["max_num_seqs"])
        except (httpx.HTTPError, ValueError, KeyError, TypeError):
            self._metrics.add(ENGINE_LOOKS_FAILED)
            self._slots = self._tokens = None
            for gauge in _GAUGES:
                self._metrics.clear(gauge)
            return
        running, waiting, tokens, num_schedulers = found
        self._metrics.set(ENGINE_SLOTS, self._slots * num_schedulers)
        self._metrics.set(ENGINE_SLOTS_USED, running)
        self._metrics.set(ENGINE_WAITING, waiting)
        # Fewer than before: it was started again.
        if self._tokens is not None and tokens >= self._tokens:
            self._metrics.set(ENGINE_TOKENS, (tokens - self._tokens) / elapsed_s)
        self._tokens = tokens

    def _read(self, text: bytes) -> tuple[float, float, float, int]:
        """Raises KeyError or ValueError for another program's text."""
        found: dict[bytes, list[float]] = {}
        for name, value in _SERIES.findall(text):
            found.setdefault(name, []).append(float(value))
        running = found[b"num_requests_running"]
        return sum(running), sum(found[b"num_requests_waiting"]), sum(found[b"generation_tokens_total"]), len(running)

    def _fetch(self, path: str) -> bytes:
        with self._client.stream("GET", path, timeout=_TIMEOUT) as response:
            response.raise_for_status()
            body = b""
            for part in response.iter_bytes():
                body += part
                if len(body) > _MAX_BYTES:
                    raise ValueError(f"expected at most {_MAX_BYTES} bytes of {path}, got more")
            return body
