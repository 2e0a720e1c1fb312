"""What becomes of a request, as a stream of events that each API's writer puts into its wire form.

In: made inside the gateway. Out: to the writers of this folder. Invariant: `Started` comes first and once, then
deltas, last `Finished` or `Failed`, once; texts of an answer are to be joined. They may come one by one while the
answer is sampled, or all at once when it is recorded; a writer cannot tell. Of several answers to one request each
stands between `ChoiceBegins` and `ChoiceEnds`, the last between `ChoiceBegins` and `Finished`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import msgspec

from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import ToolCall

from .chat_request import ChatRequest, Message

TOO_LONG = "context_length_exceeded"
"""The code of a problem whose prompt is longer than the context window: OpenAI's word, which its clients know."""
Recall = Callable[[CallId], tuple[Message, ...] | None]
"""The conversation up to an answer, the answer last, if the asking agent may go on with it; None: it is not kept."""


def forgotten(call_id: CallId) -> None:
    """A Recall that knows nothing."""


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """An answer begins."""

    call_id: CallId
    model: str
    """As the agent named it."""
    created_s: int
    prompt_tokens: int = 0


class Reasoning(msgspec.Struct, frozen=True):
    """A piece of what the model thought."""

    text: str


class Text(msgspec.Struct, frozen=True):
    """A piece of what it said."""

    text: str | None
    """None: nothing, there are only logprobs."""
    logprobs: Any = None
    """As the engine words them, when they were asked for."""


class ToolCalled(msgspec.Struct, frozen=True):
    """It called a tool."""

    call: ToolCall


class Finished(msgspec.Struct, frozen=True, kw_only=True):
    """The answer is complete."""

    reason: str
    """`stop`, `length` or `tool_calls`."""
    prompt_tokens: int
    sampled_tokens: int
    stop: str | None = None
    """The agent's stop string that ended it."""


class ChoiceBegins(msgspec.Struct, frozen=True):
    """Of several answers to one request: what follows is of the one with this index."""

    index: int


class ChoiceEnds(msgspec.Struct, frozen=True):
    """One that is not the last of them is complete."""

    reason: str


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """An error in no API's words."""

    status: int
    """HTTP's; from 500 on the agent is not to blame."""
    message: str
    param: str | None = None
    """The field at fault."""
    code: str | None = None
    """A short stable word."""


class Failed(msgspec.Struct, frozen=True):
    """No answer comes."""

    problem: Problem


Event = ChoiceBegins | ChoiceEnds | Started | Reasoning | Text | ToolCalled | Finished | Failed


class Writer(Protocol):
    """One answer's wire form; made for each request."""

    def whole(self, events: Iterable[Event]) -> bytes:
        """The body of an answer that is sent at once; the events hold no failure."""

    def chunks(self, event: Event) -> Iterator[bytes]:
        """The server-sent events for one event of a streamed answer."""


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """An API under which agents speak to the policy: one row of `app.APIS`."""

    path: str
    """Its route, such as `/v1/chat/completions`."""
    read: Callable[[dict[str, Any]], ChatRequest]
    """Raises RequestError."""
    write: Callable[[ChatRequest], Writer]
    read_on: Callable[[dict[str, Any], Recall], ChatRequest] | None = None
    """Instead of `read`, for an API whose requests may name answers instead of repeating them."""
    error: Callable[[Problem], bytes]
    """The body of an answer that is an error."""
