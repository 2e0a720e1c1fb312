"""OpenAI Responses: tools of every kind are functions to the policy, and their calls come and go in their own form."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.edge import STARTED, finished
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig
from tests.producers.llm_gateway.strictly import parsed_as, server_sent
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, NamedTool
from tracegrad.producers.llm_gateway.api.events import Event, ToolCalled
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES
from tracegrad.schemas.metrics import TOOLS_LEFT_OUT
from tracegrad.schemas.records.calls import ToolCall

PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/responses"
FUNCTION = {"type": "function", "name": "spawn", "parameters": {"type": "object"}}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}
TOOLS: list[dict[str, Any]] = [
    FUNCTION,
    {"type": "custom", "name": "apply_patch", "description": "Edits files.", "format": GRAMMAR},
    {
        "type": "namespace",
        "name": "agents",
        "description": "d",
        "tools": [FUNCTION, {"type": "custom", "name": "note"}],
    },
    {"type": "tool_search", "execution": "client", "description": "Finds tools.", "parameters": {"type": "object"}},
    {"type": "web_search", "external_web_access": True},
    {"type": "web_search_preview_2025_03_11"},
    {"type": "image_generation"},
    {"type": "mcp", "server_label": "s"},
    {"type": "tool_search"},
]
PATCH = "*** Begin Patch\n\u00e9"
CALLS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "function": ("spawn", {"a": 1}, {"type": "function_call", "name": "spawn", "arguments": '{"a": 1}'}),
    "custom": (
        "apply_patch",
        {"input": PATCH},
        {"type": "custom_tool_call", "name": "apply_patch", "input": PATCH},
    ),
    "namespace": (
        "agents__spawn",
        {},
        {"type": "function_call", "namespace": "agents", "name": "spawn", "arguments": "{}"},
    ),
    "custom-in-namespace": (
        "agents__note",
        {"input": "x"},
        {"type": "custom_tool_call", "namespace": "agents", "name": "note", "input": "x"},
    ),
    "tool-search": (
        "tool_search",
        {"query": "notes"},
        {"type": "tool_search_call", "execution": "client", "arguments": {"query": "notes"}},
    ),
}
RESULTS = {"custom_tool_call": "custom_tool_call_output", "tool_search_call": "tool_search_output"}


def read(items: Any = "hello", **fields: Any) -> ChatRequest:
    """A request with these tools."""
    return RESPONSES.read({"model": "m", "input": items, "tools": TOOLS} | fields)


def test_tools_of_all_kinds_are_functions_and_those_of_openai_are_left_out() -> None:
    """Named and shaped as vLLM does; a grammar is told in words, for no other keeps to it."""
    request = read()
    tools = {tool.name: tool for tool in request.tools or ()}
    assert [*tools] == ["spawn", "apply_patch", "agents__spawn", "agents__note", "tool_search"]
    told, schema = tools["apply_patch"].description or "", tools["apply_patch"].parameters or {}
    assert told.startswith("Edits files.") and "lark" in told and "start: /.+/" in told
    assert schema["required"] == ["input"]
    assert request.left_out == ("web_search", "web_search_preview", "image_generation", "mcp", "tool_search")
    assert read(tools=[{"type": "web_search"}]).tools is None


@pytest.mark.parametrize(("name", "arguments", "item"), CALLS.values(), ids=CALLS)
async def test_a_call_goes_out_in_its_own_form_and_comes_back_as_it_was_sampled(
    r: Rig, name: str, arguments: dict[str, Any], item: dict[str, Any]
) -> None:
    """The next prompt extends; the client has its item, whole and streamed."""
    body: dict[str, Any] = {"model": "policy", "store": False, "tools": TOOLS}
    items: list[Any] = [{"role": "user", "content": "go"}]
    r.engine.replies.extend([Reply(tool_call_text(name, **arguments)), Reply("done")])
    status, answer = await r.post(PATH, {**body, "input": items})
    (made,) = answer["output"]
    (call,) = r.calls()
    assert status == 200 and made == made | item | {"status": "completed", "call_id": call.tool_calls[0].id}
    kind = RESULTS.get(made["type"], "function_call_output")
    result = {"type": kind, "call_id": made["call_id"], "output": "ok", "tools": []}
    assert (await r.post(PATH, {**body, "input": [*items, made, result]}))[0] == 200
    assert [call.splice.kind for call in r.calls()] == ["first", "extended"]
    assert r.gateway.parts.metrics.value(TOOLS_LEFT_OUT, "web_search") == 2


@pytest.mark.parametrize(("name", "arguments", "item"), CALLS.values(), ids=CALLS)
def test_its_stream_put_together_is_the_item(name: str, arguments: dict[str, Any], item: dict[str, Any]) -> None:
    """In events that OpenAI's own client knows: input of a custom tool has its own."""
    call = ToolCall(id="call_1", name=name, arguments=json.dumps(arguments))
    writer = RESPONSES.write(read())
    events: list[Event] = [STARTED, ToolCalled(call), finished()]
    sent = server_sent(b"".join(chunk for event in events for chunk in writer.chunks(event)))
    steps = [json.loads(data) for _, data in sent]
    whole = RESPONSES.write(read()).whole(events)
    if item["type"] != "custom_tool_call":
        # Of these the SDK's types know no status, which OpenAI sends.
        for step in steps:
            parsed_as(ResponseStreamEvent, json.dumps(step))
        parsed_as(Response, whole)
    done = [step["item"] for step in steps if step["type"] == "response.output_item.done"]
    assert done == json.loads(whole)["output"]
    pieces = [step["delta"] for step in steps if step["type"].endswith(".delta")]
    text = item.get("input") or (item["type"] == "function_call" and item["arguments"])
    assert pieces == ([text] if text else [])


def test_what_the_history_holds_is_rendered() -> None:
    """Calls and results of every kind; what OpenAI ran is left out, also within an answer."""
    request = read(
        [
            {"role": "user", "content": "go"},
            {"type": "custom_tool_call", "call_id": "c1", "name": "apply_patch", "input": "p"},
            {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "x"},
            },
            {"type": "function_call", "call_id": "c3", "namespace": "agents", "name": "spawn", "arguments": "{}"},
            {"type": "tool_search_call", "call_id": "c4", "execution": "client", "arguments": {"query": "q"}},
            {"type": "custom_tool_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "done"}]},
            {"type": "function_call_output", "call_id": "c3", "output": "agent 1"},
            {"type": "tool_search_output", "call_id": "c4", "tools": [{**FUNCTION, "name": "found"}]},
        ]
    )
    _, turn, *results = request.messages
    assert [(call.name, json.loads(call.arguments)) for call in turn.tool_calls] == [
        ("apply_patch", {"input": "p"}),
        ("agents__spawn", {}),
        ("tool_search", {"query": "q"}),
    ]
    assert [result.tool_call_id for result in results] == ["c1", "c3", "c4"]
    assert [result.content for result in results[:2]] == ["done", "agent 1"]
    assert json.loads(str(results[2].content))[0]["name"] == "found"
    assert "web_search_call" in request.left_out and request.tool_forms["found"].kind == "function"


@given(st.text(), st.booleans())
def test_what_a_custom_tool_was_told_is_said_as_it_was(text: str, is_nested: bool) -> None:
    """Any text, also one that is JSON itself."""
    said = json.dumps({"input": text}) if is_nested else text
    call = ToolCall(id="call_1", name="apply_patch", arguments=json.dumps({"input": said}))
    output = json.loads(RESPONSES.write(read()).whole([STARTED, ToolCalled(call), finished()]))["output"]
    assert output[0]["input"] == said
    (_, turn) = read([{"role": "user", "content": "x"}, *output]).messages
    assert json.loads(turn.tool_calls[0].arguments) == {"input": said}


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ({"type": "function", "name": "spawn"}, "spawn"),
        ({"type": "function", "name": "spawn", "namespace": "agents"}, "agents__spawn"),
        ({"type": "custom", "name": "note"}, "agents__note"),
        ({"type": "function", "name": "none"}, "none"),
    ],
)
def test_a_tool_is_chosen_by_the_name_that_the_policy_knows(choice: Any, name: str) -> None:
    """Also where the request leaves out the namespace, as long as one tool alone is meant."""
    assert read(tool_choice=choice).tool_choice == NamedTool(name)
