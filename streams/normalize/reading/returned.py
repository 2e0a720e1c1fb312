"""What spans tell in numbers and texts: what a tool gave back, the status of a request, how many tokens a model counts,
by which its span may be told from others that say as little of their answer.

In: the forms in which a span holds the result; any span's attributes. Out: fields of its fact. Invariant: of several
forms the shortest stands, which has the least of a framework's wrapping, in whatever order they come; never more than
MAX_RESULT characters. Failure: none; what no JSON can hold is no result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from tracegrad.schemas.otlp.values import AttributeValue
from tracegrad.schemas.records.facts import MAX_RESULT, SpanKind
from tracegrad.schemas.text import clean

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "ai.usage.promptTokens")
_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "ai.usage.completionTokens",
)
USAGE_KEYS = frozenset((*_INPUT, *_OUTPUT))
_HTTP_KEYS = ("http.response.status_code", "http.status_code")
HTTP_KEYS = frozenset(_HTTP_KEYS)
_HIDDEN = frozenset({"__REDACTED__"})
"""What OpenInference writes for content that it is told to hide."""


def result_of(results: Iterable[object]) -> tuple[str | None, bool]:
    """(the result's beginning, whether there was more); None of no result."""
    texts = [text for result in results if (text := _text(result)) and text not in _HIDDEN]
    if not texts:
        return None, False
    best = min(texts, key=lambda text: (len(text), text))
    return clean(best[:MAX_RESULT]), len(best) > MAX_RESULT


def _text(result: object) -> str:
    if isinstance(result, str):
        return result
    try:
        return msgspec.json.encode(result, order="deterministic").decode()
    except (TypeError, ValueError, OverflowError, RecursionError):
        return ""


def http_status_of(attributes: Mapping[str, AttributeValue]) -> int | None:
    """The status of the request that a span is or serves."""
    for key in _HTTP_KEYS:
        status = attributes.get(key)
        if type(status) is str and len(status) == 3 and status.isdecimal():
            status = int(status)
        if type(status) is int and 100 <= status < 600:
            return status
    return None


def usage_of(attributes: Mapping[str, AttributeValue], kind: SpanKind) -> dict[str, int | None]:
    """Fields as in SpanFact."""
    if kind is not SpanKind.LLM or USAGE_KEYS.isdisjoint(attributes):
        return {}
    return {"input_tokens": _first(attributes, _INPUT), "output_tokens": _first(attributes, _OUTPUT)}


def _first(attributes: Mapping[str, AttributeValue], keys: Sequence[str]) -> int | None:
    for key in keys:
        num = attributes.get(key)
        if type(num) is int and 0 < num < 2**31:
            return num
    return None
