"""Which captured conversation a trace is in, so that an agent that works for a tool is in that of its caller.

In: the trace and the conversation that each captured call names, the tools that its answer asks for and that its
messages answer. Out: the key under which the call is. Frameworks draw an id for each run of an agent and put it into
baggage (pydantic-ai), so that the calls of one trace bear several; a trace of two keys tells which spans are whose no
more. Invariant: a conversation is within another only if it begins in a trace whose first conversation waits for a
tool; two that follow each other in one trace stay apart. Bounded: the least recently used trace is forgotten. One
event loop; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable

from tracegrad.schemas.bounded import BoundedMap

__all__ = ["Nesting"]

_MAX_TRACES = 2_000
_MAX_OF_ONE = 256
"""Conversations, and tools waited for, of one trace; what is beyond stands alone."""


class _Trace:
    def __init__(self, key: str) -> None:
        self.key = key
        """Of the conversation that began first."""
        self.inner: dict[str, str] = {}
        """Conversation -> what it is in: itself, or the first."""
        self.waits_for: dict[str, None] = {}
        """Tool calls of the answers that nothing has answered yet."""


class Nesting:
    """The traces of the captured calls of one gateway."""

    def __init__(self, max_traces: int = _MAX_TRACES) -> None:
        self._traces: BoundedMap[str, _Trace] = BoundedMap(max_traces)

    def key_of(self, trace: str, key: str) -> str:
        """Under which key a call is that names these."""
        known = self._traces.renew(trace, _Trace(key))
        if key != known.key and key not in known.inner and len(known.inner) < _MAX_OF_ONE:
            known.inner[key] = known.key if known.waits_for else key
        return known.inner.get(key, key)

    def known_key(self, trace: str, key: str) -> str:
        """As `key_of`, of calls that were; nothing is noted."""
        known = self._traces.get(trace)
        return key if known is None else known.inner.get(key, key)

    def answered(self, trace: str, results: Iterable[str], asked: Iterable[str]) -> None:
        """A call of the trace bore the results of these tool calls, and its answer asks for those."""
        known = self._traces.get(trace)
        if known is None:
            return
        for call in results:
            known.waits_for.pop(call, None)
        for call in asked:
            if len(known.waits_for) < _MAX_OF_ONE:
                known.waits_for[call] = None
