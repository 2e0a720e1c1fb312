"""What the readers of all APIs share: typed fields, refusals, an assistant's turn, contents. Pure.

In: pieces of a decoded body. Out: what a ChatRequest holds. Failure: RequestError (400) that says what was expected,
what was got and where.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import share_answer
from tracegrad.schemas.records.calls import ToolCall

from .chat_request import ChatRequest, Message, OtherPart, TextPart

T = TypeVar("T")
_ALIKE: Mapping[str, str] = {}
_OUTSIDE = re.compile(r"Invalid (?:enum )?value ('.*'|\S+)", re.DOTALL)
_OTHER_NUMBER = re.compile("got `(?:float|int)`")


def read_as(body: Any, type_: type[T], names: Mapping[str, str] = _ALIKE) -> T:
    """The body as a type of one API; numbers in each other's form (16.0, 0 for false) are taken, as vLLM does.

    Args:
        names: what this API calls fields of the type that it knows by another name.
    Raises:
        RequestError: it names the first field that does not fit, what is expected there, and what came.
    """
    try:
        return _converted(body, type_)
    except msgspec.ValidationError as error:
        said, _, place = str(error).partition(" - at ")
        path = place.strip("`").removeprefix("$")
        found = _OUTSIDE.fullmatch(said)
        if found is not None:
            said = f"expected a value that docs/apis.md says is taken, got {found[1]}; send one, or leave it out"
        field = re.split(r"(?=[.\[])", path.lstrip("."), maxsplit=1)
        field[0] = names.get(field[0], field[0])
        raise RequestError(f"{''.join(field) or 'body'}: {said[0].lower()}{said[1:]}", param=field[0] or None) from None


def _converted(body: Any, type_: type[T]) -> T:
    try:
        return msgspec.convert(body, type_)
    except msgspec.ValidationError as error:
        if _OTHER_NUMBER.search(str(error)) is None:
            raise
    return msgspec.convert(body, type_, strict=False)


def rest_of(body: dict[str, Any], *types: type[msgspec.Struct]) -> dict[str, Any]:
    """The fields that no type names; null counts as absent."""
    known = {name for type_ in types for name in type_.__struct_encode_fields__}
    return {name: value for name, value in body.items() if name not in known and value is not None}


def asked_of(body: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """The fields among these that the body has, as received, for the record."""
    return {name: body[name] for name in names if name in body}


def refuse(body: dict[str, Any], names: Iterable[str], instead: str) -> None:
    """Raises RequestError for the first of these fields that says something."""
    for name in names:
        if body.get(name) not in (None, False, "", []):
            raise RequestError(f"{name}: expected none, got some; {instead}", param=name)


def assistant_turn(texts: Sequence[str], thoughts: Sequence[str], calls: Sequence[ToolCall]) -> Message:
    """A turn of the assistant, from the pieces in which an API has it; one that only calls tools has no content."""
    return Message(
        role="assistant",
        content="".join(texts) if texts or not calls else None,
        tool_calls=tuple(calls),
        reasoning="".join(thoughts) if thoughts else None,
    )


def content_of(parts: Sequence[TextPart | OtherPart]) -> str | tuple[TextPart | OtherPart, ...]:
    """One text as a string, which every template knows; none as an empty one; more as parts."""
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return tuple(parts) or ""


def image_part(url: str) -> OtherPart:
    """An image, as engines take it."""
    return OtherPart({"type": "image_url", "image_url": {"url": url}})


def with_whole_answers(request: ChatRequest) -> ChatRequest:
    """The request with the calls of each answer in one turn, and their results after it.

    Some clients write each call of an answer before its own result. The ids tell that from calls of several answers;
    the model sampled the calls of one together, before any result.
    """
    rows: list[Message] = []
    calling: int | None = None
    for message in request.messages:
        if message.role == "assistant":
            if calling is not None and _goes_on(rows[calling], message):
                calls = (*rows[calling].tool_calls, *message.tool_calls)
                rows[calling] = msgspec.structs.replace(rows[calling], tool_calls=calls)
                continue
            calling = len(rows) if message.tool_calls else None
        elif message.role != "tool":
            calling = None
        rows.append(message)
    return msgspec.structs.replace(request, messages=tuple(_in_order_of_calls(rows)))


def _in_order_of_calls(rows: list[Message]) -> list[Message]:
    """With each answer's results in the order of its calls, for many templates write them without ids. Some clients
    send them as the tools end. Results that are doubled, or nobody's, stay where they are, as in the engine's prompt.
    """
    for at, turn in enumerate(rows):
        order = {call.id: place for place, call in enumerate(turn.tool_calls)}
        results = list(itertools.takewhile(lambda row: row.role == "tool", rows[at + 1 :])) if len(order) > 1 else []
        ids = {result.tool_call_id or "" for result in results}
        if len(ids) == len(results) and ids <= order.keys():
            rows[at + 1 : at + 1 + len(results)] = sorted(results, key=lambda row: order[row.tool_call_id or ""])
    return rows


def _goes_on(turn: Message, message: Message) -> bool:
    """Whether a message holds but further calls of the answer that a turn is."""
    calls = message.tool_calls
    return bool(calls) and not message.content and share_answer(turn.tool_calls[-1].id, calls[0].id)


def check_arguments(arguments: str) -> None:
    """Raises RequestError for half a surrogate pair, escaped: it is JSON, but no template can render it."""
    if "\\ud" in arguments.lower():
        with contextlib.suppress(json.JSONDecodeError, OverflowError, RecursionError):
            try:
                msgspec.json.encode(json.loads(arguments))
            except UnicodeEncodeError:
                raise RequestError(
                    "messages: expected tool arguments of whole characters, got half of one", param="messages"
                ) from None
