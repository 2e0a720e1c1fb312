"""`up` says why calls and spans of one agent lie in episodes of their own, and says nothing while that is no fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.make import TOPICS as OF_STREAMS
from tests.streams.make import Streams, agent_span, call, config, otlp
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.terminal import ArrivalLines
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

ONE, OTHER = "77" * 16, "88" * 16


def said(*, spans: str | None, calls: list[CallRecord]) -> list[str]:
    """What `up` says of it once all episodes have closed."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    if spans is not None:
        streams.append(Topic.OTLP_SPANS, otlp(agent_span(spans, 1, "helper"), service="shop"))
    streams.feed(*calls)
    streams.tick(0.0, 600.0, 1_200.0)
    state, lines = RunState(OF_STREAMS, RunHash("0123abcd"), "policy"), ArrivalLines()

    def fold(topic: Topic, value: bytes) -> None:
        state.fold(Record(topic=OF_STREAMS.name(topic), partition=0, offset=0, key=None, value=value), 0.0)

    for value in streams.values(Topic.EPISODES):
        fold(Topic.EPISODES, value)
    for made in calls:
        fold(Topic.LLM_CALLS, LLM_CALLS.encode(made))
    return [event.text for event in lines.news(state, 0.0) if event.kind == "unjoined"]


def test_calls_without_traceparent_name_the_instrumentor() -> None:
    """As of openai >= 3, whose HTTP client is another."""
    (text,) = said(spans=ONE, calls=[call("a", None, trace_id=OTHER)])
    assert "HTTPX2ClientInstrumentor" in text and "of shop" in text


def test_calls_of_traces_without_spans_name_the_second_process() -> None:
    """The call says whose child it is, and no span of that trace comes."""
    (text,) = said(spans=ONE, calls=[call("a", None, trace_id=OTHER, parent_span_id="0" * 15 + "5")])
    assert "second process" in text and "HTTPX2" not in text


@pytest.mark.parametrize(
    "given",
    [
        {"spans": ONE, "calls": [call("a", None, trace_id=ONE, parent_span_id="0" * 15 + "1")]},
        {"spans": None, "calls": [call("a", None, trace_id=OTHER)]},
        {"spans": ONE, "calls": []},
    ],
    ids=["joined", "calls alone", "spans alone"],
)
def test_what_is_no_split_is_not_said(given: dict[str, Any]) -> None:
    """An agent without spans is told so by another line."""
    assert said(**given) == []
