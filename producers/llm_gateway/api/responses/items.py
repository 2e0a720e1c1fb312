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

__all__ = ["messages_of"]


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


class _FunctionOutput(msgspec.Struct, tag="function_call_output"):
    call_id: str
    output: str | list[_InputText | _OutputText | _PlainText | _Image]


class _Thought(msgspec.Struct):
    text: str


class _Reasoning(msgspec.Struct, tag="reasoning"):
    content: list[_Thought] | None = None


class _Reference(msgspec.Struct, tag="item_reference"):
    id: str


class _Input(msgspec.Struct):
    input: list[_Message | _FunctionCall | _FunctionOutput | _Reasoning | _Reference]


_Item = _Message | _FunctionCall | _FunctionOutput | _Reasoning


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
        return isinstance(item, _FunctionCall)

    def add(self, item: _Item) -> None:
        """Puts an item at its end."""
        match item:
            case _Reasoning():
                self._thoughts += [thought.text for thought in item.content or ()]
            case _Message():
                self._said = _text(item.content)
            case _FunctionCall():
                check_arguments(item.arguments)
                self._calls.append(ToolCall(id=item.call_id, name=item.name, arguments=item.arguments))

    def message(self) -> Message:
        """The whole."""
        return assistant_turn([] if self._said is None else [self._said], self._thoughts, self._calls)


def messages_of(items: Sequence[Any], recall: Recall) -> Iterator[Message]:
    """The messages that the items are."""
    turn: _Turn | None = None
    for read in read_as({"input": list(map(_typed, items))}, _Input).input:
        item = _recalled(read, recall) if isinstance(read, _Reference) else read
        if turn is not None and not turn.takes(item):
            yield turn.message()
            turn = None
        match item:
            case _Message() if item.role != "assistant":
                role = "system" if item.role == "developer" else item.role
                yield Message(role=role, content=_content(item.content))
            case _FunctionOutput():
                yield Message(role="tool", tool_call_id=item.call_id, content=_content(item.output))
            case _:
                turn = turn or _Turn()
                turn.add(item)
    if turn is not None:
        yield turn.message()


def _typed(item: Any) -> Any:
    """Messages and references may come without their type."""
    if not isinstance(item, dict) or item.get("type") is not None:
        return item
    return {**item, "type": "item_reference" if "role" not in item and "id" in item else "message"}


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
