"""What an LLM span's answer is known by: a digest of its text, and the ids of the tool calls that it asks for.

In: the answer's messages, decoded, as OpenTelemetry writes them (`parts`), as the models' APIs do (`content`,
`tool_calls`, `choices`), as LangChain does (`generations`), or as flat attributes. Out: (digest, ids), as in SpanFact.
Pure; never raises for odd values. Invariant: of several answers (n > 1) nothing is told, for nobody knows which one
the agent went on with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from tracegrad.schemas.ids import CALL_ID
from tracegrad.schemas.records.facts import MAX_TOOL_CALLS, digest_of
from tracegrad.schemas.text import json_value

Output = tuple[str | None, tuple[str, ...]]
NOTHING: Output = (None, ())
_MAX_PARTS = 8
_MAX_DEPTH = 4
_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
# Our gateway mints this form, so nothing else in the JSON of an answer can be taken for it.
_RESPONSE_ID = re.compile(rf'"(?:response_)?id"\s*:\s*"({CALL_ID})"')
_TOOL_PARTS = frozenset({"tool_call", "tool_use", "function_call"})
_TEXT_PARTS = frozenset({"text", "output_text", None})

_FLAT = "llm.output_messages.0.message."
_FLAT_TEXTS = (
    _FLAT + "content",
    *(f"{_FLAT}contents.{index}.message_content.text" for index in range(_MAX_PARTS)),
)
_FLAT_SECOND = ("llm.output_messages.1.message.role", "llm.output_messages.1.message.content")
_FLAT_IDS = tuple(f"{_FLAT}tool_calls.{index}.tool_call.id" for index in range(MAX_TOOL_CALLS))
FLAT_KEYS = frozenset((*_FLAT_TEXTS, *_FLAT_SECOND, *_FLAT_IDS))
"""OpenInference's attributes of the answer, which `of_flat` reads."""
_COMPLETION = "gen_ai.completion.0."
_COMPLETION_TEXTS = (_COMPLETION + "content",)
_COMPLETION_SECOND = ("gen_ai.completion.1.role", "gen_ai.completion.1.content")
_COMPLETION_IDS = tuple(f"{_COMPLETION}tool_calls.{index}.id" for index in range(MAX_TOOL_CALLS))
COMPLETION_KEYS = frozenset((*_COMPLETION_TEXTS, *_COMPLETION_SECOND, *_COMPLETION_IDS))
"""Likewise those of `gen_ai.completion.N`, an older form of OpenTelemetry's, which `of_completion` reads."""


def of_messages(value: object) -> Output:
    """Of a list of messages (or its JSON) with one answer."""
    messages = json_value(value)
    if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
        return NOTHING
    return _of_message(messages[0])


def of_response(value: object) -> Output:
    """Of an API's response, a message, or LangChain's result, or the JSON of one; a bare text is the answer's."""
    decoded = json_value(value)
    if isinstance(value, str) and not isinstance(decoded, dict | list):
        return digest_of(decoded if isinstance(decoded, str) else value), ()
    return _of_response(decoded, 0)


def of_flat(attributes: Mapping[str, Any]) -> Output:
    """Of OpenInference's flat attributes."""
    return _of_flat(attributes, _FLAT_TEXTS, _FLAT_SECOND, _FLAT_IDS)


def of_completion(attributes: Mapping[str, Any]) -> Output:
    """Of `gen_ai.completion.0.*`."""
    if COMPLETION_KEYS.isdisjoint(attributes):
        return NOTHING
    return _of_flat(attributes, _COMPLETION_TEXTS, _COMPLETION_SECOND, _COMPLETION_IDS)


def minted_in(value: object) -> str | None:
    """The id of the answer that a gateway minted, where a JSON text holds it; a model's words are escaped there."""
    match = _RESPONSE_ID.search(value) if isinstance(value, str) and value[:1] in ("{", "[") else None
    return match[1] if match else None


def _of_response(value: object, depth: int) -> Output:
    if isinstance(value, list):
        if len(value) == 1:
            return _of_response(value[0], depth)
        return _of_message({"parts": value})
    if not isinstance(value, dict) or depth > _MAX_DEPTH:
        return NOTHING
    for key in ("choices", "generations"):
        answers = value.get(key)
        if isinstance(answers, list):
            return _of_response(answers[0], depth + 1) if len(answers) == 1 else NOTHING
    for key in ("message", "kwargs"):
        if isinstance(value.get(key), dict):
            return _of_response(value[key], depth + 1)
    if isinstance(value.get("output"), list):
        return _of_message({"parts": [inner for item in value["output"] for inner in _items(item)]})
    return _of_message(value)


def _items(item: object) -> Iterator[object]:
    """The parts of an output item of OpenAI's Responses."""
    content = item.get("content") if isinstance(item, dict) and item.get("type") == "message" else None
    yield from content if isinstance(content, list) else (item,)


def _of_message(message: Mapping[str, Any]) -> Output:
    parts = message.get("parts", message.get("content"))
    texts, ids = list(_texts(parts)), list(_ids(parts))
    tool_calls = message.get("tool_calls")
    ids += [id_ for call in (tool_calls if isinstance(tool_calls, list) else ()) for id_ in _id_of(call)]
    return digest_of("".join(texts)), tuple(dict.fromkeys(ids))[:MAX_TOOL_CALLS]


def _of_flat(
    attributes: Mapping[str, Any], texts: tuple[str, ...], second: tuple[str, ...], ids: tuple[str, ...]
) -> Output:
    if any(key in attributes for key in second):
        return NOTHING
    said = [text for key in texts if isinstance(text := attributes.get(key), str)]
    found = (attributes[key] for key in ids if key in attributes)
    return digest_of("".join(said)), tuple(filter(_is_id, found))


def _texts(parts: object) -> Iterator[str]:
    if isinstance(parts, str):
        yield parts
    for part in parts if isinstance(parts, list) else ():
        kind = part.get("type") if isinstance(part, dict) else ""
        if isinstance(part, dict) and (kind is None or (isinstance(kind, str) and kind in _TEXT_PARTS)):
            yield from (text for text in (part.get("content", part.get("text")),) if isinstance(text, str))


def _ids(parts: object) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict):
            kind, use = part.get("type"), part.get("toolUse")
            if isinstance(kind, str) and kind in _TOOL_PARTS:
                yield from _id_of(part)
            elif isinstance(use, dict):  # Bedrock's form, which Strands keeps
                yield from _id_of({"id": use.get("toolUseId")})


def _id_of(call: object) -> Iterator[str]:
    if isinstance(call, dict):
        # A function call of OpenAI's Responses has an id of its own besides.
        id_ = call.get("call_id", call.get("toolCallId", call.get("id")))
        if _is_id(id_):
            yield str(id_)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None
