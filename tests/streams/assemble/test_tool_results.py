"""An execution bears what rules may ask of it, so that they can be applied to `episodes` without their spans."""

from __future__ import annotations

from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.make import Streams, call, closed, config, event, llm_span, otlp, reward, rollout, span, tool_span
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.episodes import EpisodeCall, ToolExecution

OWN = rollout(1)
TRACE = OWN + "a001"


def calls_of(*spans: Span, **changes: Any) -> tuple[EpisodeCall, ...]:
    """The calls of an attempt that asks for one tool, twice, with these spans."""
    asked = [ToolCall(id=f"call_{name}", name="calc", arguments=text) for name, text in (("1", "{}"), ("2", "{ }"))]
    made = [
        call(f"c{number}", OWN, trace_id=TRACE, tool_calls=(one,), started_at_ns=5, ended_at_ns=15, **changes)
        for number, one in enumerate(asked)
    ]
    streams = Streams(config())
    models = [llm_span(TRACE, 50 + number, f"c{number}", at=number + 1) for number in range(2)]
    streams.feed(*made, otlp(*models, *spans, is_counted=True), closed(OWN, made), reward(OWN))
    streams.feed(event(OWN, spans_exported=2 + len(spans), spans_marked=True))
    return streams.episode.calls


def execution(*below: Span, **fields: Any) -> ToolExecution:
    """Of the first request: its span, and those below it."""
    tool = tool_span(TRACE, 1, at=10, gen_ai__tool__call__id="call_1", **fields)
    (made,) = calls_of(tool, *below)[0].tools
    return made


def test_an_execution_bears_result_duration_and_error() -> None:
    """As its span tells them."""
    made = execution(gen_ai__tool__call__result="42", error__type="ValueError", http__status_code=404)
    assert (made.result, made.is_result_cut, made.duration_s) == ("42", False, 1e-9)
    assert (made.error_type, made.http_status) == ("ValueError", 404)


def test_a_long_result_is_marked_as_cut() -> None:
    """Down to the episode."""
    made = execution(gen_ai__tool__call__result="x" * 5_000)
    assert (made.result, made.is_result_cut) == ("x" * 2_000, True)


def test_the_last_http_request_within_a_tool_tells_its_status() -> None:
    """Behind a wrapper, after a retry; not one that an agent within it made."""
    agent = span(TRACE, 5, parent=1, gen_ai__operation__name="invoke_agent", gen_ai__agent__name="sub")
    of_agent = span(TRACE, 6, parent=5, at=90, http__response__status_code=418)
    first = span(TRACE, 2, parent=1, at=20, http__response__status_code=503)
    wrapper, last = span(TRACE, 3, parent=1), span(TRACE, 4, parent=3, at=30, http__response__status_code=200)
    made = execution(first, wrapper, last, agent, of_agent)
    assert (made.http_status, made.result) == (200, None)


def test_the_result_is_that_of_any_span_of_the_execution() -> None:
    """A transport within the framework's span holds none, or alone has it."""
    inner = tool_span(TRACE, 2, parent=1, at=10)
    assert execution(inner, gen_ai__tool__call__result="42").result == "42"
    inner = tool_span(TRACE, 2, parent=1, at=10, gen_ai__tool__call__result="43")
    assert execution(inner).result == "43"


def test_a_call_bears_its_times_and_what_it_asks_again() -> None:
    """Equal arguments, written otherwise."""
    first, second = calls_of()
    assert (first.started_at_ns, first.ended_at_ns) == (5, 15)
    assert (first.repeated, second.repeated) == ((), ("call_2",))
    assert first.unparsable == second.unparsable == ()
