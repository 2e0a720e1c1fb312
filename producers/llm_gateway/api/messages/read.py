"""Anthropic Messages: the body becomes a ChatRequest. Pure.

In: a decoded body. Out: ChatRequest, or RequestError with the field at fault. One assistant turn of blocks is one
message (its texts joined), each tool result is a message of its own, in the order of the blocks; so the same
conversation gives the same messages as by chat completions. What has no meaning here is left out (cache marks,
citations, redacted thinking, whether a tool failed, unless it says nothing else); what Anthropic's own servers would do
is left out and named.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import ToolCall

from ..chat_request import ChatRequest, Message, NamedTool, OtherPart, TextPart, Tool, ToolUse, Wishes
from ..reading import asked_of, assistant_turn, check_arguments, content_of, image_part, read_as, refuse, rest_of
from .served import PLACE, without_served

UNPARSED = "_unparsed_arguments"
"""A tool_use's `input` is an object: arguments that a model wrote otherwise go out and come back under this name."""
_ASKED = (
    "temperature", "top_p", "top_k", "max_tokens", "stop_sequences", "tool_choice", "output_config", "thinking",
)  # fmt: skip
_NAMES = {"stop": "stop_sequences"}
_REFUSED = ("mcp_servers", "container")
_BILLING = "x-anthropic-billing-header"
"""Begins a line of Claude Code's system prompt that differs with each request: no prompt would continue another."""


class _Text(msgspec.Struct, tag="text"):
    text: str


class _Source(msgspec.Struct):
    type: str
    media_type: str = "image/jpeg"
    data: str | None = None
    url: str | None = None


class _Image(msgspec.Struct, tag="image"):
    source: _Source


class _Document(msgspec.Struct, tag="document"):
    source: _Source


class _Thinking(msgspec.Struct, tag="thinking"):
    thinking: str


class _Redacted(msgspec.Struct, tag="redacted_thinking"):
    pass


class _ToolUse(msgspec.Struct, tag="tool_use"):
    id: str
    name: str
    input: dict[str, Any]


class _ToolReference(msgspec.Struct, tag="tool_reference"):
    tool_name: str


class _SearchResult(msgspec.Struct, tag="search_result"):
    source: str
    title: str
    content: list[_Text]


class _ServerToolUse(msgspec.Struct, tag="server_tool_use"):
    """Stands for all that Anthropic ran itself for an earlier answer."""


class _ToolResult(msgspec.Struct, tag="tool_result"):
    tool_use_id: str
    content: str | list[_Text | _Image | _Document | _ToolReference | _SearchResult] | None = None
    is_error: bool | None = None


_Part = _Text | _Image | _Document | _SearchResult


class _User(msgspec.Struct, tag_field="role", tag="user"):
    content: str | list[_Text | _Image | _Document | _SearchResult | _ToolResult]


class _Assistant(msgspec.Struct, tag_field="role", tag="assistant"):
    content: str | list[_Text | _Thinking | _Redacted | _ToolUse | _ServerToolUse]


class _System(msgspec.Struct, tag_field="role", tag="system"):
    content: str | list[_Text]


class _Tool(msgspec.Struct):
    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    strict: bool | None = None
    type: Literal["custom"] | None = None
    defer_loading: bool | None = None


class _Choice(msgspec.Struct):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class _Format(msgspec.Struct):
    type: Literal["json_schema"]
    schema: dict[str, Any]


class _Output(msgspec.Struct):
    format: _Format | None = None


class _Prompt(msgspec.Struct):
    """What a request to count and one to answer share."""

    messages: Annotated[list[_User | _Assistant | _System], Meta(min_length=1)]
    model: str | None = None
    system: str | list[_Text] | None = None
    tools: list[_Tool] | None = None
    tool_choice: _Choice | None = None
    output_config: _Output | None = None


class _Body(_Prompt, kw_only=True):
    max_tokens: int
    stop_sequences: list[str] | None = None
    stream: bool | None = None


def read(body: dict[str, Any]) -> ChatRequest:
    """A request for an answer."""
    body, left_out = without_served(body)
    asked = read_as(body, _Body)
    if isinstance(asked.messages[-1], _Assistant):
        raise RequestError(
            "messages: expected a user's message or tool results last, got the assistant's; the policy does not "
            "continue an answer that was begun for it",
            param="messages",
        )
    named = {name: body[name] for name in ("temperature", "top_p", "top_k") if body.get(name) is not None}
    named |= {"max_tokens": asked.max_tokens, "stop": asked.stop_sequences or []}
    wishes = read_as(named, Wishes, _NAMES)
    return _request(body, asked, left_out, wishes=wishes, is_stream=bool(asked.stream))


def read_to_count(body: dict[str, Any]) -> ChatRequest:
    """A request whose tokens are only counted; it may do without all that only sampling needs."""
    body, left_out = without_served(body)
    return _request(body, read_as(body, _Prompt), left_out)


def _request(body: dict[str, Any], asked: _Prompt, left_out: tuple[str, ...], **fields: Any) -> ChatRequest:
    refuse(body, _REFUSED, "the policy runs no servers' tools")
    system = _texts(asked.system)
    messages = [Message(role="system", content=system)] if system else []
    pairs = zip(asked.tools or (), body.get("tools") or (), strict=True)
    own = [tool for tool, given in pairs if given is not PLACE]
    for message in _turns(asked.messages):
        messages.extend(_messages(message, {tool.name: tool for tool in own}))
    # What a search of the client's is to find stands in its results, so that the prompt before them stays as it was.
    at_once = [tool for tool in own if not tool.defer_loading]
    tools = [*map(_tool, at_once if at_once and "tool_search_tool" not in left_out else own)]
    choice, output = asked.tool_choice, asked.output_config
    extra = rest_of(body, _Body)
    if output is not None and output.format is not None:
        schema = {"name": "answer", "schema": output.format.schema}
        extra["response_format"] = {"type": "json_schema", "json_schema": schema}
    return ChatRequest(
        messages=tuple(messages),
        joins_users=True,
        model=asked.model,
        tools=tuple(tools) or None,
        left_out=left_out,
        tool_choice=None if choice is None else _tool_choice(choice),
        allows_parallel_calls=choice is None or choice.disable_parallel_tool_use is not True,
        sampling_asked=asked_of(body, _ASKED),
        extra=extra,
        **fields,
    )


def _turns(messages: Sequence[_User | _Assistant | _System]) -> Iterator[_User | _Assistant | _System]:
    """The messages, with what one assistant says in several in a row as one turn."""
    for is_assistants, run in itertools.groupby(messages, lambda message: isinstance(message, _Assistant)):
        if is_assistants:
            yield _Assistant([block for message in run for block in _blocks(message.content)])
        else:
            yield from run


def _messages(message: _User | _Assistant | _System, tools: Mapping[str, _Tool]) -> Iterator[Message]:
    match message:
        case _Assistant():
            yield _assistant(_blocks(message.content))
        case _System():
            if content := _texts(message.content):
                yield Message(role="system", content=content)
        case _User(str(content)):
            yield Message(role="user", content=content)
        case _User():
            yield from _user([*message.content], tools)


def _user(blocks: list[_Part | _ToolResult], tools: Mapping[str, _Tool]) -> Iterator[Message]:
    said: list[_Part] = []
    for block in blocks:
        if not isinstance(block, _ToolResult):
            said.append(block)
            continue
        if said:
            yield Message(role="user", content=_content(said))
            said = []
        result = block.content or ("error" if block.is_error else "")
        yield Message(role="tool", tool_call_id=block.tool_use_id, content=_content(_shown(_blocks(result), tools)))
    if said or not blocks:
        yield Message(role="user", content=_content(said))


def _assistant(blocks: list[Any]) -> Message:
    return assistant_turn(
        texts=[block.text for block in blocks if isinstance(block, _Text)],
        thoughts=[block.thinking for block in blocks if isinstance(block, _Thinking)],
        calls=[_tool_call(block) for block in blocks if isinstance(block, _ToolUse)],
    )


def _tool_call(block: _ToolUse) -> ToolCall:
    unparsed = block.input.get(UNPARSED) if len(block.input) == 1 else None
    arguments = unparsed if isinstance(unparsed, str) else msgspec.json.encode(block.input).decode()
    check_arguments(arguments)
    return ToolCall(id=block.id, name=block.name, arguments=arguments)


def _texts(content: str | list[_Text] | None) -> str | tuple[TextPart | OtherPart, ...]:
    """A system prompt without the lines that are no prompt."""
    if isinstance(content, str):
        return "" if content.startswith(_BILLING) else content
    return _content([block for block in content or () if block.text and not block.text.startswith(_BILLING)])


def _blocks(content: str | Sequence[Any]) -> list[Any]:
    return [_Text(content)] if isinstance(content, str) else [*content]


def _shown(blocks: list[Any], tools: Mapping[str, _Tool]) -> list[Any]:
    """What a search found, with the tools that it names written out."""
    return [_declared(block.tool_name, tools) if isinstance(block, _ToolReference) else block for block in blocks]


def _declared(name: str, tools: Mapping[str, _Tool]) -> _Text:
    tool = tools.get(name)
    said = {} if tool is None else {"description": tool.description, "input_schema": tool.input_schema}
    return _Text(msgspec.json.encode({"name": name, **said}).decode() + "\n")


def _content(blocks: Sequence[Any]) -> str | tuple[TextPart | OtherPart, ...]:
    return content_of([*map(_part, blocks)])


def _part(block: _Part) -> TextPart | OtherPart:
    match block:
        case _Text():
            return TextPart(block.text)
        case _SearchResult():
            return TextPart("\n".join([block.title, block.source, *(text.text for text in block.content)]))
    source = block.source
    if isinstance(block, _Document):
        if source.type == "text" and source.data is not None:
            return TextPart(source.data)
        raise RequestError(
            f"messages: expected a document of source type text, got {source.type[:60]!r}; send its text",
            param="messages",
        )
    url = source.url if source.type == "url" else source.data and f"data:{source.media_type};base64,{source.data}"
    if source.type not in ("url", "base64") or url is None:
        raise RequestError(
            f"messages: expected an image of source type base64 or url, got {source.type[:60]!r}", param="messages"
        )
    return image_part(url)


def _tool(tool: _Tool) -> Tool:
    return Tool(name=tool.name, description=tool.description, parameters=tool.input_schema, is_strict=tool.strict)


def _tool_choice(choice: _Choice) -> ToolUse | NamedTool:
    if choice.type != "tool":
        return {"auto": ToolUse.AUTO, "any": ToolUse.REQUIRED, "none": ToolUse.NONE}[choice.type]
    if not choice.name:
        raise RequestError("tool_choice.name: expected the tool's name, got none", param="tool_choice")
    return NamedTool(choice.name)
