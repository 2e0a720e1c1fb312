"""examples/history/from_phoenix.py: spans of a project become calls."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import pytest

from tests.compose.history.export_examples import ASKED, FUNCTION, OSLO, PROMPT, SAID, TOOL, calls, run
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.told import ChatMessage

Phoenix = Callable[[list[dict[str, Any]]], tuple[list[Any], str]]


def model_span(number: int, attributes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """An item of Phoenix's GET /v1/projects/{project}/spans.

    Its fields: Arize-ai/phoenix, src/phoenix/server/api/routers/v1/spans.py (`Span`, `span_search`: attributes are
    flat, `openinference.span.kind` stands in `span_kind`); its attributes: Arize-ai/openinference,
    spec/tool_calling.md. So Phoenix 20.3 answered for calls by openinference-instrumentation-openai 0.1.66.
    """
    item: dict[str, Any] = {
        "id": f"U3Bhbjox{number}",
        "name": "ChatCompletion",
        "context": {"trace_id": "a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4", "span_id": f"1a2b3c4d5e6f7a8{number}"},
        "span_kind": "LLM",
        "parent_id": None,
        "start_time": f"2024-01-01T12:00:0{number}+00:00",
        "end_time": f"2024-01-01T12:00:0{number}.500000+00:00",
        "status_code": "OK",
        "status_message": "",
        "attributes": {"llm.model_name": "gpt-4", "llm.token_count.prompt": 100} | attributes,
        "events": [],
    }
    return item | changes


OI_ASKED = {"llm.input_messages.0.message.role": "user", "llm.input_messages.0.message.content": "Weather in Oslo?"}
OI_TOOL = {"llm.tools.0.tool.json_schema": json.dumps(FUNCTION)}


def oi_call(prefix: str, place: int, **arguments: str) -> dict[str, str]:
    """A tool call; arguments that are `{}` are not written."""
    told = {f"{prefix}.message.tool_calls.{place}.tool_call.id": f"call_{place}"}
    function = {"name": "get_weather"} | ({"arguments": json.dumps(arguments)} if arguments else {})
    return told | {
        f"{prefix}.message.tool_calls.{place}.tool_call.function.{key}": value for key, value in function.items()
    }


OI_ANSWERED = {"llm.output_messages.0.message.role": "assistant"} | oi_call("llm.output_messages.0", 0, location="Oslo")
OI_SAID = {"llm.output_messages.0.message.role": "assistant", "llm.output_messages.0.message.content": "Sunny."}


@pytest.fixture
def phoenix(monkeypatch: pytest.MonkeyPatch) -> Phoenix:
    """Runs the example against a Phoenix that holds these spans, two to a page, the newest first."""

    def run_on(spans: list[dict[str, Any]]) -> tuple[list[Any], str]:
        def answer(request: httpx.Request) -> httpx.Response:
            asked = request.url.params
            assert request.url.path == "/v1/projects/shop/spans"
            assert (asked["start_time"], asked["end_time"]) == (
                "2024-01-01T00:00:00+00:00",
                "2024-01-02T00:00:00+00:00",
            )
            at = int(asked.get("cursor", "0"))
            following = str(at + 2) if at + 2 < len(spans) else None
            return httpx.Response(200, json={"data": spans[::-1][at : at + 2], "next_cursor": following})

        monkeypatch.setenv("PHOENIX_HOST", "http://phoenix")
        monkeypatch.setattr(httpx, "Client", partial(httpx.Client, transport=httpx.MockTransport(answer)))
        return run("from_phoenix.py", "shop", "2024-01-01")

    return run_on


def test_phoenix_spans_become_calls(phoenix: Phoenix) -> None:
    """Flat messages, parts, calls, results and tools; those around a call, and steps of other kinds, are none."""
    before = "llm.input_messages"
    later = OI_ASKED | {
        f"{before}.1.message.role": "assistant",
        **oi_call(f"{before}.1", 0, location="Oslo"),
        **oi_call(f"{before}.1", 1),
        f"{before}.2.message.role": "tool",
        f"{before}.2.message.content": "sunny",
        f"{before}.2.message.tool_call_id": "call_0",
        f"{before}.3.message.role": "tool",
        f"{before}.3.message.contents.0.message_content.type": "text",
        f"{before}.3.message.contents.0.message_content.text": "mild",
        f"{before}.3.message.tool_call_id": "call_1",
    }
    outer = model_span(1, OI_ASKED | OI_ANSWERED)
    inner = model_span(2, OI_ASKED | OI_ANSWERED | OI_TOOL, parent_id=outer["context"]["span_id"])
    step = model_span(3, {}, span_kind="TOOL")
    lines, said = phoenix([outer, inner, step, model_span(4, later | OI_SAID)])
    assert said == "2 no calls, or around another, 2 written"
    first, second = calls(lines)
    assert (first.call.messages, first.call.tools, first.call.answer) == ((PROMPT,), (TOOL,), ASKED)
    assert (first.call.lacks, second.call.lacks) == ((), ("no_tools_told",))
    assert second.call.messages == (
        PROMPT,
        ChatMessage(role="assistant", tool_calls=(OSLO, ToolCall(id="call_1", name="get_weather", arguments="{}"))),
        ChatMessage(role="tool", tool_call_id="call_0", content="sunny"),
        ChatMessage(role="tool", tool_call_id="call_1", content="mild"),
    )
    assert (second.call.tools, second.call.answer) == (None, SAID)
    assert (first.call.model, first.call.response_id, first.call.started_ns) == (
        "gpt-4",
        "1a2b3c4d5e6f7a82",
        1_704_110_402_000_000_000,
    )
    assert first.conversation == "a1b2c3d4e5f6a1b2c3d4e5f6a1b2c3d4"


@pytest.mark.parametrize(
    ("span", "reason"),
    [
        (model_span(1, OI_ASKED | OI_SAID, status_code="ERROR"), "without a prompt and one answer"),
        (model_span(1, OI_ASKED), "without a prompt and one answer"),
        (model_span(1, OI_SAID), "without a prompt and one answer"),
        (model_span(1, OI_ASKED | OI_SAID | {f"x{k}": 0 for k in range(121)}), "cut or hidden"),
        (model_span(1, OI_ASKED | OI_SAID | {next(iter(OI_ASKED)): "__REDACTED__"}), "cut or hidden"),
        (model_span(1, OI_SAID | {"llm.input_messages.0.message.role": "user"}), "in another form"),
        (
            model_span(1, OI_ASKED | OI_SAID | {"llm.input_messages.0.message.function_call_name": "f"}),
            "in another form",
        ),
        (model_span(1, OI_ASKED | OI_SAID | {"llm.tools.0.tool.json_schema": "{"}), "in another form"),
    ],
)
def test_what_phoenix_does_not_tell_is_counted(phoenix: Phoenix, span: dict[str, Any], reason: str) -> None:
    """By its reason; a span with as many attributes as an SDK holds has lost others."""
    assert phoenix([span]) == ([], f"1 {reason}")
