"""OpenTelemetry's `gen_ai.evaluation.result`: a log event, a span's event, or a span of its own with its attributes.

The convention asks that it be parented to the span that is judged, or name the answer. In: an EvaluationSource. Out:
at most one Evaluation. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.attributes import ERROR_TYPE

from .evaluation import USER_KEYS, Evaluation, EvaluationSource, about, who

EVENT_NAME = "gen_ai.evaluation.result"
_NAME = "gen_ai.evaluation.name"
_SCORE, _LABEL = "gen_ai.evaluation.score.value", "gen_ai.evaluation.score.label"
_EXPLANATION = "gen_ai.evaluation.explanation"
_UID = "log.record.uid"
"""OpenTelemetry's: records that share one are one record."""
GEN_AI_KEYS = frozenset((_NAME, _SCORE, _LABEL, _EXPLANATION, _UID, ERROR_TYPE))
"""The attributes that this reads."""


def gen_ai_evaluations(place: EvaluationSource) -> Iterator[Evaluation]:
    """Of one place."""
    said = place.attributes
    if place.name != EVENT_NAME and (place.is_event or _NAME not in said):
        return
    yield Evaluation(
        about=about(place),
        name=said.get(_NAME),
        score=said.get(_SCORE),
        label=said.get(_LABEL),
        reason=said.get(_EXPLANATION),
        error=said.get(ERROR_TYPE),
        identity=(place.span, *who(place), *_itself(place)),
        at_ns=place.at_ns,
        key=said.get(_UID),
    )


def _itself(place: EvaluationSource) -> tuple[str, ...]:
    """Of an event of no span that names no person, what it says and when: else anybody would revise anybody."""
    if place.span_id or any(place.attributes.get(key) for key in USER_KEYS):
        return ()
    said = (place.attributes.get(key) for key in (_SCORE, _LABEL, _EXPLANATION))
    return (str(place.at_ns), *map(str, said))
