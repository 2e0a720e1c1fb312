"""When an episode that no runner started is over: its work is, and then it is silent; never while a step lasts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from tests.streams.assemble.join.test_join import fact
from tests.streams.make import Streams, call, config, otlp, span
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.metrics import PROPOSALS_VOID
from tracegrad.schemas.records.calls import CallEnded, CallOpen, CallRecord
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Close, Fact, SpanFact
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.open_episode import OpenEpisode
from tracegrad.streams.config import SelectConfig, ServiceConfig

TRACE = "11" * 16


class Sent(SpanExporter):
    """Posts each span as it ends to the streams."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def export(self, spans: Any) -> SpanExportResult:
        """One request."""
        ended: list[ReadableSpan] = list(spans)
        self._streams.feed(encode_spans(ended).SerializeToString())
        return SpanExportResult.SUCCESS


def captured(**changes: Any) -> Streams:
    """A run that takes every captured episode."""
    return Streams(config(select=SelectConfig(capture_all=True), **changes))


def in_trace(name: str, **changes: Any) -> CallRecord:
    """A captured call."""
    return call(name, None, [1], [2], trace_id=TRACE, **changes)


@pytest.mark.parametrize("is_remote", [False, True], ids=["root", "called_from_elsewhere"])
def test_a_step_longer_than_the_silence_cuts_nothing(is_remote: bool) -> None:
    """Spans of the real SDK: the root ends after a tool that took 11 s; a parent of another process is not awaited."""
    streams = captured()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Sent(streams)))
    tracer = provider.get_tracer("agent")
    caller = SpanContext(int(TRACE, 16), 5, is_remote=True, trace_flags=TraceFlags(1))
    with tracer.start_as_current_span(
        "invoke_agent", set_span_in_context(NonRecordingSpan(caller)) if is_remote else None
    ):
        for step in range(2):
            with tracer.start_as_current_span("execute_tool", attributes={"gen_ai.operation.name": "execute_tool"}):
                pass
            for second in range(12):
                streams.tick(20 * step + second)
    assert streams.episodes == []
    for second in (40, 49, 50):
        assert streams.episodes == []
        streams.tick(second)
    episode = streams.episode
    assert (episode.closed_by, episode.num_spans) == ("idle", 3)


def test_a_call_in_flight_is_no_silence() -> None:
    """Until its record comes, or it ended without one."""
    opened = CallOpen(call_id=CallId(in_trace("b").call_id), trace_id=TRACE)
    for end in (in_trace("b"), CallEnded(call_id=opened.call_id, trace_id=TRACE, reason="UnavailableError")):
        streams = captured()
        streams.feed(in_trace("a"), opened)
        streams.tick(*range(0, 100, 5))
        assert streams.episodes == []
        streams.feed(end)
        streams.tick(100, 110)
        episode = streams.episode
        assert (episode.closed_by, len(episode.calls)) == ("idle", 1 + isinstance(end, CallRecord))


def test_what_never_ends_closes_at_its_deadline() -> None:
    """An agent that was killed: its root span and its call's end are lost. Activity does not move the deadline."""
    streams = captured(captured_deadline_s=100.0)
    streams.feed(in_trace("a"), CallOpen(call_id=CallId("lost"), trace_id=TRACE))
    for second in range(0, 100, 5):
        streams.tick(second)
        streams.feed(otlp(span(TRACE, second + 1)))
    assert streams.episodes == []
    streams.tick(100)
    episode = streams.episode
    assert (episode.closed_by, episode.num_spans) == ("deadline", 20)


def test_a_service_has_times_of_its_own() -> None:
    """The longest that one of the episode's services asks for; others keep the run's."""
    services = {"bot": ServiceConfig(idle_s=60.0), "slow": ServiceConfig(idle_s=30.0, deadline_s=40.0)}
    for names, seconds in ((["bot", "slow"], 60), (["slow"], 30), (["other"], 10), (["other", "slow"], 30)):
        streams = captured(services=services, captured_deadline_s=1000.0)
        streams.feed(in_trace("a"), *(otlp(span(TRACE, n + 1), service=name) for n, name in enumerate(names)))
        streams.tick(0, seconds - 1)
        assert len(streams.episodes) == (names == ["bot", "slow"])
        streams.tick(seconds)
        assert len(streams.episodes) == 1


def test_silence_that_was_none_is_void() -> None:
    """A worker that lagged proposed it; what came lies before the proposal, so the episode goes on, and closes once."""
    streams = captured()
    streams.feed(in_trace("a"), in_trace("b"))
    streams.append(Topic.EPISODE_EVENTS, EPISODE_EVENTS.encode(Close(episode_id=TRACE, reason="idle", num_records=1)))
    assert streams.episodes == []
    assert streams.assemble.metrics.value(PROPOSALS_VOID) == 1
    streams.tick(0, 10)
    assert [len(episode.calls) for episode in streams.episodes] == [2]


FACTS = st.lists(
    st.builds(
        lambda n, parent, is_local: fact(f"s{n}", parent=parent, at=n, parent_is_local=is_local),
        st.integers(0, 4),
        st.sampled_from(["s0", "s1", "s2", "s3", "s4", "s5", None]),
        st.booleans(),
    ),
    max_size=5,
    unique_by=lambda one: one.span_id,
)


@pytest.mark.slow
@given(FACTS, st.randoms())
def test_order_and_repetition_change_nothing(spans: list[SpanFact], random: Any) -> None:
    """It is at work if a parent of the same process is missing, whatever came first or twice."""
    here = {one.span_id for one in spans}
    shuffled: list[Fact] = random.sample(spans * 2, 2 * len(spans))
    episode = OpenEpisode(TRACE, None, partition=0)
    for one in shuffled:
        episode.add_fact(one, ())
    awaited = {one.parent_span_id for one in spans if one.parent_is_local and one.parent_span_id} - here
    assert episode.is_at_work == bool(awaited)
