"""How much of a recording is understood: its raw records through the real folds, counted against the truth.

In: a Recording. Out: a Score. Invariant: nothing but the folds reads a span for the counts of what was found; whether a
call has a span at all is read from the raw spans, by no dialect: some span repeats an id of its answer, or its request
came from within a span of the framework. That of the HTTP client alone tells nothing and counts for neither.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.frameworks.fixture import Recording
from tests.frameworks.scenario import plain_name
from tests.streams.make import Streams, config, event, signed_by
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig


class Score(msgspec.Struct, frozen=True, kw_only=True):
    """Counts over one recording."""

    calls: int
    with_span: int
    joined: int
    joined_with_span: int
    agents: int
    """Calls that an agent made."""
    agents_right: int
    agents_wrong: int
    """A wrong name, or a name for a call that no agent made."""
    tools: int
    tools_right: int
    """At the call that asked, under its id, with the true outcome."""
    tools_unknown: int
    """Likewise, but nothing told how it ended."""
    tools_wrong: int
    conversations: int
    episodes: int
    """That hold calls."""
    mixed: int
    """Episodes with calls of several conversations."""
    lost: int
    """Calls in no episode."""


def episodes_of(recording: Recording) -> list[Episode]:
    """What the folds make of it."""
    rules = config(run_hash=recording.run_hash, select=SelectConfig(capture_all=True))
    streams = Streams(rules)
    for record in recording.records:
        streams.append(Topic(record.topic), record.value, record.key, headers=signed_by(recording.run_hash))
    if recording.rollout_id is not None:
        streams.feed(event(recording.rollout_id, attempt_id=recording.attempt_id, spans_exported=None, host=None))
    streams.tick(0.0, 1e4, 2e4, 3e4)
    return streams.episodes


def score(recording: Recording) -> Score:
    """The counts."""
    episodes = [episode for episode in episodes_of(recording) if episode.calls]
    found = {call.call_id: call for episode in episodes for call in episode.calls}
    trips = {call.call_id: call.trip for call in recording.calls}
    spanned, within = with_span(recording)
    joined = {name for name, call in found.items() if call.joined_by not in ("none", "traceparent")}
    joined |= {name for name, call in found.items() if call.joined_by == "traceparent" and name in within}
    agents = [(call.agent, found[call.call_id].agent) for call in recording.calls if call.call_id in found]
    return Score(
        calls=len(recording.calls),
        with_span=len(spanned),
        joined=len(joined),
        joined_with_span=len(joined & spanned),
        agents=sum(call.agent is not None for call in recording.calls),
        agents_right=sum(true is not None and true == told for true, told in agents),
        agents_wrong=sum(told is not None and true != told for true, told in agents),
        conversations=len(set(trips.values())),
        episodes=len(episodes),
        mixed=sum(len({trips[call.call_id] for call in episode.calls}) > 1 for episode in episodes),
        lost=sum(call.call_id not in found for call in recording.calls),
        **_tools(recording, episodes),
    )


def _tools(recording: Recording, episodes: Iterable[Episode]) -> dict[str, int]:
    true = {one.tool_call_id: one for one in recording.executed}
    ours = {plain_name(one.tool) for one in recording.executed}
    right, unknown, wrong = set(), set(), 0
    for episode in episodes:
        for call in episode.calls:
            for tool in call.tools:
                meant = true.get(tool.tool_call_id or "")
                if meant is None and plain_name(tool.name) not in ours:
                    continue  # a framework's own tool (a hand-off, a final answer), which runs no code of the agent's
                if meant is None or meant.call_id != call.call_id or meant.tool != tool.name:
                    wrong += 1
                elif tool.status is ToolStatus.UNKNOWN:
                    unknown.add(tool.tool_call_id)
                elif (tool.status is ToolStatus.FAILED) != meant.failed:
                    wrong += 1
                else:
                    right.add(tool.tool_call_id)
    return {
        "tools": len(true),
        "tools_right": len(right),
        "tools_unknown": len(unknown - right),
        "tools_wrong": wrong,
    }


_HTTP = ("opentelemetry.instrumentation.httpx", "opentelemetry.instrumentation.aiohttp")


def with_span(recording: Recording) -> tuple[set[str], set[str]]:
    """(calls of which some span tells, whatever its dialect; those whose request came from within one)."""
    records = [record for record in recording.records if record.topic == Topic.OTLP_SPANS]
    requests = [ExportTraceServiceRequest.FromString(record.value) for record in records]
    spans = [
        (span, scope.scope.name)
        for request in requests
        for resource in request.resource_spans
        for scope in resource.scope_spans
        for span in scope.spans
    ]
    places = {(span.trace_id.hex(), span.span_id.hex()): (span.parent_span_id.hex(), scope) for span, scope in spans}
    told = b"\0".join(span.SerializeToString() for span, _ in spans)
    found, within = set(), set()
    for record in recording.records:
        call = LLM_CALLS.decode(record.value) if record.topic == Topic.LLM_CALLS else None
        if isinstance(call, CallRecord):
            if _is_within(call, places):
                within.add(str(call.call_id))
            if any(one.encode() in told for one in (call.call_id, *(tool.id for tool in call.tool_calls))):
                found.add(str(call.call_id))
    return found | within, within


def _is_within(call: CallRecord, places: Mapping[tuple[str, str], tuple[str, str]]) -> bool:
    """Whether a span that is no HTTP client's stands at or above the one that the request named."""
    trace, step = call.trace_id or "", call.parent_span_id or ""
    while (trace, step) in places:
        parent, scope = places[trace, step]
        if not scope.startswith(_HTTP):
            return True
        step = parent
    return False
