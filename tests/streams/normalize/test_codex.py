"""Codex' `codex.tool_result` is a tool's execution, in a span's event or in a log record that belongs to no span."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.assemble.test_links import captured, close
from tests.streams.make import Streams, call, closed, config, event, otlp, pairs, reward, rollout, signed_by, span
from tests.streams.normalize.test_dialects import TRACE, read
from tracegrad.schemas.ids import new_tool_call
from tracegrad.schemas.records.calls import CallRecord, ToolCall
from tracegrad.schemas.records.facts import SpanKind, ToolStatus
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

KEY = "c1" * 16
ASKED = new_tool_call(KEY, lambda _: 7)
RESULT: dict[str, Any] = {"event.name": "codex.tool_result", "tool_name": "shell", "call_id": ASKED, "success": "true"}


def at_work(name: str = "shell", *, result: dict[str, Any] | None = None, **attributes: Any) -> Span:
    """A span as Rust's `tracing` exports it: its event is called by a line of code."""
    made = span(TRACE, 1, name, **attributes)
    if result is not None:
        made.events.add(name="event otel/src/events/session_telemetry.rs:1051", attributes=pairs(result))
    return made


def log(result: dict[str, Any], *, trace: str = "", parent: int = 0, **resource: Any) -> bytes:
    """A log record, as Codex exports it; without a trace exporter it is of no trace."""
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    of_resource.resource.attributes.extend(pairs({"service.name": "codex_exec", **resource}))
    record = of_resource.scope_logs.add().log_records.add(observed_time_unix_nano=10**9, attributes=pairs(result))
    record.trace_id, record.span_id = bytes.fromhex(trace), parent.to_bytes(8) if parent else b""
    value: bytes = request.SerializeToString()
    return value


@pytest.mark.parametrize(("success", "status"), [("true", ToolStatus.SUCCEEDED), ("false", ToolStatus.FAILED)])
def test_a_spans_event_tells_of_an_execution(success: str, status: ToolStatus) -> None:
    """On whatever span was at work, which ends well all the same."""
    dispatch: dict[str, Any] = {"tool_name": "shell", "call_id": ASKED, "aborted": False}
    for attributes in ({}, dispatch):
        (fact,) = read(otlp(at_work(result={**RESULT, "success": success}, **attributes)))
        assert (fact.kind, fact.dialect, fact.tool_name, fact.tool_call_id) == (SpanKind.TOOL, "codex", "shell", ASKED)
        assert (fact.tool_status, fact.tool_status_from) == (status, "attribute")


def test_a_dispatch_tells_only_that_it_was_aborted() -> None:
    """Without the event it is a place that knows the id; other spans with other events are none of Codex'."""
    (dispatch,) = read(otlp(at_work(tool_name="shell", call_id=ASKED, aborted=False)))
    assert (dispatch.kind, dispatch.tool_call_id, dispatch.tool_status) == (SpanKind.OTHER, ASKED, ToolStatus.UNKNOWN)
    (aborted,) = read(otlp(at_work(tool_name="shell", call_id=ASKED, aborted=True)))
    assert (aborted.kind, aborted.tool_status) == (SpanKind.TOOL, ToolStatus.FAILED)
    (other,) = read(otlp(at_work(result={"event.name": "codex.sse_event", "success": "false"})))
    assert (other.kind, other.dialect) == (SpanKind.OTHER, "none")


def asking(rollout_id: str | None = None) -> CallRecord:
    """A call whose answer asks for a command."""
    made = captured(KEY, "asks") if rollout_id is None else call("asks", rollout_id, [1], [2])
    return msgspec.structs.replace(made, tool_calls=(ToolCall(id=ASKED, name="shell", arguments="{}"),))


@pytest.mark.parametrize(
    ("said", "status"),
    [
        ({"success": "false", "output": "exit code: 1"}, ToolStatus.FAILED),
        ({"success": "true", "output": "a.txt", "duration_ms": "42"}, ToolStatus.SUCCEEDED),
        ({"success": "true", "output": "error: no such file"}, ToolStatus.FAILED),
    ],
    ids=["failed", "succeeded", "its-words-count"],
)
def test_a_log_record_of_no_trace_joins_the_call_that_asked(said: dict[str, Any], status: ToolStatus) -> None:
    """By the minted id alone, which carries the conversation's key; once, however often it is told."""
    run = Streams(config(select=SelectConfig(capture_all=True)))
    for value in (log({**RESULT, **said}), log({**RESULT, **said})):
        run.append(Topic.OTLP_LOGS, value)
    run.feed(asking())
    close(run)
    episode = run.episode
    ((tool,),) = (made.tools for made in episode.calls)
    assert (episode.num_tools, tool.tool_call_id, tool.status, tool.result) == (1, ASKED, status, said["output"])


def test_of_a_rollout_it_is_placed_by_its_resource() -> None:
    """Commands get their rollout in OTEL_RESOURCE_ATTRIBUTES."""
    run, own = Streams(config()), rollout(1)
    made = asking(own)
    identity: dict[str, Any] = {"rollout.id": own, "attempt.id": "a001"}
    value = log(RESULT, **identity)
    run.append(Topic.OTLP_LOGS, value, headers=signed_by(config().run_hash))
    run.feed(made, closed(own, [made]), reward(own), event(own))
    episode = run.episode
    assert [tool.tool_call_id for tool in episode.calls[0].tools] == [ASKED]


def test_the_log_record_and_the_event_are_one_execution() -> None:
    """Where both are exported the record lies within the span."""
    run = Streams(config(select=SelectConfig(capture_all=True)))
    run.append(Topic.OTLP_LOGS, log({**RESULT, "output": "a.txt"}, trace=TRACE, parent=1))
    run.feed(otlp(at_work(result=RESULT)), asking())
    close(run)
    episode = run.episode
    ((tool,),) = (made.tools for made in episode.calls)
    assert (episode.num_tools, tool.status, tool.result) == (1, ToolStatus.SUCCEEDED, "a.txt")


@pytest.mark.parametrize(
    "odd", [{"call_id": 7}, {"call_id": ""}, {"tool_name": 1}, {"duration_ms": "x"}, {"success": 2}]
)
def test_odd_values_stop_nothing(odd: dict[str, Any]) -> None:
    """What names no tool or no id is no execution."""
    run = Streams(config(select=SelectConfig(capture_all=True)))
    run.append(Topic.OTLP_LOGS, log({**RESULT, **odd}))
    assert not run.values(Topic.DEAD_LETTERS)
    read(otlp(at_work(result={**RESULT, **odd})))
