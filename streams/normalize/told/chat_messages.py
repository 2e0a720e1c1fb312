"""Messages and tool definitions, in whatever form conventions and the models' APIs write them, as chat completions have
them.

In: decoded JSON or its text: OpenAI's chat and Responses, Anthropic's blocks, OpenTelemetry's parts, Bedrock's and
Gemini's nested parts, Vercel's, LangChain's serialised messages. Out: the messages, and what is wrong with them. Pure.
Invariant: texts stay as they are told; what cannot be read whole leaves a flaw, and no odd value raises.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, TypeGuard

import msgspec

from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage, ToolDefinition
from tracegrad.schemas.text import json_value

Item = dict[str, Any]
_PLACEHOLDERS = ("__REDACTED__", "<elided>", "[Scrubbed due to ")
"""How what OpenInference, ADK and logfire put in the place of a text begins; of other placeholders nobody knows."""
_ROLES = {
    **dict.fromkeys(("human", "tool-response"), "user"),
    **dict.fromkeys(("ai", "AIMessageChunk", "model", "tool-call"), "assistant"),
}
"""LangChain's, Gemini's and smolagents' own words, for what they send."""
_CHAT_ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
_WRAPPERS = ("kwargs", "data", "message")
"""Keys under which serialisers keep the whole of a message: LangChain's generation holds one, whose fields are
`kwargs`."""
_TEXT, _CALL, _RESULT, _THOUGHT, _OTHER = "text", "call", "result", "thought", "other"
_KINDS = {"": _TEXT} | {
    word: kind
    for kind, words in (
        (_TEXT, "text inputtext outputtext"),
        (_CALL, "toolcall tooluse functioncall"),
        (_RESULT, "toolcallresponse toolresult functioncalloutput functionresponse"),
        (_THOUGHT, "reasoning thinking reasoningcontent"),
    )
    for word in words.split()
}
"""Of a part's type in all spellings, or of the key by which Bedrock and Gemini name it."""
_SAID = (_TEXT, _CALL, _RESULT, _THOUGHT)
_IDS = ("call_id", "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "id")
_ARGUMENTS = ("arguments", "args", "input")
_RETURNED = ("response", "result", "output", "content")
_SCHEMAS = ("parameters", "input_schema", "inputSchema", "parameters_json_schema")
_MAX_MESSAGES = 10_000
"""Of one call; a list of more, which costs seconds, is not read."""
_MAX_SCHEMA_DEPTH = 64
"""A deeper one could be decoded here, and not encoded with the record around it."""
HIDDEN = Reason.NO_PROMPT_TOLD
"""The flaw of what is hidden, as if it were not told; `read_call.py` says whether that is the prompt or the answer."""
_UNSHOWN = frozenset({HIDDEN, Reason.CONTENT_CUT})


class MessageReading(NamedTuple):
    """What was read; None: nothing that is whole enough to be shown."""

    messages: tuple[ChatMessage, ...] | None = None
    flaws: frozenset[Reason] = frozenset()
    """Why the messages are not, to the last character, those of the call."""


_NOTHING = MessageReading()


def read_messages(value: object, *, role: str | None = None) -> MessageReading:
    """Of a list of messages, of one, or their JSON; None: of nothing. `role` is whose a bare text is; without it, such
    a text is cut JSON."""
    if value is None or value == []:
        return _NOTHING
    flaws: set[Reason] = set()
    try:
        items = _items(value, role)
        items = items if len(items) <= _MAX_MESSAGES else [None]
        made = tuple(message for item in _whole_answers(items) for message in _messages(item, role, flaws))
    except RecursionError:
        made, flaws = (), {Reason.CONTENT_CUT}
    return MessageReading(made if made and flaws.isdisjoint(_UNSHOWN) else None, frozenset(flaws))


def read_answer(value: object) -> MessageReading:
    """Likewise of the one answer; of several nobody knows which one the agent went on with."""
    messages, flaws = read_messages(value, role="assistant")
    if messages is not None and len(messages) > 1:
        return MessageReading(None, flaws | {Reason.NOT_CHOSEN})
    is_told = messages and (messages[0].content or messages[0].tool_calls or messages[0].num_other_parts)
    return MessageReading(messages if is_told else None, flaws)


def system_message(value: object) -> MessageReading:
    """Of the system's instructions, which some conventions and APIs keep apart: a text, or parts, or their JSON."""
    told = json_value(value) if isinstance(value, str) and value[:2] == "[{" else value
    return read_messages({"role": "system", "content": told} if value else None)


def in_order(readings: Iterable[MessageReading]) -> MessageReading:
    """All of them, one behind the other; none where one that should be there is not whole."""
    all_ = [one for one in readings if one is not _NOTHING]
    flaws = frozenset[Reason]().union(*(one.flaws for one in all_))
    made = tuple(message for one in all_ for message in one.messages or ())
    return MessageReading(made if made and flaws.isdisjoint(_UNSHOWN) else None, flaws)


def read_tools(value: object, *, is_raw: bool = False) -> tuple[ToolDefinition, ...] | None:
    """Functions that the model could call; None where none is told, or one is no function.

    One without a schema has none in a raw request; conventions may leave it out (OpenTelemetry's, by default).
    """
    told = json_value(value) or ()
    definitions = [_definition(json_value(tool)) for tool in (told if isinstance(told, list) else [told])]
    found = tuple(one for one in definitions if one is not None and (is_raw or one.parameters is not None))
    return found if found and len(found) == len(definitions) else None


def _definition(tool: object) -> ToolDefinition | None:
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict):
        return None
    schema = json_value(next((function[key] for key in _SCHEMAS if key in function), None))
    schema = schema["json"] if isinstance(schema, dict) and schema.keys() == {"json"} else schema  # Bedrock's
    if is_deep(schema, _MAX_SCHEMA_DEPTH):
        return None
    try:
        told = None if schema is None else json.dumps(msgspec.convert(schema, dict[str, Any]), ensure_ascii=False)
        return msgspec.convert({**function, "parameters": told}, ToolDefinition)
    except msgspec.ValidationError:
        return None


def _items(value: object, role: str | None) -> list[Any]:
    decoded = json_value(value)
    if isinstance(value, str) and not isinstance(decoded, list | dict):
        decoded = value if role is not None and value[:2] not in ("[{", '{"') else None
    if isinstance(decoded, list) and len(decoded) == 1 and isinstance(decoded[0], list):
        return decoded[0]  # LangChain's batch of one
    return decoded if isinstance(decoded, list) else [decoded]


def _whole_answers(items: Iterable[object]) -> Iterator[object]:
    """The items; those of OpenAI's Responses, of which several are one answer, as one message."""
    for is_answer, group in groupby(items, _is_item_of_answer):
        if is_answer:
            parts = [part for item in group for part in _list(item.get("content")) or [item]]  # type: ignore[attr-defined]
            yield {"role": "assistant", "parts": parts}
        else:
            yield from group


def _is_item_of_answer(item: object) -> bool:
    if not isinstance(item, dict):
        return False
    is_said = item.get("type") == "message" and item.get("role") == "assistant" and "stop_reason" not in item
    return is_said or ("role" not in item and _kind(item.get("type")) in (_CALL, _THOUGHT))


def _messages(item: Any, role: str | None, flaws: set[Reason]) -> Iterator[ChatMessage]:
    """The messages of one item: Anthropic's message with two tools' results is two of them."""
    for _ in _WRAPPERS if _is(item) and not item.keys().isdisjoint(_WRAPPERS) else ():
        inner = next((item[key] for key in _WRAPPERS if _is(item.get(key))), None) if _is(item) else None
        item = item if inner is None else {"type": item.get("type"), **inner}
    if isinstance(item, str) and role is not None:
        item = {"role": role, "content": item}
    if not isinstance(item, dict):
        flaws.add(Reason.CONTENT_CUT)
        return
    is_result = "role" not in item and _kind(item.get("type")) == _RESULT
    said = "tool" if is_result else _text_of(item, ("role", "type")) or role or ""
    said = _ROLES.get(said, said)
    content = [item] if is_result else item.get("parts", item.get("content"))
    told = content if isinstance(content, list) else () if content is None else [content]
    parts = [_part(part, flaws) for part in told]
    asked = _list(json_value(item.get("tool_calls"))) or [call for call in (item.get("function_call"),) if call]
    parts += [(_CALL, _call(call, flaws)) for call in asked]
    held = {kind: [told for one, told in parts if one == kind and told is not None] for kind in _SAID}
    yield from held[_RESULT]
    if held[_RESULT] and not (held[_TEXT] or held[_CALL]):
        return
    if not parts and said != "assistant":
        flaws.add(HIDDEN)
    # What lies between two texts is the template's to say, and no answer holds what tools returned.
    if said not in _CHAT_ROLES or len(held[_TEXT]) > 1 or (held[_RESULT] and said == "assistant"):
        flaws.add(Reason.CONTENT_REWRITTEN)
    thought = item.get("reasoning_content", item.get("reasoning"))
    yield ChatMessage(
        role=said,
        content="".join(held[_TEXT]) if held[_TEXT] else None,
        tool_calls=tuple({_same_call(call, place): call for place, call in enumerate(held[_CALL])}.values()),
        tool_call_id=_text_of(item, _IDS) if said == "tool" else None,
        name=_text_of(item, ("name",)),
        reasoning=thought if isinstance(thought, str) else "".join(held[_THOUGHT]) or None,
        num_other_parts=sum(kind == _OTHER for kind, _ in parts),
    )


def _same_call(call: ToolCall, place: int) -> tuple[object, ...]:
    """A call may stand in a part and in a field, in other spacing; two that share an id alone are two."""
    told = json_value(call.arguments)
    return (call.id, call.name, json.dumps(told, sort_keys=True)) if call.id else (place,)


def _part(part: object, flaws: set[Reason]) -> tuple[str, Any]:
    """(its kind, what it says) of a part of a message."""
    if isinstance(part, str):
        part = {"text": part}
    if not isinstance(part, dict):
        flaws.add(Reason.CONTENT_CUT)
        return _OTHER, None
    named = next((key for key in part if isinstance(part[key], dict) and _kind(key) != _OTHER), None)
    kind, body = (_kind(named), part[named]) if named and "type" not in part else (_kind(part.get("type")), part)
    if kind == _CALL:
        return kind, _call(body, flaws)
    if kind == _RESULT:
        return kind, _result(body, flaws)
    text = next((body[key] for key in ("text", "content", "thinking") if key in body), None)
    if kind == _THOUGHT:
        return kind, text if isinstance(text, str) else None
    if kind == _OTHER or not ("type" in body or "text" in body or "content" in body):
        flaws.add(Reason.CONTENT_NOT_TEXT)
        return _OTHER, None
    if not isinstance(text, str) or _is_hidden(text):
        flaws.add(HIDDEN)
    return _TEXT, text if isinstance(text, str) else None


def _call(call: Any, flaws: set[Reason]) -> ToolCall | None:
    function = call.get("function", call) if _is(call) else None
    name = _text_of(function, ("name", "toolName")) if _is(function) else None
    if name is None or not _is(function):
        flaws.add(Reason.CONTENT_CUT)
        return None
    given = next((function[key] for key in _ARGUMENTS if function.get(key) is not None), None)
    if given is None or _is_hidden(given):
        flaws.add(HIDDEN)
    return ToolCall(id=_text_of(call, _IDS) or "", name=name, arguments=_json(given))


def _result(body: Item, flaws: set[Reason]) -> ChatMessage:
    returned = next((body[key] for key in _RETURNED if body.get(key) is not None), None)
    if _is(returned) and isinstance(returned.get("value"), str):
        returned = returned["value"]  # Vercel's {"type": "text", "value": ..}
    told = _list(returned)
    if returned is None or _is_hidden(returned):
        flaws.add(HIDDEN)
    elif not isinstance(returned, str) and not (len(told) == 1 and _is(told[0]) and "text" in told[0]):
        # Nobody tells how the framework wrote it for the model, nor what the template puts between two texts.
        flaws.add(Reason.CONTENT_REWRITTEN)
        told = []
    texts = [str(_part(part, flaws)[1]) for part in told] or [_json(returned)]
    return ChatMessage(role="tool", content="".join(texts), tool_call_id=_text_of(body, _IDS))


def _is_hidden(text: object) -> bool:
    # A Collector's redaction processor puts **** in the place of each line where it masks all of an attribute.
    is_masked = isinstance(text, str) and "****" in text and set(text.split()) == {"****"}
    return is_masked or (isinstance(text, str) and text.startswith(_PLACEHOLDERS))


def _kind(word: object) -> str:
    spelt = word.replace("_", "").replace("-", "").lower() if isinstance(word, str) else word
    return _OTHER if not isinstance(spelt, str | None) else _KINDS.get(spelt or "", _OTHER)


def is_deep(value: object, max_depth: int) -> bool:
    """Whether lists and mappings lie within each other deeper than that."""
    inner = value.values() if _is(value) else _list(value)
    return isinstance(value, list | dict) and (max_depth == 0 or any(is_deep(one, max_depth - 1) for one in inner))


def _is(value: object) -> TypeGuard[Item]:
    return isinstance(value, dict)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _text_of(item: Item, keys: Iterable[str]) -> str | None:
    return next((item[key] for key in keys if isinstance(item.get(key), str) and item[key]), None)


def _json(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
