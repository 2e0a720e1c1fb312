"""`up` says why calls and spans of one agent lie in episodes of their own, and says nothing while that is no fault."""

from __future__ import annotations

from typing import Any

import pytest

from tests.consumers.views.folding import new_state, tell
from tests.streams.make import Streams, agent_span, call, config, otlp
from tracegrad.consumers.views.terminal import ArrivalLines
from tracegrad.schemas.records.calls import CallRecord
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
    state = tell(new_state(), Topic.EPISODES, *streams.values(Topic.EPISODES))
    lines = ArrivalLines()
    tell(state, Topic.LLM_CALLS, *calls)
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
