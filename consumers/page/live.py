"""Live views: snapshots of a view's HTML as server-sent events.

In: the board, a view, the id of the last event that a browser has seen. Out: events whose id is a hash of what they
show, so that who comes back (or comes to a page that was started again) gets what is new and nothing twice.
Invariants: at most one snapshot a second; a client that reads slowly is sent the newest next, since none is made
before the last was taken; a snapshot is made once for all who look at the same; a bounded number of clients. Failure: a
view that cannot be made is shown as its error.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import NamedTuple

from tracegrad.schemas.bounded import BoundedMap

from .board import Board

__all__ = ["LiveViews", "Snapshot", "event"]

_ALIVE_S = 15.0
"""Without a word for so long, a client that has gone is not noticed."""
_KEPT = 32


class Snapshot(NamedTuple):
    """A view as it stood at a revision of the board."""

    revision: int
    id: str
    html: str


class LiveViews:
    """The snapshots of one page. Of one event loop."""

    def __init__(
        self,
        board: Board,
        draw: Callable[[str], str],
        stop: threading.Event,
        *,
        max_clients: int = 64,
        every_s: float = 1.0,
    ) -> None:
        """`draw` makes a view's HTML by the path and query that ask for it, and blocks; a snapshot each `every_s`."""
        self._board, self._draw, self._stop = board, draw, stop
        self._max_clients, self._every_s = max_clients, every_s
        self._num_clients = 0
        self._making: dict[str, asyncio.Lock] = {}
        self._known: BoundedMap[str, Snapshot] = BoundedMap(_KEPT, lambda of, _: self._making.pop(of, None))

    @property
    def has_room(self) -> bool:
        """Whether another client may listen."""
        return self._num_clients < self._max_clients

    async def snapshot(self, of: str) -> Snapshot:
        """The view as it stands now."""
        lock = self._making.setdefault(of, asyncio.Lock())
        async with lock:
            revision = self._board.revision
            known = self._known.get(of)
            if known is None or known.revision != revision:
                try:
                    html = await asyncio.to_thread(self._draw, of)
                except BaseException:
                    self._making.pop(of, None)
                    raise
                known = Snapshot(revision, hashlib.sha256(html.encode()).hexdigest()[:16], html)
                self._known[of] = known
            return known

    async def events(self, of: str, last_id: str) -> AsyncGenerator[bytes, None]:
        """Until the page ends; the client closes it by leaving."""
        self._num_clients += 1
        try:
            seen, quiet_s = -1, 0.0
            yield b"retry: 2000\n\n"
            while not self._stop.is_set():
                self._board.note_look()
                if self._board.revision != seen:
                    now = await self.snapshot(of)
                    seen = now.revision
                    if now.id != last_id:
                        last_id, quiet_s = now.id, 0.0
                        yield event(now)
                quiet_s += self._every_s
                if quiet_s > _ALIVE_S:
                    quiet_s = 0.0
                    yield b": alive\n\n"
                await asyncio.sleep(self._every_s)
        finally:
            self._num_clients -= 1


def event(snapshot: Snapshot) -> bytes:
    """On the wire."""
    lines = "".join(f"data: {line}\n" for line in snapshot.html.splitlines())
    return f"id: {snapshot.id}\nevent: view\n{lines}\n".encode()
