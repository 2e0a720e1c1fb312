"""What somebody's spans hold is counted, and nothing is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord, ResourceLogs, ScopeLogs
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.compose.history.exporting import framed, json_lines
from tests.streams.make import agent_span, otlp, tool_span
from tests.streams.normalize.rows_of_told_calls import GENAI, made
from tests.streams.normalize.test_dialects import TRACE
from tests.streams.normalize.test_told_calls import any_value
from tracegrad.compose.cli import app
from tracegrad.compose.history import census as module
from tracegrad.compose.history.census import Census
from tracegrad.schemas.otlp.read import decode_spans
from tracegrad.schemas.otlp.signal import LOGS, TRACES
from tracegrad.streams.normalize.told.chat_messages import read_tools

OTHER_TRACE = "ab" * 16


def of_scope(scope: str, *spans: Span, service: str = "shop") -> bytes:
    """A request of one instrumentation."""
    request = decode_spans(otlp(*spans, service=service))
    request.resource_spans[0].scope_spans[0].scope.name = scope
    value: bytes = request.SerializeToString()
    return value


def details(**told: Any) -> bytes:
    """A request of the log event that tells the call of `made`."""
    record = LogRecord(trace_id=bytes.fromhex(TRACE), span_id=(1).to_bytes(8), time_unix_nano=1)
    record.event_name = "gen_ai.client.inference.operation.details"
    record.attributes.extend(any_value(told).kvlist_value.values)
    scopes = [ScopeLogs(log_records=[record])]
    value: bytes = ExportLogsServiceRequest(resource_logs=[ResourceLogs(scope_logs=scopes)]).SerializeToString()
    return value


WHOLE = of_scope("anthropic", made({"gen_ai.operation.name": "chat", **GENAI}))
BARE = of_scope("openai_v2", made({"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}))
TREE = of_scope("hand", agent_span(OTHER_TRACE, 1, "planner"), tool_span(OTHER_TRACE, 2, "search", parent=1))


def counted(*requests: bytes) -> dict[str, Any]:
    """What machines are told."""
    census = Census()
    for request in requests:
        census.add(LOGS if request is EVENT else TRACES, request)
    fields, _ = census.report()
    return fields


EVENT = details(**GENAI)


def test_models_and_tellers_are_told_with_what_they_tell() -> None:
    """Each model's span by its model and its instrumentation, with all that it lacks; tools by their agent."""
    found = counted(WHOLE, BARE, TREE)
    assert (found["spans"], found["traces"]) == (4, 2)
    whole = {"model_spans": 1, "with_content": 1, "with_tools": 1}
    assert found["models"] == {"m": {"model_spans": 2, "with_content": 1, "with_tools": 1}}
    assert found["told_by"] == {"anthropic": whole, "openai_v2": {"model_spans": 1}}
    assert set(found["lacks"]) == {"no_prompt_told", "no_answer_told", "no_tools_told"}
    assert found["services"] == {"shop": {"spans": 4}}
    assert found["agents"]["planner"] == {"spans": 1}
    assert found["tools"] == {"": {"weather": 1, "search": 1}}
    assert [one["function"]["name"] for one in found["tools_file"]["*"]] == ["weather", "search"]
    assert read_tools(found["tools_file"]["*"], is_raw=True) is None, "it is no tools file before it is filled in"


@pytest.mark.parametrize("requests", [(BARE, EVENT), (EVENT, BARE)], ids=["span-first", "event-first"])
def test_log_events_tell_what_their_span_does_not(requests: tuple[bytes, ...]) -> None:
    """In whatever order they come."""
    assert counted(*requests)["models"] == {"m": {"model_spans": 1, "with_content": 1, "with_tools": 1}}


def test_what_cannot_be_read_is_told_by_its_reason() -> None:
    """A request, and an item of one."""
    bad = of_scope("hand", agent_span(OTHER_TRACE, 1, "planner"), Span(trace_id=b"short", span_id=b"12345678"))
    found = counted(b"\x0a\x02", bad)
    assert found["refused"] == {"undecodable": {"items": 1}, "bad_trace_id": {"items": 1}}
    assert found["spans"] == 1


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes beyond is told as such, and each span is counted."""
    for bound, value in (("_MAX_TRACES", 2), ("_MAX_NAMES", 2), ("_MAX_CALLS", 1)):
        monkeypatch.setattr(module, bound, value)
    census = Census()
    for number in range(4):
        call = made({"gen_ai.operation.name": "chat", "gen_ai.request.model": f"m{number}"})
        call.trace_id = (number + 1).to_bytes(16)
        call.span_id = (number + 1).to_bytes(8)
        census.add(TRACES, of_scope("hand", call))
    found, lines = census.report()
    assert found["models"] == {"m0": {"model_spans": 1}, "m1": {"model_spans": 1}, "(others)": {"model_spans": 2}}
    assert lines[0] == "4 spans in at least 2 traces"


def test_a_dry_run_of_files_shows_it_and_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """For people and for machines; where there is no time for all, it says so."""
    (files := tmp_path / "files").mkdir()
    (files / "a.json").write_bytes(json_lines([WHOLE, BARE]) + b"{broken\n")
    (files / "b.pb").write_bytes(framed([TREE]))
    given = ["replay", "--from", f"files:{files}", "--into", "x", "--runs-dir", str(tmp_path / "runs")]

    def look(*more: str) -> str:
        assert not app([*given, *more], standalone_mode=False)
        return capsys.readouterr().out

    told = look("--dry-run")
    assert "4 spans in 2 traces" in told
    assert "m: 2 models' spans, 1 with prompt and answer, 1 with tools" in told
    assert "undecodable: " in told and told.endswith("nothing was written\n")
    assert "the first item that is `undecodable`: a.json, item 3: expected" in told, "where a user looks for it"
    found = json.loads(look("--dry-run", "--json").splitlines()[-1])
    assert (found["kind"], found["requests"], found["spans"]) == ("census", 4, 4)
    monkeypatch.setattr(module, "_LOOK_S", -1.0)
    assert "these are the first 0 requests; --dry-run=full looks at all" in look("--dry-run")
    assert "4 spans in 2 traces" in look("--dry-run=full")
    assert not (tmp_path / "runs").exists()
