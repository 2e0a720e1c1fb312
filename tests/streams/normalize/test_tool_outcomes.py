"""A table of 60 results of tools, half of them hard: what really happened against what the spans are read as."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.make import Streams, config, otlp, pairs, span, tool_span
from tests.streams.normalize.test_dialects import TRACE, read, tool
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import StreamsConfig
from tracegrad.streams.normalize.reading.judge_tool import ResultPart, ToolRule

TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1\nZeroDivisionError: division by zero'
RESULT = "gen_ai__tool__call__result"


def genai(result: object = None, **fields: Any) -> dict[str, Any]:
    """A tool's span by `gen_ai.*`; what is no text is JSON."""
    given = {} if result is None else {RESULT: result if isinstance(result, str) else json.dumps(result)}
    return {"gen_ai__operation__name": "execute_tool", **given, **fields}


def langchain(content: str, status: str = "success", **fields: Any) -> dict[str, Any]:
    """A tool's span by OpenInference, whose status is OK and whose ToolMessage says `success` unless it raised."""
    output = {"type": "tool", "data": {"content": content, "tool_call_id": "call_9", "status": status}}
    return {"openinference__span__kind": "TOOL", "status": 1, "output__value": json.dumps(output), **fields}


def mcp(text: str, *, is_error: bool | None) -> dict[str, Any]:
    """What an MCP server answers; `None` leaves the flag out."""
    flag = {} if is_error is None else {"isError": is_error}
    return genai({"content": [{"type": "text", "text": text}], **flag})


EASY_FAILED = {
    "status-error": genai("x", status=2),
    "raised": genai(status=2, exception=True),
    "error-type": genai("x", error__type="ValueError"),
    "text-error": genai("error: not whole"),
    "text-traceback": genai(TRACEBACK),
    "text-exception": genai("KeyError: 'x'"),
    "text-error-alone": genai("ERROR"),
    "langchain-status": langchain("it broke", "error"),
    "mcp-is-error": mcp("no such city", is_error=True),
    "json-error": genai({"error": "no such city"}),
    "json-success-false": genai({"success": False, "message": "out of range"}),
    "json-exit-code": genai({"stdout": "", "stderr": "x", "exit_code": 2}),
    "attribute-status": genai("x", gen_ai__tool__status="error"),
    "attribute-exit-code": genai("x", process__exit__code=1),
    "bracketed": genai("[ERROR] disk full"),
}
EASY_SUCCEEDED = {
    "unset": genai(),
    "ok": genai("42", status=1),
    "empty": genai(""),
    "number": genai("-17.5"),
    "json": genai({"temperature": 21, "unit": "C"}),
    "json-list": genai([{"name": "Ada"}, {"name": "Grace"}]),
    "mcp": mcp("21 degrees", is_error=False),
    "langchain": langchain("42"),
    "json-ok": genai({"ok": True, "result": 3}),
    "exit-0": genai({"exit_code": 0, "stdout": "done"}),
    "prose": genai("Paris is the capital of France."),
    "code": genai("def add(a, b):\n    return a + b"),
    "attribute-success": genai("x", gen_ai__tool__status="success"),
    "html": genai("<html><body><h1>Welcome</h1></body></html>"),
    "multiline": genai("a.txt\nb.txt\nc.txt"),
}
HARD_FAILED = {
    "dotted-exception": genai("sqlite3.OperationalError: no such table: users", status=1),
    "node-exception": genai('TypeError [ERR_INVALID_ARG_TYPE]: The "path" argument must be of type string'),
    "exit-127-text": genai("sh: 1: foo: not found\nexit code: 127"),
    "shell": genai("bash: line 1: jq: command not found"),
    "mcp-in-langchain": langchain(json.dumps({"content": [{"type": "text", "text": "x"}], "isError": True})),
    "mcp-text-only": mcp("Error executing tool search: 'NoneType' object is not subscriptable", is_error=False),
    "python-dict": genai("{'error': 'rate limit', 'retry_after': 3}"),
    "json-in-json": genai(json.dumps(json.dumps({"error": {"code": 7, "message": "quota"}}))),
    "json-rpc": genai({"jsonrpc": "2.0", "id": 4, "error": {"code": -32602, "message": "Unknown tool"}}),
    "http-body": genai({"status": 404, "error": "Not Found", "path": "/v1/x"}),
    "repr": genai("ValueError('could not convert string to float')"),
    "graphql": genai({"data": None, "errors": [{"message": "no field"}]}),
    "detail": genai({"detail": "Not authenticated: token is missing"}),
    "could-not": genai("Could not connect to the database after 3 tries."),
    "handled-exception": genai(exception=True),
}
HARD_SUCCEEDED = {
    "error-rates": genai("Error rates fell by 3 % in the second quarter, as the report says."),
    "error-null": genai({"error": None, "result": 4}),
    "error-empty": genai({"errors": [], "warnings": []}),
    "error-free": genai("error-free since 1987"),
    "no-errors": genai("0 errors, 2 warnings"),
    "figure": genai("Error: 0.0213"),
    "figure-json": genai({"model": "ridge", "error": 0.0213}),
    "job": genai({"id": 7, "state": "failed", "error": "out of memory"}),
    "lookup": genai({"job": "nightly", "status": "failed", "started": "02:00"}),
    "documentation": genai("exit code 127 means that the shell found no such command", status=1),
    "log": genai(f"12:00 start\n{TRACEBACK}\n12:01 restarted"),
    "novel": genai("Failure is an Option: a novel in three parts by H. Author, first published in 1998."),
    "page": genai({"title": "404 Not Found", "body": "The history of a status code", "url": "https://x"}),
    "exit-0-but-error": genai({"exit_code": 0, "stdout": "error.log\nmain.py"}),
    "swallowed": genai("42", exception=True, status=1),
}
TABLE = [
    (name, fields, truth)
    for cases, truth in (
        (EASY_FAILED, ToolStatus.FAILED),
        (EASY_SUCCEEDED, ToolStatus.SUCCEEDED),
        (HARD_FAILED, ToolStatus.FAILED),
        (HARD_SUCCEEDED, ToolStatus.SUCCEEDED),
    )
    for name, fields in cases.items()
]


def judged(fields: dict[str, Any]) -> ToolStatus:
    """How a span is read."""
    (fact,) = read(otlp(span(TRACE, 1, **fields)))
    return fact.tool_status


def test_sixty_results_none_misjudged_few_unknown() -> None:
    """No false success, no false failure; at most a quarter stays unknown, none of the easy ones."""
    found = {name: (judged(fields), truth) for name, fields, truth in TABLE}
    assert len(found) == 60
    unknown = [name for name, (status, _) in found.items() if status is ToolStatus.UNKNOWN]
    wrong = {name: one for name, one in found.items() if name not in unknown and one[0] is not one[1]}
    assert wrong == {}
    assert not {*EASY_FAILED, *EASY_SUCCEEDED} & set(unknown)
    assert len(unknown) <= 15, unknown


RESULTS = {
    ToolStatus.FAILED: {
        # Texts and fields that frameworks, shells and services write for nothing but a failure.
        "openai-agents": genai("An error occurred while running the tool. Please try again. Error: no such city"),
        "pydantic": genai("1 validation error for Trip\ncity\n  Input should be a valid string [type=string_type]"),
        "pydantic-ai": genai("2 validation errors:\n```json\n[]\n```"),
        "haystack": genai("Failed to invoke Tool `weather` with parameters {'city': 'x'}. Error: no such city"),
        "aws": genai("An error occurred (AccessDenied) when calling the GetObject operation: Access Denied"),
        "quoted": genai(' "error: syntax"', status=1),
        "jupyter": genai("-" * 75 + "\nNameError" + " " * 33 + "Traceback (most recent call last)\nCell In[1], line 1"),
        "jupyter-in-colours": genai("\x1b[0;31m" + "-" * 75 + "\x1b[0m\n\x1b[0;31mKeyError\x1b[0m   " + TRACEBACK),
        "returncode": genai("returncode: 1"),
        "returncode-last": genai("cat: x\nreturncode: 1"),
        "returncode-tag": genai("<returncode>1</returncode>\n<output>\ncat: x\n</output>"),
        "metadata-exit-code": genai({"output": "sh: foo", "metadata": {"exit_code": 127, "duration_seconds": 0.1}}),
        "metadata-exit-code-alone": genai({"metadata": {"exit_code": 127}}),
        "status-as-text": genai({"message": "Not Found", "status": "404"}),
        "github": genai({"message": "Not Found", "documentation_url": "https://docs.github.com/rest", "status": "404"}),
        # Fields of a report tell what the tool did.
        "text-false": genai({"success": "false"}),
        "rc": genai({"rc": 1, "out": ""}),
        "err": genai({"err": "no such channel"}),
        "subprocess": genai("Command '['ls', '-y']' returned non-zero exit status 2."),
        "envelope": mcp("Error: no such file", is_error=False),
    },
    ToolStatus.SUCCEEDED: {
        # What resembles a failure, and is no sign of one.
        "validated": genai("0 validation errors"),
        "returncode-0": genai("<returncode>0</returncode>\n<output>\na.txt\n</output>"),
        "metadata-exit-0": genai({"output": "a.txt", "metadata": {"exit_code": 0, "duration_seconds": 0.1}}),
        "room": genai({"message": "the room is free", "status": "vacant", "room": "404"}),
        "no-error-type": genai("42", error__type="None"),
        "no-status": genai("42", gen_ai__tool__status="running"),
    },
    ToolStatus.UNKNOWN: {
        # What may be a page of the world.
        "error-page": genai("<html>\r\n<head><title>502 Bad Gateway</title></head>\r\n<body></body></html>", status=1),
        "error-page-h1": genai("<!DOCTYPE html><html><body><h1>503 Service Unavailable</h1></body></html>"),
        "editor": genai("No replacement was performed, old_str `x` did not appear verbatim in /a.py."),
        # Strong signs that disagree.
        "attributes": genai("12:00 Error: x", gen_ai__tool__status="success", error__type="KeyError"),
        "text": genai("Error: x", gen_ai__tool__status="success"),
        "fields": genai({"error": "x", "success": True}),
        "exit-0": genai({"exit_code": 0, "stderr": "Error: x"}),
        # Words within a thing that was looked up: a text beside other fields may be the world's.
        "mail": genai({"from": "shop", "subject": "Order 7", "message": "Error: payment declined"}),
        "page": genai({"title": "Error: The Movie", "content": "Error: The Movie is a film."}),
    },
}


@pytest.mark.parametrize(
    ("fields", "expected"),
    [(fields, status) for status, cases in RESULTS.items() for fields in cases.values()],
    ids=[name for cases in RESULTS.values() for name in cases],
)
def test_a_result_is_judged_by_what_only_a_failure_or_a_success_says(
    fields: dict[str, Any], expected: ToolStatus
) -> None:
    """Each of a report's own signs; what disagrees, or may be the world's own words, is unknown."""
    assert judged(fields) is expected


def test_a_result_in_fields_of_the_span_is_read() -> None:
    """The conventions let instrumentations send results structured."""
    made = span(TRACE, 1, **genai())
    result = AnyValue(kvlist_value=KeyValueList(values=pairs({"isError": True, "content": "x"})))
    made.attributes.add(key=RESULT.replace("__", "."), value=result)
    assert read(otlp(made))[0].tool_status is ToolStatus.FAILED


def rules(*tools: dict[str, Any]) -> Any:
    """Settings with these `[[streams.tools]]`."""
    return config(tools=tuple(ToolRule(**one) for one in tools))


def test_each_tool_says_how_its_results_are_read() -> None:
    """A search engine's texts are the world's; a job's error is not the tool's; the first rule that matches is used."""
    settings = rules({"tool": "search*", "result": ResultPart.STRUCTURED}, {"tool": "job", "result": ResultPart.NONE})
    named = {"gen_ai__tool__name": "search_web"}
    assert tool(settings, **{RESULT: "Error: The Movie"}, **named) == (ToolStatus.SUCCEEDED, "span_status")
    assert tool(settings, **{RESULT: '{"error": "x"}'}, **named) == (ToolStatus.FAILED, "result")
    assert tool(settings, **{RESULT: '{"error": "x"}'}, gen_ai__tool__name="job")[0] is ToolStatus.SUCCEEDED
    assert tool(settings, **{RESULT: "Error: The Movie"}, gen_ai__tool__name="calc") == (ToolStatus.FAILED, "text")


def test_error_prefixes_are_a_tools_own() -> None:
    """Beginnings that only this tool uses."""
    settings = rules({"tool": "calc", "error_prefixes": ("fehler",)})
    assert tool(settings, **{RESULT: "Fehler 3"}, gen_ai__tool__name="calc") == (ToolStatus.FAILED, "text")
    assert tool(settings, **{RESULT: "Fehler 3"}, gen_ai__tool__name="other")[0] is ToolStatus.SUCCEEDED


@pytest.mark.parametrize(
    "result", ["{'a': " * 3000, "{'a': '\\z'}", "{" + "-" * 9000 + "1}", '{"a": 1e999}', "[[[[[[[1]]]]]]]"]
)
def test_odd_results_raise_nothing(result: str) -> None:
    """Whatever a tool returns, its span is read."""
    assert judged(genai(result)) is ToolStatus.SUCCEEDED


@pytest.mark.parametrize(
    ("scope", "code", "status"),
    [
        ("gcp.vertex.agent", 0, ToolStatus.UNKNOWN),
        ("agentscope", 1, ToolStatus.UNKNOWN),
        ("anything", 0, ToolStatus.SUCCEEDED),
        ("anything", 1, ToolStatus.SUCCEEDED),
    ],
)
def test_a_tool_that_returns_its_errors_is_unknown_where_its_result_is_not_told(
    scope: str, code: int, status: ToolStatus
) -> None:
    """ADK's do, and AgentScope's, whose spans end well all the same; other frameworks' tools raise."""
    request = ExportTraceServiceRequest.FromString(otlp(span(TRACE, 1, status=code, **genai())))
    request.resource_spans[0].scope_spans[0].scope.name = scope
    (fact,) = read(request.SerializeToString())
    assert fact.tool_status is status


def test_rules_come_from_plain_data() -> None:
    """As TOML gives them; another part of the result is refused."""
    given = {"tools": [{"tool": "search", "result": "structured"}]}
    assert msgspec.convert(given, StreamsConfig).tools == (ToolRule(tool="search", result=ResultPart.STRUCTURED),)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"tools": [{"tool": "search", "result": "words"}]}, StreamsConfig)


@pytest.mark.parametrize(
    "span_",
    [
        tool_span("ab" * 16, 1, gen_ai__tool__call__result=f"{{'status': 0x{'f' * 5000}}}"),
        tool_span("ab" * 16, 1, gen_ai__tool__call__result=f"{{0x{'f' * 5000}: 1}}"),
        span("ab" * 16, 1, agentops__task__output=f'{{"type":"reward","value":{"9" * 400}}}'),
    ],
    ids=["status", "key", "reward"],
)
def test_numbers_that_nobody_can_write_end_no_stage(span_: Span) -> None:
    """A reward beyond a float, a result beyond the digits that Python prints: read, and told as unknown."""
    run = Streams(config())
    run.feed(otlp(span_))
    assert len(run.values(Topic.EPISODE_EVENTS)) == 1
