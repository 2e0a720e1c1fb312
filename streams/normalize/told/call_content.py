"""What one convention reads of a model's span: a part of a ToldCall, and what is wrong with it.

In: SpanView, holding the attributes that some convention names. Out: CallContent. Invariant: of several conventions on
a span the prompt and the answer are each whole from one of them, the first that tells it with the fewest flaws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Any, NamedTuple

import msgspec

from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ToldIds, ToldSampling, ToolDefinition

from ..reading.span_view import MAX_TEXT, SpanView
from .chat_messages import MessageReading

_Ids = Annotated[list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]], msgspec.Meta(min_length=1)]
_Logprobs = list[Annotated[float, msgspec.Meta(le=0)]]
_MAX_PATH = 8
_MAX_DIGITS = 7
_MAX_FLAT = 50_000
_LIMITS = frozenset((*(2**n - k for n in range(10, 18) for k in (0, 1)), 1000, 1200, 10_000, 12_000))
"""Lengths to which exporters, SDKs (OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT) and Collectors cut a text, and say nothing: one
of just that length is not believed. A cut JSON shows by itself."""
_MADE_UP = ("__fake_id__", "lc_run-", "run-")
"""How the ids begin that frameworks give to answers whose own they have lost."""
_FINISHES = {
    **dict.fromkeys(("tool_call", "tool_use", "function_call", "function_calls"), "tool_calls"),
    **dict.fromkeys(("end_turn", "stop_sequence", "completed"), "stop"),
    **dict.fromkeys(("max_tokens", "max_output_tokens", "incomplete"), "length"),
}


class CallContent(msgspec.Struct, frozen=True, kw_only=True):
    """Fields as in ToldCall; None: this convention does not tell it."""

    prompt: MessageReading = MessageReading()
    answer: MessageReading = MessageReading()
    tools: tuple[ToolDefinition, ...] | None = None
    finish_reason: str | None = None
    response_id: str | None = None
    model: str | None = None
    sampling: ToldSampling | None = None
    ids: ToldIds | None = None
    is_stream: bool | None = None
    """Whether the answer came in pieces: one without a finish reason was cut."""


_NO_CONTENT = CallContent()


class CallBodies(NamedTuple):
    """A request and its response, as an API has them or a convention spells them; JSON or decoded, None: not told."""

    request: object = None
    response: object = None
    is_raw: bool = False
    """They are the API's own: what the request does not hold was not asked for."""


class Convention(NamedTuple):
    """One row of the table in `read_call.py`."""

    name: str
    keys: tuple[str, ...]
    """Attributes that it reads, or their beginnings, such as `llm.input_messages.`, which numbers follow."""
    read: Callable[[SpanView], Iterable[CallBodies]]
    """The best first."""


def merged(contents: Iterable[CallContent]) -> CallContent:
    """One of all, the first being believed first."""
    all_ = [*contents, _NO_CONTENT]
    rest = {
        name: next((told for one in all_ if (told := getattr(one, name)) is not None), None)
        for name in CallContent.__struct_fields__[2:]
    }
    return CallContent(prompt=best(one.prompt for one in all_), answer=best(one.answer for one in all_), **rest)


def best(readings: Iterable[MessageReading]) -> MessageReading:
    """The first with the fewest flaws of those that tell messages; else the first that says why there are none."""
    return min(readings, key=lambda one: (one.messages is None, len(one.flaws) if one.messages else not one.flaws))


def text_of(value: object) -> str | None:
    """A name."""
    return value[:MAX_TEXT] if isinstance(value, str) and value else None


def id_of(value: object) -> str | None:
    """The provider's id of an answer."""
    return None if isinstance(value, str) and value.startswith(_MADE_UP) else text_of(value)


def finish_of(value: object) -> str | None:
    """`stop`, `length`, `tool_calls`, or as it is told."""
    if isinstance(value, list):
        value = value[0] if len(value) == 1 else None
    word = (text_of(value) or "").lower().strip('[]"').removeprefix("finishreason.").replace("-", "_")
    return _FINISHES.get(word, word) or None


def sampling_of(told: Mapping[str, Any]) -> ToldSampling | None:
    """Of a request's fields, by their own names."""
    limit = told.get("max_completion_tokens", told.get("max_output_tokens", told.get("max_tokens")))
    try:
        found = msgspec.convert({**told, "max_tokens": limit}, ToldSampling)
    except msgspec.ValidationError:
        return None
    return None if found == ToldSampling() else found


def ids_of(prompt: object, sampled: object, logprobs: object = None) -> ToldIds | None:
    """Exact ids where both are whole; logprobs where they are one for each sampled id."""
    listed: list[Any] = logprobs if isinstance(logprobs, list) else []
    given = [one.get("logprob") if isinstance(one, dict) else one for one in listed]
    told: list[float] = []
    try:
        before, after = msgspec.convert((prompt, sampled), tuple[_Ids, _Ids])
    except msgspec.ValidationError:
        return None
    if len(given) == len(after):
        with suppress(msgspec.ValidationError):
            told = msgspec.convert(given, _Logprobs)
    return ToldIds(prompt=ids_to_bytes(before), sampled=ids_to_bytes(after), logprobs=logprobs_to_bytes(told))


def flat_list(span: SpanView, prefix: str) -> list[Any]:
    """The list that flat attributes spell: `PREFIX0.a.1.b` is [{"a": [.., {"b": ..}]}]; where some are missing or cut,
    it is [None], which no reader takes for a message.

    An SDK that holds 128 attributes of a span drops those that were set first.
    """
    root: dict[str, Any] = {}
    told = {key[len(prefix) :]: value for key, value in span.attributes.items() if key.startswith(prefix)}
    if not told:
        return []
    for key, value in told.items() if len(told) <= _MAX_FLAT else ():
        *path, last = key.split(".", _MAX_PATH)
        place = root
        for name in path:
            inner = place.setdefault(name, {})
            place = inner if isinstance(inner, dict) else {}
        place.setdefault(last, value)
    is_cut = span.is_cut or any(isinstance(value, str) and len(value) in _LIMITS for value in told.values())
    listed = _listed(root)
    return listed if root and not is_cut and all(str(index) in root for index in range(len(listed))) else [None]


def _listed(place: Any) -> Any:
    if not isinstance(place, dict) or not place:
        return place
    if not all(key.isascii() and key.isdecimal() and len(key) < _MAX_DIGITS for key in place):
        return {key: _listed(value) for key, value in place.items()}
    return [_listed(place[key]) for key in sorted(place, key=int)]
