"""The bytes that a gateway holds for all its clients, bounded, so that slow ones cannot keep them from the others.

In: how many bytes each request is about to hold. Out: leave to hold them. Invariant: never more than the limit in all;
while bodies are still coming, the client that has been silent longest gives way to one that speaks. Failure:
OverloadedError when no such client is left; RequestError for what could never fit. One event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from tracegrad.schemas.errors import OverloadedError, RequestError

_JSON_BYTES = {b"{": 150, b"[": 60, b'"': 30}
"""Of an object and what it is read into, a list, half a string."""


class Budget:
    """What all requests of one gateway may hold together."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._num_bytes = 0
        self._coming: dict[Share, asyncio.Timeout] = {}
        """Those whose body still comes, the longest silent first."""

    @contextmanager
    def share(self) -> Iterator[Share]:
        """One request's part, given back at the end."""
        share = Share(self)
        try:
            yield share
        finally:
            self._give_back(share)

    @contextmanager
    def coming(self, share: Share, patience: asyncio.Timeout) -> Iterator[None]:
        """While the body of a request comes; `patience` expires when it has to give way. Raises TimeoutError."""
        self._coming[share] = patience
        try:
            yield
            if share not in self._coming:
                raise TimeoutError
        finally:
            self._coming.pop(share, None)

    def charge(self, share: Share, num_bytes: int) -> None:
        """As Share.take."""
        if patience := self._coming.pop(share, None):
            self._coming[share] = patience
        while self._num_bytes + num_bytes > self.limit_bytes:
            silent = next(iter(self._coming), share)
            if silent is share:
                raise OverloadedError(f"more than {self.limit_bytes} bytes of requests are in flight; send again later")
            patience = self._coming.pop(silent)
            if not patience.expired():
                patience.reschedule(0)
            self._give_back(silent)
        self._num_bytes += num_bytes
        share.num_bytes += num_bytes

    def _give_back(self, share: Share) -> None:
        self._num_bytes -= share.num_bytes
        share.num_bytes = 0


class Share:
    """What one request holds."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.num_bytes = 0

    def charge(self, num_bytes: int) -> None:
        """Asks for more, before it is held. Raises OverloadedError."""
        self.budget.charge(self, num_bytes)

    def charge_computed(self, num_bytes: int, *, once: str) -> None:
        """Asks for what the body becomes. Raises OverloadedError, or RequestError (413) where it could never fit."""
        limit = self.budget.limit_bytes
        if num_bytes > limit:
            raise RequestError(
                f"expected a request of at most {limit} bytes once {once}, got {num_bytes}; send less at a time, or "
                "raise max_inflight_bytes",
                status=413,
            )
        self.charge(num_bytes)


def weigh_json(data: bytes) -> int:
    """What JSON takes once it is decoded, beyond some six bytes for each of its own: by the characters that begin
    something, within texts too."""
    return sum(data.count(character) * size for character, size in _JSON_BYTES.items())
