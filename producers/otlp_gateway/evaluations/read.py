"""The evaluations of one export request become feedback, as if each had been posted (../../read_feedback.py). Pure.

In: spans or log records, which came with the reward token, and the declared names. Out: Rewards, and how many were
refused, by reason. Invariants: each evaluation is judged by itself; equal ones have equal idempotency keys, so that
what is exported twice counts once; of several under one key the last counts. Failure: none.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import RunHash, canonical_call
from tracegrad.schemas.otlp.signal import TRACES, Signal
from tracegrad.schemas.otlp.values import attributes_of
from tracegrad.schemas.records.rollouts import Reward

from ...feedback_names import RangeConfig
from ...read_feedback import MAX_REASON_CHARS, fault_of, read_feedback
from .evaluation import ABOUT_KEYS, WHO_KEYS, Evaluation, EvaluationSource
from .gen_ai import EVENT_NAME, GEN_AI_KEYS, gen_ai_evaluations
from .openinference import is_openinference_key, openinference_evaluations

_CONVENTIONS = (gen_ai_evaluations, openinference_evaluations)
"""Each reads what it finds, whatever the others find. A new convention is a new row."""
_EVENT_NAME_KEY = "event.name"
"""Where a log event's name stood before records had a field for it."""
_KEYS = ABOUT_KEYS.union(GEN_AI_KEYS, WHO_KEYS, (_EVENT_NAME_KEY,))
_MARKS = (b"gen_ai.evaluation.", b".annotation.", b".evaluation.")
_MAX_FOUND = 10_000
"""Of one request: an exporter's has some hundred spans. What is more is refused, or memory would have no bound."""
_MAX_LINKS = 8
_MAX_TEXT = 5_000
"""More than any that is taken has. Each evaluation of a span has the span's ids in its key: one long text among them
would cost as often."""
_NO_TEXT = ("",)
"""In the place of lists and mappings, whose text is as long: none is a name, a number or an id."""

Item = tuple[Any, Any, Any]
"""A span or log record behind its resource and scope."""


class _Wanted:
    """The attributes that are decoded."""

    def __contains__(self, key: object) -> bool:
        return key in _KEYS or is_openinference_key(str(key))


_WANTED = _Wanted()


class EvaluationsRead(NamedTuple):
    """What a request says."""

    rewards: tuple[Reward, ...]
    refused: Counter[str]
    """Reason -> how many."""


def may_evaluate(body: bytes) -> bool:
    """Whether a request may hold an evaluation; a cheap look, for those that count for nothing."""
    return any(mark in body for mark in _MARKS)


def num_evaluations(signal: Signal, items: Iterable[Item]) -> int:
    """How many there are, as far as so many are read of one request."""
    return sum(1 for _ in islice(_evaluations(signal, items), _MAX_FOUND))


def read_evaluations(
    signal: Signal, items: Iterable[Item], names: Mapping[str, RangeConfig], run: RunHash, *, at_ms: int
) -> EvaluationsRead:
    """Those of the items that a request holds; `at_ms` is when it came."""
    found: dict[tuple[Any, ...], tuple[int, Reward]] = {}
    refused: Counter[str] = Counter()
    for number, evaluation in enumerate(_evaluations(signal, items)):
        if number >= _MAX_FOUND:
            refused["too_many"] += 1
            continue
        try:
            reward = read_feedback(_posted(evaluation, names), names, run, at_ms=at_ms)
        except RequestError as error:
            refused[fault_of(error)] += 1
            continue
        place = (reward.idempotency_key, reward.target, reward.conversation_key, reward.rollout_id)
        if place not in found or found[place][0] <= evaluation.at_ns:
            found[place] = evaluation.at_ns, reward
    return EvaluationsRead(tuple(reward for _, reward in found.values()), refused)


def _posted(evaluation: Evaluation, names: Mapping[str, RangeConfig]) -> dict[str, Any]:
    """The object that its giver could have posted. Raises RequestError."""
    name, value, (field, id_) = evaluation.name, evaluation.score, evaluation.about
    if value is None and evaluation.error is not None:
        raise RequestError("error_type: expected a score, got an evaluation that failed", param="error_type")
    if value is None and isinstance(evaluation.label, str) and isinstance(name, str) and name in names:
        value = names[name].labels.get(evaluation.label)
        if value is None:
            raise RequestError("label: expected one that [feedback.names] declares, got another", param="label")
    reason = next((text for text in (evaluation.reason, evaluation.label) if isinstance(text, str)), "")
    return {
        field: id_,
        # One without a name is none of the default's.
        "name": "" if name is None else name,
        "value": value,
        "reason": reason[:MAX_REASON_CHARS],
        "idempotency_key": evaluation.key or _key(evaluation),
    }


def _key(evaluation: Evaluation) -> str:
    field, id_ = evaluation.about
    target = canonical_call(str(id_)) or id_
    said = "\0".join(map(str, (field, target, evaluation.name, *evaluation.identity)))
    return f"otel-{hashlib.sha256(said.encode('utf-8', 'surrogatepass')).hexdigest()[:32]}"


def _evaluations(signal: Signal, items: Iterable[Item]) -> Iterator[Evaluation]:
    for _, _, item in items:
        for place in _of_span(item) if signal is TRACES else _of_log(item):
            for convention in _CONVENTIONS:
                yield from convention(place)


def _of_log(record: Any) -> Iterator[EvaluationSource]:
    attributes = _said(record.attributes, _WANTED)
    name = record.event_name or str(attributes.get(_EVENT_NAME_KEY, ""))
    if name == EVENT_NAME:
        at_ns = record.time_unix_nano or record.observed_time_unix_nano
        yield EvaluationSource(name, True, _hex(record.trace_id), _hex(record.span_id), attributes, at_ns=at_ns)


def _of_span(span: Any) -> Iterator[EvaluationSource]:
    attributes = _said(span.attributes, _WANTED)
    events = [event for event in span.events if event.name == EVENT_NAME]
    if not attributes and not events and span.name != EVENT_NAME:
        return
    links = tuple((_hex(link.trace_id), _said(link.attributes, ABOUT_KEYS)) for link in span.links[:_MAX_LINKS])
    trace_id, span_id = _hex(span.trace_id), _hex(span.span_id)
    own = EvaluationSource(span.name, False, trace_id, span_id, attributes, links=links, at_ns=span.end_time_unix_nano)
    yield own
    for event in events:
        said = _said(event.attributes, _WANTED)
        yield own._replace(
            name=event.name, is_event=True, attributes=said, around=attributes, at_ns=event.time_unix_nano
        )


def _said(pairs: Any, wanted: Container[str]) -> dict[str, Any]:
    """The wanted attributes, none of them long."""
    return {key: _short(value) for key, value in attributes_of(pairs, wanted).items()}


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    return _NO_TEXT if isinstance(value, list | dict) else value


def _hex(id_: bytes) -> str:
    return id_.hex() if any(id_) else ""
