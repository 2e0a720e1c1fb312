"""Which captured conversation a call is in: the one that it names, else the one that it continues, else its own.

In: the judged caller, its request, what was answered to captured calls before. Out: the caller under its conversation's
key, the session, the end that is thereby taken. A request that names nothing continues a conversation by all words up
to its last answer, or by the ids of tool calls, which the gateway drew: those say it also where tools or instructions
have changed (a handoff, a call that reflects on a tool's result). Invariant: only what the same client was answered is
continued; ids of two conversations continue neither, and a trace that has a conversation of its own keeps it. One event
loop; not thread-safe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.ids import key_in
from tracegrad.schemas.metrics import CALLS_JOINED, Metrics

from ..api.chat_request import ChatRequest
from ..identity import Caller
from ..render.splice import last_said, splice_context
from ..session import CapturedSession
from ..sessions import Sessions
from .conversation_ends import ConversationDigest, ConversationEnd, ConversationEnds

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
    """The traces of the captured calls of one gateway: which conversations in them are within another.

    Frameworks draw an id for each run of an agent and put it into baggage (pydantic-ai), so that the calls of one trace
    bear several; a trace of two keys tells which spans are whose no more. A conversation is within another only if it
    begins in a trace whose first conversation waits for a tool; two that follow each other in one trace stay apart.
    """

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


class CapturedConversations:
    """Those of one gateway."""

    def __init__(self, sessions: Sessions, ends: ConversationEnds, metrics: Metrics) -> None:
        self._sessions = sessions
        self._ends = ends
        self._metrics = metrics
        self.nesting = Nesting()

    def find(
        self, caller: Caller, request: ChatRequest, *, is_said: bool
    ) -> tuple[Caller, CapturedSession, list[ConversationEnd]]:
        """The session of a captured call.

        Args:
            is_said: the header names its conversation, which is the program's own word; baggage may be a framework's,
                of one run of one agent.
        """
        sessions = self._sessions
        if request.continues is not None and not is_named(caller):
            # The answer's id says more than the trace, of which a client may begin one for each request.
            caller = msgspec.structs.replace(caller, conversation_key=key_in(request.continues))
        if caller.rollout_id is None and caller.trace_id is not None and not is_said:
            key = self.nesting.key_of(caller.trace_id, caller.key)
            if key != caller.key:
                caller = msgspec.structs.replace(caller, conversation_key=None if key == caller.trace_id else key)
        if caller.conversation_key or caller.rollout_id:
            return caller, sessions.captured(caller.key), []
        said = last_said(splice_context(request), request.messages)
        end = self._ends.take_end(ConversationDigest(caller.scope, *said)) if said else None
        joined = end.key if end else self._key_of_tools(caller, request)
        if joined is not None and (caller.trace_id is None or sessions.known(caller.key) is None):
            # Also in a trace that is new here: many a client begins one for each request.
            self._metrics.add(CALLS_JOINED)
            caller = msgspec.structs.replace(caller, conversation_key=joined)
        elif caller.trace_id is None:
            caller = caller.in_trace_of_its_own()
        session = sessions.captured(caller.key)
        session.is_unnamed = True
        return caller, session, [] if end is None else [end]

    def _key_of_tools(self, caller: Caller, request: ChatRequest) -> str | None:
        """Of the one conversation in which this client was answered by tool calls that the request repeats."""
        repeated = {call.id for message in request.messages for call in message.tool_calls}
        repeated |= {message.tool_call_id for message in request.messages if message.tool_call_id}
        keys = {
            key
            for id_ in repeated
            if (key := key_in(id_)) and (known := self._sessions.known(key))
            if known.tool_calls.get(id_) == caller.scope
        }
        return keys.pop() if len(keys) == 1 else None

    def answered(
        self, session: CapturedSession, caller: Caller, request: ChatRequest, asked_for: Sequence[str]
    ) -> None:
        """A call was answered by these tool calls."""
        session.tool_calls.update(dict.fromkeys(asked_for, caller.scope))
        if caller.trace_id is not None and caller.rollout_id is None:
            results = (message.tool_call_id for message in request.messages if message.tool_call_id)
            self.nesting.answered(caller.trace_id, results, asked_for)


def is_named(caller: Caller) -> bool:
    """Whether a captured agent says which conversation it means."""
    return caller.rollout_id is not None or caller.conversation_key is not None
