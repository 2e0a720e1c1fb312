"""OpenAI Responses: the body becomes a ChatRequest. Pure.

In: a decoded body, and what the episode remembers, for `previous_response_id`. Out: ChatRequest, whose messages begin
with those of the earlier response, or RequestError with the field at fault. `instructions` lead, and no later request
inherits them. `extra` holds all fields but the input, as received: the response repeats them. Tools that OpenAI runs
are left out; state that only OpenAI has is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import CallId

from ..chat_request import ChatRequest, Message, NamedTool, ToolUse, Wishes
from ..events import Recall, forgotten
from ..reading import asked_of, read_as, refuse
from .item_ids import origin_of
from .items import loaded_tools, messages_of, served_items
from .tools import ReadTool, flat_name, read_tools

LOGPROBS = "message.output_text.logprobs"
"""What `include` names when the agent wants them."""
_ASKED = (
    "temperature", "top_p", "top_logprobs", "max_output_tokens", "tool_choice", "parallel_tool_calls", "text",
    "reasoning",
)  # fmt: skip
_NAMES = {"max_tokens": "max_output_tokens"}
_REFUSED = ("background", "conversation", "prompt")


class _Named(msgspec.Struct):
    type: Literal["function", "custom"]
    name: str
    namespace: str | None = None


class _Schema(msgspec.Struct, tag="json_schema"):
    name: str
    schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None


class _Object(msgspec.Struct, tag="json_object"):
    pass


class _Text(msgspec.Struct, tag="text"):
    pass


class _TextConfig(msgspec.Struct):
    format: _Text | _Object | _Schema | None = None


class _Reasoning(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None


class _Body(msgspec.Struct):
    input: str | list[Any] | None = None
    instructions: str | None = None
    model: str | None = None
    previous_response_id: str | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: ToolUse | _Named | None = None
    parallel_tool_calls: bool | None = None
    max_output_tokens: Annotated[int, Meta(ge=1)] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_logprobs: int | None = None
    include: list[str] | None = None
    text: _TextConfig | None = None
    reasoning: _Reasoning | None = None
    store: bool | None = None
    stream: bool | None = None
    metadata: dict[str, str] | None = None
    user: str | None = None
    truncation: Literal["auto", "disabled"] | None = None


def read(body: dict[str, Any], recall: Recall = forgotten) -> ChatRequest:
    """A request for an answer."""
    refuse(body, _REFUSED, "send the whole input, or previous_response_id")
    read = read_as(body, _Body)
    continues, before = _before(read.previous_response_id, recall)
    items = [{"role": "user", "content": read.input}] if isinstance(read.input, str) else read.input or []
    led = [Message(role="system", content=read.instructions)] if read.instructions else []
    messages = (*led, *before, *messages_of(items, recall))
    if len(messages) == len(led):
        raise RequestError("input: expected a text or items, got nothing", param="input")
    tools, left_out = read_tools(read.tools or ())
    forms = {one.tool.name: one for one in (*loaded_tools(items), *tools)}
    return ChatRequest(
        messages=messages,
        num_led=len(led),
        continues=continues,
        is_kept=read.store is not False,
        model=read.model,
        tools=tuple(one.tool for one in tools) or None,
        tool_choice=_choice(read.tool_choice, tools),
        tool_forms=forms,
        left_out=(*left_out, *served_items(items)),
        allows_parallel_calls=read.parallel_tool_calls is not False,
        wishes=_wishes(read),
        is_stream=bool(read.stream),
        sampling_asked=asked_of(body, _ASKED),
        extra={name: value for name, value in body.items() if name != "input" and value is not None} | _engines(read),
    )


def _before(response: str | None, recall: Recall) -> tuple[CallId | None, tuple[Message, ...]]:
    """The earlier answer that is named, and its conversation without its instructions."""
    if response is None:
        return None, ()
    origin = origin_of(response)
    conversation = recall(origin[0]) if origin else None
    if origin is None or conversation is None:
        raise RequestError(
            f"Previous response with id {response[:80]!r} not found: expected one of this episode, stored and not yet "
            "forgotten; send the whole input",
            param="previous_response_id",
            code="previous_response_not_found",
        )
    return origin[0], conversation


def _wishes(read: _Body) -> Wishes:
    named = {"temperature": read.temperature, "top_p": read.top_p, "max_tokens": read.max_output_tokens}
    if read.top_logprobs or LOGPROBS in (read.include or ()):
        named["top_logprobs"] = read.top_logprobs or 0
    return read_as({name: value for name, value in named.items() if value is not None}, Wishes, _NAMES)


def _engines(read: _Body) -> dict[str, Any]:
    """What the engine's template and grammar read, in the words of chat completions."""
    fields: dict[str, Any] = {}
    if read.reasoning is not None and read.reasoning.effort is not None:
        fields["reasoning_effort"] = read.reasoning.effort
    match read.text.format if read.text else None:
        case _Object():
            fields["response_format"] = {"type": "json_object"}
        case _Schema() as schema:
            said = {name: value for name, value in msgspec.structs.asdict(schema).items() if value is not None}
            fields["response_format"] = {"type": "json_schema", "json_schema": said}
    return fields


def _choice(choice: ToolUse | _Named | None, tools: Sequence[ReadTool]) -> ToolUse | NamedTool | None:
    """A named tool under the name that the policy knows: of a namespace also where the request leaves that out."""
    if not isinstance(choice, _Named):
        return choice
    name = flat_name(choice.name, choice.namespace)
    if any(one.tool.name == name for one in tools):
        return NamedTool(name)
    alike = [one.tool.name for one in tools if one.name == choice.name]
    return NamedTool(alike[0] if len(alike) == 1 else name)
