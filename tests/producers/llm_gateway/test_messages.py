"""Anthropic Messages at the edge: read into a ChatRequest, written back from events as the SDK's own types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from anthropic.types import Message as AnthropicMessage
from anthropic.types import RawMessageStreamEvent
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.edge import ASK, CALL_ID, STARTED, TEXT, called, finished
from tests.producers.llm_gateway.harness import rig
from tests.producers.llm_gateway.strictly import parsed_as, server_sent
from tracegrad.producers.llm_gateway.api.chat_request import (
    ChatRequest,
    Message,
    NamedTool,
    OtherPart,
    TextPart,
    Tool,
    ToolUse,
)
from tracegrad.producers.llm_gateway.api.events import Event, Failed, Problem, Reasoning, Text, ToolCalled
from tracegrad.producers.llm_gateway.api.messages.write import COUNT_TOKENS, MESSAGES
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.metrics import TOOLS_LEFT_OUT
from tracegrad.schemas.records.calls import ToolCall


def read(*messages: Any, **fields: Any) -> ChatRequest:
    """A request with these messages."""
    return MESSAGES.read({"model": "m", "max_tokens": 9, "messages": list(messages) or [ASK], **fields})


def user(block: dict[str, Any]) -> dict[str, Any]:
    """A message of one block."""
    return {"role": "user", "content": [block]}


def test_blocks_become_the_messages_of_a_chat() -> None:
    """An assistant's blocks are one turn; tool results are messages, in order with what the user says."""
    request = read(
        {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "redacted_thinking", "data": "x"},
                {"type": "text", "text": "let me "},
                {"type": "text", "text": "see"},
                {"type": "tool_use", "id": "call_1", "name": "f", "input": {"b": 1}, "caller": {"type": "direct"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_1", "content": [{"type": "text", "text": "4"}]},
                {"type": "tool_result", "tool_use_id": "call_2", "is_error": True},
                {"type": "text", "text": "well?"},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
                {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "page"}},
            ],
        },
        system=[{"type": "text", "text": "x-anthropic-billing-header: cch=1"}, {"type": "text", "text": "be brief"}],
    )
    picture = OtherPart({"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}})
    assert request.messages == (
        Message(role="system", content="be brief"),
        Message(role="user", content="a"),
        Message(
            role="assistant",
            content="let me see",
            reasoning="hm",
            tool_calls=(ToolCall(id="call_1", name="f", arguments='{"b":1}'),),
        ),
        Message(role="tool", tool_call_id="call_1", content="4"),
        Message(role="tool", tool_call_id="call_2", content="error"),
        Message(role="user", content=(TextPart("well?"), picture, TextPart("page"))),
    )


def test_several_messages_in_a_row_of_the_assistant_are_one_turn() -> None:
    """As Anthropic reads them; the user's stay apart, for no answer ends there."""
    call = {"type": "tool_use", "id": "c", "name": "f", "input": {}}
    said = [{"role": "assistant", "content": content} for content in ("let me ", [{"type": "text", "text": "see"}])]
    request = read(ASK, *said, {"role": "assistant", "content": [call]}, ASK, ASK)
    assert [message.role for message in request.messages] == ["user", "assistant", "user", "user"]
    turn = request.messages[1]
    assert (turn.content, [call.id for call in turn.tool_calls]) == ("let me see", ["c"])


def test_fields_become_types() -> None:
    """Tools, wishes and the format of the answer; what was asked of sampling is kept as received."""
    request = read(
        tools=[{"name": "f", "description": "d", "input_schema": {"type": "object"}, "strict": True, "type": "custom"}],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        stop_sequences=["x"],
        temperature=0.5,
        top_k=3,
        stream=True,
        metadata={"user_id": "u"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}, "effort": "low"},
    )
    assert request.tools == (Tool(name="f", description="d", parameters={"type": "object"}, is_strict=True),)
    assert (request.tool_choice, request.allows_parallel_calls, request.is_stream) == (ToolUse.REQUIRED, False, True)
    wishes = request.wishes
    assert (wishes.max_tokens, wishes.stop, wishes.temperature, wishes.top_k) == (9, ("x",), 0.5, 3)
    assert request.sampling_asked["stop_sequences"] == ["x"] and "metadata" not in request.sampling_asked
    assert read(tools=[]).tools is None
    assert request.extra["response_format"]["json_schema"]["schema"] == {"type": "object"}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, ToolUse.AUTO),
        ({"type": "none"}, ToolUse.NONE),
        ({"type": "tool", "name": "f"}, NamedTool("f")),
    ],
)
def test_tool_choices_have_their_twins(choice: dict[str, str], expected: ToolUse | NamedTool) -> None:
    """Those of chat completions."""
    assert read(tool_choice=choice).tool_choice == expected


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": []}, "messages", "expected `array` of length >= 1"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages", "[0].role: expected a value"),
        ({"messages": [user({"type": "audio"})]}, "messages", "content[0].type: expected a value"),
        ({"messages": [ASK, {"role": "assistant", "content": "4"}]}, "messages", "expected a user's message"),
        ({"messages": [user({"type": "image", "source": {"type": "file"}})]}, "messages", "got 'file'"),
        ({"messages": [user({"type": "document", "source": {"type": "url"}})]}, "messages", "got 'url'"),
        ({"max_tokens": 0}, "max_tokens", "expected `int` >= 1"),
        ({"max_tokens": None}, "max_tokens", "expected `int`"),
        ({"temperature": 3}, "temperature", "temperature: expected"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools", "tools[0]"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice", "expected the tool's name"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers", "expected none"),
    ],
)  # fmt: skip
def test_a_field_that_does_not_fit_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    """Expected, got, where."""
    with pytest.raises(RequestError) as error:
        MESSAGES.read({"model": "m", "max_tokens": 9, "messages": [ASK], **fields})
    assert (error.value.status, error.value.param) == (400, param)
    assert said in str(error.value)


def test_a_count_may_end_with_an_answer_and_needs_no_limit() -> None:
    """It samples nothing."""
    request = COUNT_TOKENS.read({"messages": [ASK, {"role": "assistant", "content": "4"}]})
    assert [message.role for message in request.messages] == ["user", "assistant"]


ARGUMENTS = st.dictionaries(TEXT, st.floats(-9, 9) | TEXT, max_size=2).map(json.dumps)
EVENTS = st.tuples(
    st.lists(TEXT.map(Reasoning), max_size=2),
    st.lists(TEXT.map(Text), max_size=3),
    st.lists(ARGUMENTS.map(called), max_size=2),
).map(lambda lists: [STARTED, *lists[0], *lists[1], *lists[2], finished()])  # fmt: skip


def streamed(events: list[Event]) -> list[Any]:
    """The stream's events as the SDK's types."""
    writer = MESSAGES.write(read(stream=True))
    sent = server_sent(b"".join(chunk for event in events for chunk in writer.chunks(event)))
    assert sent.pop(1) == ("ping", '{"type":"ping"}')
    return [parsed_as(RawMessageStreamEvent, data) for _, data in sent]


@given(EVENTS)
def test_the_stream_put_together_is_the_whole_answer(events: list[Event]) -> None:
    """In blocks that begin and end in order; both are the SDK's types, nothing more or less."""
    whole = parsed_as(AnthropicMessage, MESSAGES.write(read()).whole(events))
    start, *middle, delta, stop = streamed(events)
    assert (start.type, delta.type, stop.type) == ("message_start", "message_delta", "message_stop")
    assert start.message.id == whole.id and canonical_call(whole.id) == CALL_ID
    blocks: list[dict[str, Any]] = []
    for event in middle:
        if event.type == "content_block_start":
            assert event.index == len(blocks)
            blocks.append({**event.content_block.model_dump(exclude_none=True), "json": ""})
        elif event.type == "content_block_delta":
            fields = event.delta.model_dump(exclude={"type"})
            name = "json" if "partial_json" in fields else next(iter(fields))
            blocks[-1][name] += next(iter(fields.values()))
    for block in blocks:
        if (text := block.pop("json")) != "":
            block["input"] = json.loads(text)
    assert blocks == whole.model_dump(exclude_none=True)["content"]
    assert (delta.delta.stop_reason, delta.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)


@given(EVENTS)
def test_what_was_answered_reads_as_what_was_remembered(events: list[Event]) -> None:
    """An answer that the agent sends back says the same as the answer."""
    whole = json.loads(MESSAGES.write(read()).whole(events))
    (message,) = read(ASK, {"role": "assistant", "content": whole["content"]}, ASK).messages[1:2]
    calls = [event.call for event in events if isinstance(event, ToolCalled)]
    assert (message.content or "") == "".join(event.text or "" for event in events if isinstance(event, Text))
    assert [(call.id, call.name, json.loads(call.arguments)) for call in message.tool_calls] == [
        (call.id, call.name, json.loads(call.arguments)) for call in calls
    ]


@pytest.mark.parametrize("arguments", ['"x"', "[1]", '{"a": NaN}', '{"a": ', "1e999", '{"a": "\\ud83d"}'])
def test_arguments_that_are_no_object_come_back_as_they_went(arguments: str) -> None:
    """Under a name of their own, for `input` is an object; half a character is refused, as by chat completions."""
    whole = parsed_as(AnthropicMessage, MESSAGES.write(read()).whole([STARTED, called(arguments), finished()]))
    turn = {"role": "assistant", "content": [block.model_dump(mode="json") for block in whole.content]}
    if "ud83d" in arguments:
        with pytest.raises(RequestError):
            read(ASK, turn, ASK)
        return
    assert read(ASK, turn, ASK).messages[1].tool_calls[0].arguments == arguments


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([finished()], ("end_turn", None)),
        ([finished("length")], ("max_tokens", None)),
        ([finished("stop", "x")], ("stop_sequence", "x")),
        ([called(), finished("tool_calls")], ("tool_use", None)),
        ([called(), finished("stop")], ("tool_use", None)),
        ([called(), finished("length")], ("max_tokens", None)),
    ],
)
def test_why_an_answer_ended_is_said_in_anthropics_words(events: list[Event], expected: tuple[str, str | None]) -> None:
    """A call that was forced ends by `tool_use` too, a call that was cut does not."""
    whole = parsed_as(AnthropicMessage, MESSAGES.write(read()).whole([STARTED, *events]))
    assert (whole.stop_reason, whole.stop_sequence) == expected


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "invalid_request_error"), (403, "permission_error"), (409, "invalid_request_error"),
     (503, "overloaded_error"), (500, "api_error")],
)  # fmt: skip
def test_errors_are_in_anthropics_shape(status: int, kind: str) -> None:
    """Alike as a body and in mid-stream."""
    problem = Problem(status=status, message="no")
    body = {"type": "error", "error": {"type": kind, "message": "no"}}
    assert json.loads(MESSAGES.error(problem)) == body
    ((name, data),) = server_sent(b"".join(MESSAGES.write(read()).chunks(Failed(problem))))
    assert (name, json.loads(data)) == ("error", body)


READ = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
LATER = {"name": "Fetch", "input_schema": {"type": "object"}, "defer_loading": True}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]}


def result(*blocks: Any) -> dict[str, Any]:
    """What a tool gave."""
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [*blocks]}]}


async def test_tools_of_anthropics_servers_are_left_out_and_counted() -> None:
    """Of answers and of counts; an agent's own stay, under their own numbers."""
    served = [SEARCH, {"type": "code_execution_20250825", "name": "code_execution"}]
    body = {"model": "policy", "messages": [ASK], "tools": [*served, READ], "max_tokens": 9}
    async with rig() as r:
        r.engine.replies.append(Reply("ok"))
        assert (await r.post("/v1/messages", body))[0] == 200
        names = [tool["function"]["name"] for tool in r.asked("/v1/chat/completions/render")[0]["tools"]]
        assert names == ["Read"]
        for kind in ("web_search", "code_execution"):
            assert r.gateway.parts.metrics.value(TOOLS_LEFT_OUT, kind) == 1
    assert COUNT_TOKENS.read(body).tools == read(tools=[READ]).tools and read(tools=served).tools is None
    with pytest.raises(RequestError, match=r"tools\[2\]"):
        read(tools=[*served, {"name": "x"}])


def test_a_server_tool_that_must_be_called_is_refused() -> None:
    """An answer without a search would be taken for its results."""
    with pytest.raises(RequestError, match="expected a tool of your own, got 'web_search', which Anthropic runs"):
        read(tools=[SEARCH], tool_choice={"type": "tool", "name": "web_search"})


def test_what_anthropic_ran_for_an_earlier_answer_is_left_out_of_it() -> None:
    """What the answer says of it stays."""
    use = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    said = {"role": "assistant", "content": [use, found, {"type": "text", "text": "found"}]}
    request = read(ASK, said, ASK)
    assert [message.content for message in request.messages] == [ASK["content"], "found", ASK["content"]]
    assert request.left_out == ("server_tool_use",)


def test_a_tool_that_a_search_finds_is_declared_where_it_is_found() -> None:
    """It is at no prompt's head, before or after, so that the next prompt goes on from the last."""
    tools = [READ, LATER]
    before, after = (
        read(ASK, tools=tools),
        read(ASK, USE, result({"type": "tool_reference", "tool_name": "Fetch"}), tools=tools),
    )
    assert [tool.name for tool in before.tools or ()] == [tool.name for tool in after.tools or ()] == ["Read"]
    assert json.loads(str(after.messages[-1].content)) == {
        "name": "Fetch",
        "description": None,
        "input_schema": {"type": "object"},
    }
    unknown = read(ASK, USE, result({"type": "tool_reference", "tool_name": "Gone"}), tools=tools)
    assert json.loads(str(unknown.messages[-1].content)) == {"name": "Gone"}


@pytest.mark.parametrize(
    "tools", [[LATER], [READ, LATER, {"type": "tool_search_tool_regex_20251119", "name": "s"}]], ids=["alone", "server"]
)
def test_tools_that_no_search_of_the_agents_can_find_are_at_the_head(tools: list[Any]) -> None:
    """Else the policy could never know of them."""
    assert "Fetch" in [tool.name for tool in read(tools=tools).tools or ()]


def test_a_search_result_is_text() -> None:
    """Title, source, words."""
    block = {"type": "search_result", "source": "u", "title": "t", "content": [{"type": "text", "text": "x"}]}
    assert read(ASK, USE, result(block)).messages[-1].content == "t\nu\nx"
    assert read({"role": "user", "content": [block]}).messages[-1].content == "t\nu\nx"
