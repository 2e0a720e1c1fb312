"""Evaluations for tests: spans and log records that bear some, and the names that they may have."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.schemas.ids import new_call, new_tool_call
from tracegrad.schemas.records.rollouts import Reward

KEY = "5e" * 16
ANSWER, TOOL = new_call(KEY), new_tool_call(KEY)
TRACE, OTHER = "ab" * 16, "cd" * 16
NAMES = {
    "reward": RangeConfig(low=-1.0, high=1.0),
    "good": RangeConfig(low=0.0, high=1.0, labels={"pass": 1.0, "fail": 0.0, "PASSED": 1.0, "FAILED": 0.0}),
    "stars": RangeConfig(low=1.0, high=5.0),
}
EVENT = "gen_ai.evaluation.result"
GOOD = {"gen_ai.evaluation.name": "good", "gen_ai.evaluation.score.value": 0.5}
BY_ID = {**GOOD, "gen_ai.response.id": ANSWER}
Said = tuple[str, float, str | None, str | None, str]


def value_of(value: Any) -> AnyValue:
    """As a sender encodes it."""
    match value:
        case bool():
            return AnyValue(bool_value=value)
        case int():
            return AnyValue(int_value=value)
        case float():
            return AnyValue(double_value=value)
        case str():
            return AnyValue(string_value=value)
        case list():
            return AnyValue(array_value=ArrayValue(values=map(value_of, value)))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=attributes(value)))
    return AnyValue()


def attributes(said: dict[str, Any]) -> list[KeyValue]:
    """As a sender encodes them."""
    return [KeyValue(key=key, value=value_of(value)) for key, value in said.items()]


def log(said: dict[str, Any], *, name: str = EVENT, trace: str = TRACE, span: int = 7, at_ns: int = 1) -> LogRecord:
    """A log record within a span, or of none."""
    return LogRecord(
        event_name=name,
        attributes=attributes(said),
        trace_id=bytes.fromhex(trace),
        span_id=span.to_bytes(8, "big") if trace else b"",
        time_unix_nano=at_ns,
    )


def span(
    said: dict[str, Any],
    *,
    name: str = "step",
    events: Iterable[tuple[str, dict[str, Any]]] = (),
    links: Iterable[tuple[str, dict[str, Any]]] = (),
    number: int = 7,
    at_ns: int = 1,
) -> Span:
    """A span with events and links."""
    return Span(
        name=name,
        trace_id=bytes.fromhex(TRACE),
        span_id=number.to_bytes(8, "big"),
        end_time_unix_nano=at_ns,
        attributes=attributes(said),
        events=[Span.Event(name=called, attributes=attributes(inner), time_unix_nano=1) for called, inner in events],
        links=[Span.Link(trace_id=bytes.fromhex(to), attributes=attributes(inner)) for to, inner in links],
    )


def said(reward: Reward) -> Said:
    """(name, value, target, conversation, reason)."""
    return reward.name, reward.value or 0.0, reward.target, reward.conversation_key, reward.reason


def scored(value: Any, **more: Any) -> LogRecord:
    """An evaluation with this score."""
    return log({**GOOD, "gen_ai.evaluation.score.value": value, **more})
