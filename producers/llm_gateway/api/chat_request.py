"""A model request as the inside of the gateway knows it, whichever API it came by.

In: made at the edge by the readers of this folder, one file an API. Out: all that sampling, splice, rendering, answer
and record look at; none of them sees an API's JSON. Invariant: what has a field is typed and within its bounds; what
has none is kept in `extra` under the name it came by, for the engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import ToolCall


class TextPart(msgspec.Struct, frozen=True, tag="text"):
    """A piece of text."""

    text: str


class OtherPart(msgspec.Struct, frozen=True, tag="other"):
    """A piece of another kind, which only the engine can read."""

    fields: dict[str, Any]
    """As a chat template's engine takes it, its `type` included."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """One message. Example: Message(role="tool", tool_call_id="call_0", content="42")."""

    role: str
    """`system`, `user`, `assistant`, `tool`, or whatever else the template knows."""
    content: str | tuple[TextPart | OtherPart, ...] | None = None
    """None: the message has none, as when an assistant only calls tools."""
    tool_calls: tuple[ToolCall, ...] = ()
    """What an assistant asked for, `id` as the agent repeats it (empty when it does not)."""
    tool_call_id: str | None = None
    """Which call a tool's result answers."""
    name: str | None = None
    reasoning: str | None = None
    extra: dict[str, Any] = {}


class Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    """JSON schema of its arguments."""
    is_strict: bool | None = None
    """The arguments must obey the schema: the engine then samples under a grammar."""
    extra: dict[str, Any] = {}


class ToolUse(StrEnum):
    """What the model may do with its tools."""

    AUTO = "auto"
    """Call them or not."""
    NONE = "none"
    """Not call them."""
    REQUIRED = "required"
    """Call at least one, by a grammar."""


class NamedTool(msgspec.Struct, frozen=True):
    """The model must call this tool, by a grammar."""

    name: str


class Wishes(msgspec.Struct, frozen=True, kw_only=True):
    """How the agent would like to be sampled; None: it does not say. Readers convert to it, which checks the bounds."""

    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Meta(ge=1)] | None = None
    seed: int | None = None
    stop: Annotated[tuple[Annotated[str, Meta(min_length=1)], ...], Meta(max_length=16)] = ()
    filters: dict[str, Any] = {}
    """What else changes the logits, by the engine's names; values that change nothing are left out."""
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    """How many alternatives a token's logprob comes with; None: no logprobs."""


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request for an answer."""

    messages: tuple[Message, ...]
    model: str | None = None
    tools: tuple[Tool, ...] | None = None
    tool_choice: ToolUse | NamedTool | None = None
    allows_parallel_calls: bool = True
    """Whether one answer may call several tools."""
    wishes: Wishes = Wishes()
    is_stream: bool = False
    num_choices: int = 1
    """How many answers it wants, each sampled for itself."""
    continues: CallId | None = None
    """The answer that the agent names as the one before; its conversation is part of `messages`."""
    num_led: int = 0
    """How many of the first messages a request that continues this one does not inherit: each says its own."""
    joins_users: bool = False
    """By its API users' messages in a row are one turn; where the template refuses them they are written as one."""
    is_kept: bool = False
    """Later requests may continue its answer by naming it."""
    sampling_asked: dict[str, Any] = {}
    """The sampling fields as received, for the record."""
    extra: dict[str, Any] = {}
    """All other fields as received; the render's allow-list names those that the engine gets."""
    tool_forms: Mapping[str, Any] = {}
    """What a tool is in its API, by the name that the policy knows, for that API's writer."""
    left_out: tuple[str, ...] = ()
    """Kinds of tools, and of their calls, that the API would run itself: the prompt has none of them."""


def check_recordable(request: ChatRequest) -> None:
    """Raises RequestError for a number that the log's wire cannot hold; in messages there may be any, as text."""
    try:
        msgspec.msgpack.encode((request.wishes, request.sampling_asked))
    except OverflowError:
        raise RequestError("expected sampling fields with numbers of at most 64 bits, got a larger one") from None
