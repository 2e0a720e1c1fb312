"""What the conventions have in common: where an evaluation can stand, what it says, what it is about. Pure.

In: attributes of a span, of a span's event or of a log record. Out: Evaluations, as they are said. Invariant: nothing
here judges: names, values and ids are checked where each piece of feedback is (../../read_feedback.py).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from tracegrad.schemas.attributes import CONVERSATION_KEYS, GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID

_TRACELOOP_SESSION = "traceloop.association.properties.session_id"
_CONVERSATIONS = (*CONVERSATION_KEYS, _TRACELOOP_SESSION)
ABOUT_KEYS = frozenset((GEN_AI_RESPONSE_ID, GEN_AI_TOOL_CALL_ID, *_CONVERSATIONS))
"""The attributes by which `about` finds what is judged."""
USER_KEYS = ("user.id", "enduser.id")
"""The person who judged."""
WHO_KEYS = ("gen_ai.evaluation.evaluator.source", *USER_KEYS)
"""Whose judgement it is, where that is said."""

_Attributes = Mapping[str, Any]
_NONE: _Attributes = MappingProxyType({})


class EvaluationSource(NamedTuple):
    """Where attributes stand: a span, one of its events, or a log record."""

    name: str
    """The span's, or the event's."""
    is_event: bool
    """Of a span or of the log."""
    trace_id: str
    span_id: str
    """Both in hex, empty where a log record is of none; an event's are its span's."""
    attributes: _Attributes
    around: _Attributes = _NONE
    """Of the span that an event is of."""
    links: tuple[tuple[str, _Attributes], ...] = ()
    """The span's: trace ids, and what is said of each."""
    at_ns: int = 0
    """By the sender's clock; of two that revise one another in one request the later counts."""

    @property
    def span(self) -> str:
        """Which span it is, or is of."""
        return f"{self.trace_id}/{self.span_id}"


class Evaluation(NamedTuple):
    """One judgement. None: not said."""

    about: tuple[str, Any]
    """A target's field of a posted piece of feedback, and its id."""
    name: Any
    score: Any
    label: Any
    reason: Any
    error: Any
    """The class of the error by which the evaluator failed."""
    identity: tuple[str, ...]
    """With target and name: what is said again under it revises."""
    at_ns: int
    key: Any = None
    """An idempotency key of the sender's own, instead."""


def about(place: EvaluationSource) -> tuple[str, Any]:
    """The answer or the tool call that the evaluation names, else that its span or the span's link names; else a
    conversation; else the trace that the span links to, if it is one; else its own."""
    nearby = (place.attributes, place.around, *(attributes for _, attributes in place.links))
    for field, key in (("response_id", GEN_AI_RESPONSE_ID), ("tool_call_id", GEN_AI_TOOL_CALL_ID)):
        if (id_ := _first(nearby, (key,))) is not None:
            return field, id_
    if (id_ := conversation_of(place)) is not None:
        return "conversation_id", id_
    return "trace_id", trace_of(place)


def conversation_of(place: EvaluationSource) -> Any:
    """The conversation that the evaluation or its span names."""
    return _first((place.attributes, place.around), _CONVERSATIONS)


def trace_of(place: EvaluationSource) -> str | None:
    """The one trace that the span links to, else its own."""
    linked = {trace_id for trace_id, _ in place.links}
    return linked.pop() if len(linked) == 1 else place.trace_id or None


def who(place: EvaluationSource) -> tuple[str, ...]:
    """Whose judgement it is, as far as that is said."""
    return tuple(f"{key}={_first((place.attributes, place.around), (key,))}" for key in WHO_KEYS)


def _first(sources: Iterable[_Attributes], keys: Iterable[str]) -> Any:
    """The first that is there and says something."""
    said = (source.get(key) for source in sources for key in keys)
    return next((value for value in said if value is not None and value != ""), None)
