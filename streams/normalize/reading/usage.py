"""How many tokens a model's span counts, by which it may be told from others that say as little of their answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracegrad.schemas.otlp.values import AttributeValue
from tracegrad.schemas.records.facts import SpanKind

__all__ = ["USAGE_KEYS", "usage_of"]

_INPUT = ("gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens", "llm.token_count.prompt", "ai.usage.promptTokens")
_OUTPUT = (
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.completion_tokens",
    "llm.token_count.completion",
    "ai.usage.completionTokens",
)
USAGE_KEYS = frozenset((*_INPUT, *_OUTPUT))


def usage_of(attributes: Mapping[str, AttributeValue], kind: SpanKind) -> dict[str, int | None]:
    """Fields as in SpanFact."""
    if kind is not SpanKind.LLM or USAGE_KEYS.isdisjoint(attributes):
        return {}
    return {"input_tokens": _first(attributes, _INPUT), "output_tokens": _first(attributes, _OUTPUT)}


def _first(attributes: Mapping[str, AttributeValue], keys: Sequence[str]) -> int | None:
    for key in keys:
        num = attributes.get(key)
        if isinstance(num, int) and 0 < num < 2**31:
            return num
    return None
