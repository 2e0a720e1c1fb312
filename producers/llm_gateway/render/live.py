"""Text of an answer that is still being sampled, on its way from its call to its client.

In: ids as the engine samples them. Out: events, up to the last text that is sure to stand in the whole answer: a
character of which bytes are missing, and what may become a stop string or a tool call, are held back.
Invariant: all that was said is a beginning of the answer's content as it is parsed and recorded; nothing is taken back,
so that no other try follows the first word. Memory: one answer's text; whoever is slow to take it finds it joined.
One event loop; not thread-safe.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable

from ..api.events import Event, Started, Text

Step = Callable[[int], str | None]
"""The text of one more id; None while bytes of a character are missing."""


class LiveText:
    """Cuts the text of one answer where the whole may end or turn into something else."""

    def __init__(self, decoder: Callable[[], Step], marks: Iterable[str]) -> None:
        """`marks` end the text wherever they appear: stop strings, the beginning of a tool call."""
        self._decoder = decoder
        self._marks = tuple(marks)
        self.restart()

    def restart(self) -> None:
        """Forgets what was added."""
        self._step = self._decoder()
        self._held = ""
        self._is_over = False

    def add_ids(self, ids: Iterable[int]) -> str:
        """What can be said since the last time."""
        text = self._held + "".join(piece for piece in map(self._step, ids) if piece)
        if self._is_over:
            return ""
        found = [place for mark in self._marks if (place := text.find(mark)) >= 0]
        self._is_over = bool(found)
        end = min(found) if found else len(text) - max((_begun(text, mark) for mark in self._marks), default=0)
        self._held = text[end:]
        return text[:end]


def _begun(text: str, mark: str) -> int:
    """How many of the text's last letters may be the first of the mark."""
    return next((n for n in range(min(len(mark) - 1, len(text)), 0, -1) if mark.startswith(text[-n:])), 0)


class LiveAnswer:
    """Where a call leaves what can be said, and the sender finds it."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        """Something was said; an event of threads, for that is what ends `retry`."""
        self.is_left = False
        """The client has gone before it had the answer."""
        self._started: Started | None = None
        self._pieces: list[str] = []
        self._num_taken = 0
        self._has_more = asyncio.Event()

    @property
    def said(self) -> str:
        """All that was said."""
        return "".join(self._pieces)

    def say(self, started: Started, text: str) -> None:
        """The answer, which began so, goes on with this."""
        if text:
            if not self.begun.is_set():
                self._started = started
                self.begun.set()
            self._pieces.append(text)
            self._has_more.set()

    def wake(self, _: object = None) -> None:
        """There is news of another kind."""
        self._has_more.set()

    async def has_more(self, timeout_s: float | None) -> bool:
        """Waits for something to take, or `wake`; whether it came in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._has_more.wait()
        except TimeoutError:
            return False
        self._has_more.clear()
        return True

    def take_events(self) -> list[Event]:
        """What was said and not taken yet."""
        events: list[Event] = [] if self._started is None else [self._started]
        if len(self._pieces) > self._num_taken:
            events.append(Text("".join(self._pieces[self._num_taken :])))
        self._started, self._num_taken = None, len(self._pieces)
        return events


class LiveHearer:
    """What a generator tells of an answer that it samples: see Hearer."""

    def __init__(self, live: LiveAnswer, started: Started, text: LiveText) -> None:
        self.begun = live.begun
        self._live = live
        self._started = started
        self._text = text

    def restart(self) -> None:
        """See Hearer."""
        self._text.restart()

    def hear(self, ids: list[int]) -> None:
        """See Hearer."""
        self._live.say(self._started, self._text.add_ids(ids))
