"""What an LLM span's answer is known by: a digest of its text, and the ids of the tool calls that it asks for.

In: the answer's messages, decoded, as OpenTelemetry writes them (`parts`), as OpenAI's API does (`content`,
`tool_calls`), or as OpenInference's flat attributes do. Out: (digest, ids), as in SpanFact. Pure; never raises for odd
values. Invariant: of several answers (n > 1) nothing is told, for nobody knows which one the agent went on with.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from tracegrad.schemas.records.facts import digest_of

__all__ = ["FLAT_KEYS", "NOTHING", "Output", "of_flat", "of_messages"]

Output = tuple[str | None, tuple[str, ...]]
NOTHING: Output = (None, ())
MAX_TOOL_CALLS = 16
"""Keeps a fact small; of an answer that asks for more, the first ones are enough to know it by."""
_MAX_JSON = 1_000_000
_ID = re.compile(r"[\w.:-]{1,64}", re.ASCII)
_TOOL_PARTS = frozenset({"tool_call", "tool_use", "function_call"})
_FLAT = "llm.output_messages.0.message."
_CONTENT = _FLAT + "content"
_SECOND = ("llm.output_messages.1.message.role", "llm.output_messages.1.message.content")
_FLAT_IDS = tuple(f"{_FLAT}tool_calls.{index}.tool_call.id" for index in range(MAX_TOOL_CALLS))
FLAT_KEYS = frozenset((_CONTENT, *_SECOND, *_FLAT_IDS))
"""OpenInference's attributes of the answer, which `of_flat` reads."""


def of_messages(value: object) -> Output:
    """Of a list of messages (or its JSON) with one answer."""
    messages = _decoded(value)
    if not isinstance(messages, list) or len(messages) != 1 or not isinstance(messages[0], dict):
        return NOTHING
    message = messages[0]
    parts = message.get("parts", message.get("content"))
    texts, ids = list(_texts(parts)), list(_ids(parts))
    tool_calls = message.get("tool_calls")
    ids += [id_ for call in (tool_calls if isinstance(tool_calls, list) else ()) for id_ in _id_of(call)]
    return digest_of("".join(texts)), tuple(dict.fromkeys(ids))[:MAX_TOOL_CALLS]


def of_flat(attributes: Mapping[str, Any]) -> Output:
    """Of OpenInference's flat attributes."""
    if any(key in attributes for key in _SECOND):
        return NOTHING
    text = attributes.get(_CONTENT)
    ids = (attributes[key] for key in _FLAT_IDS if key in attributes)
    return digest_of(text if isinstance(text, str) else None), tuple(filter(_is_id, ids))


def _decoded(value: object) -> object:
    if not isinstance(value, str):
        return value
    if len(value) > _MAX_JSON:
        return None
    try:
        return msgspec.json.decode(value)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None


def _texts(parts: object) -> Iterator[str]:
    if isinstance(parts, str):
        yield parts
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") in ("text", "output_text"):
            yield from (text for text in (part.get("content", part.get("text")),) if isinstance(text, str))


def _ids(parts: object) -> Iterator[str]:
    for part in parts if isinstance(parts, list) else ():
        if isinstance(part, dict) and part.get("type") in _TOOL_PARTS:
            yield from _id_of(part)


def _id_of(call: object) -> Iterator[str]:
    id_ = call.get("id") if isinstance(call, dict) else None
    if _is_id(id_):
        yield str(id_)


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None
