"""Input items of OpenAI Responses become messages. Pure.

In: items as they came, and what the episode remembers, for references to items of earlier answers. Out: messages, the
same as the conversation would have by chat completions: thoughts, a message and the function calls after it are one
assistant turn. A `developer` is a `system`: chat templates know no other. Failure: RequestError that names the field.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import ToolCall

from ..chat_request import Message, OtherPart, TextPart
from ..events import Recall
from ..reading import assistant_turn, check_arguments, content_of, image_part, read_as
from .item_ids import origin_of
from .tools import INPUT, SERVED_ITEMS, ReadTool, arguments_of, flat_name, read_tools


class _InputText(msgspec.Struct, tag="input_text"):
    text: str


class _OutputText(msgspec.Struct, tag="output_text"):
    text: str


class _PlainText(msgspec.Struct, tag="text"):
    text: str


class _Refusal(msgspec.Struct, tag="refusal"):
    refusal: str


class _Image(msgspec.Struct, tag="input_image"):
    image_url: str | None = None


_Part = _InputText | _OutputText | _PlainText | _Refusal | _Image


class _Message(msgspec.Struct, tag="message"):
    role: Literal["user", "assistant", "system", "developer"]
    content: str | list[_InputText | _OutputText | _PlainText | _Refusal | _Image]


class _FunctionCall(msgspec.Struct, tag="function_call"):
    call_id: str
    name: str
    arguments: str
    namespace: str | None = None


class _CustomCall(msgspec.Struct, tag="custom_tool_call"):
    call_id: str
    name: str
    input: str
    namespace: str | None = None


class _SearchCall(msgspec.Struct, tag="tool_search_call"):
    arguments: Any = None
    call_id: str | None = None


_Output = str | list[_InputText | _OutputText | _PlainText | _Image]


class _FunctionOutput(msgspec.Struct, tag="function_call_output"):
    call_id: str
    output: _Output


class _CustomOutput(msgspec.Struct, tag="custom_tool_call_output"):
    call_id: str
    output: _Output


class _SearchOutput(msgspec.Struct, tag="tool_search_output"):
    tools: list[dict[str, Any]]
    call_id: str | None = None


class _ServerTool(msgspec.Struct, tag="web_search_call"):
    """Stands for all that OpenAI runs itself."""


class _Thought(msgspec.Struct):
    text: str


class _Reasoning(msgspec.Struct, tag="reasoning"):
    content: list[_Thought] | None = None


class _Reference(msgspec.Struct, tag="item_reference"):
    id: str


_Call = _FunctionCall | _CustomCall | _SearchCall
_Result = _FunctionOutput | _CustomOutput | _SearchOutput
_Item = _Message | _Call | _Result | _Reasoning


class _Input(msgspec.Struct):
    input: list[_Item | _Reference | _ServerTool]


class _Turn:
    """An assistant's turn as its items come."""

    def __init__(self) -> None:
        self._thoughts: list[str] = []
        self._said: str | None = None
        self._calls: list[ToolCall] = []

    def takes(self, item: _Item) -> bool:
        """Whether an item may belong to it: an answer thinks, then speaks, then calls."""
        match item:
            case _Reasoning():
                return self._said is None and not self._calls
            case _Message():
                return item.role == "assistant" and self._said is None and not self._calls
        return isinstance(item, _Call)

    def add(self, item: _Item) -> None:
        """Puts an item at its end."""
        match item:
            case _Reasoning():
                self._thoughts += [thought.text for thought in item.content or ()]
            case _Message():
                self._said = _text(item.content)
            case _FunctionCall() | _CustomCall() | _SearchCall():
                self._calls.append(_call(item))

    def message(self) -> Message:
        """The whole."""
        return assistant_turn([] if self._said is None else [self._said], self._thoughts, self._calls)


def messages_of(items: Sequence[Any], recall: Recall) -> Iterator[Message]:
    """The messages that the items are."""
    turn: _Turn | None = None
    for read in read_as({"input": list(map(_typed, items))}, _Input).input:
        if isinstance(read, _ServerTool):
            continue
        item = _recalled(read, recall) if isinstance(read, _Reference) else read
        if turn is not None and not turn.takes(item):
            yield turn.message()
            turn = None
        match item:
            case _Message() if item.role != "assistant":
                role = "system" if item.role == "developer" else item.role
                yield Message(role=role, content=_content(item.content))
            case _FunctionOutput() | _CustomOutput():
                yield Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))
            case _SearchOutput():
                found = msgspec.json.encode(item.tools).decode()
                yield Message(role="tool", tool_call_id=item.call_id, content=found)
            case _:
                turn = turn or _Turn()
                turn.add(item)
    if turn is not None:
        yield turn.message()


def _typed(item: Any) -> Any:
    """Messages and references may come without their type."""
    if not isinstance(item, dict):
        return item
    kind = item.get("type")
    if kind in ("compaction", "context_compaction", "compaction_summary", "compaction_trigger"):
        raise RequestError(
            f"input: expected items that can be read here, got {kind!r}, which OpenAI alone reads and writes; send the "
            "conversation itself, or a summary as a message",
            param="input",
        )
    if kind is not None:
        return {"type": "web_search_call"} if isinstance(kind, str) and kind in SERVED_ITEMS else item
    return {**item, "type": "item_reference" if "role" not in item and "id" in item else "message"}


def served_items(items: Sequence[Any]) -> list[str]:
    """The kinds of items that are left out: what OpenAI ran itself."""
    kinds = [item.get("type") for item in items if isinstance(item, dict)]
    return [kind for kind in kinds if isinstance(kind, str) and kind in SERVED_ITEMS]


def loaded_tools(items: Sequence[Any]) -> list[ReadTool]:
    """The tools that searches of the conversation found: the policy reads of them in the result, and may call them."""
    outputs = [item for item in items if isinstance(item, dict) and item.get("type") == "tool_search_output"]
    found = [tools for output in outputs if isinstance(tools := output.get("tools"), list)]
    return [tool for tools in found for tool in read_tools(tools)[0]]


def _call(item: _Call) -> ToolCall:
    match item:
        case _FunctionCall():
            check_arguments(item.arguments)
            name, arguments = flat_name(item.name, item.namespace), item.arguments
        case _CustomCall():
            name, arguments = flat_name(item.name, item.namespace), arguments_of({INPUT: item.input})
        case _SearchCall():
            name, arguments = "tool_search", arguments_of(item.arguments or {})
    return ToolCall(id=item.call_id or "", name=name, arguments=arguments)


def _recalled(reference: _Reference, recall: Recall) -> _Item:
    """The item of an earlier answer that a reference names."""
    origin = origin_of(reference.id)
    conversation = recall(origin[0]) if origin else None
    if origin is not None and conversation is not None:
        answer, piece = conversation[-1], origin[1]
        if isinstance(piece, int) and piece < len(answer.tool_calls):
            call = answer.tool_calls[piece]
            return _FunctionCall(call_id=call.id, name=call.name, arguments=call.arguments)
        if piece == "reasoning":
            return _Reasoning(content=[_Thought(answer.reasoning or "")])
        if piece == "message":
            return _Message(role="assistant", content=_text(answer.content or ""))
    raise RequestError(
        f"Item with id {reference.id[:80]!r} not found: expected an item of an answer of this episode that was stored; "
        "send the item itself",
        status=404,
        param="input",
    )


def _text(content: Any) -> str:
    """All texts of an assistant's message; what else it holds cannot be its own."""
    if isinstance(content, str):
        return content
    if any(isinstance(part, _Image) for part in content):
        raise RequestError("input: expected texts in an assistant's message, got an image", param="input")
    return "".join(part.refusal if isinstance(part, _Refusal) else part.text for part in content)


def _content(content: str | Sequence[_Part]) -> str | tuple[TextPart | OtherPart, ...]:
    return content if isinstance(content, str) else content_of([*map(_part, content)])


def _part(part: _Part) -> TextPart | OtherPart:
    if not isinstance(part, _Image):
        return TextPart(part.refusal if isinstance(part, _Refusal) else part.text)
    if part.image_url is None:
        raise RequestError(
            "input: expected input_image with an image_url, got another; no files are kept", param="input"
        )
    return image_part(part.image_url)
