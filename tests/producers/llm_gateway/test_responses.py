"""OpenAI Responses at the edge: read into a ChatRequest, written back from events as the SDK's own types."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent

from tests.producers.llm_gateway.edge import CALL_ID, STARTED, TEXT, called, finished
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
from tracegrad.producers.llm_gateway.api.responses.item_ids import response_id
from tracegrad.producers.llm_gateway.api.responses.read import read as read_on
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import CallId, canonical_call, new_call
from tracegrad.schemas.records.calls import ToolCall

TOOL = {"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": True}


def read(items: Any = "hello", **fields: Any) -> ChatRequest:
    """A request with this input."""
    return RESPONSES.read({"model": "m", "input": items, **fields})


def test_items_become_the_messages_of_a_chat() -> None:
    """Thoughts, a message and the calls after it are one turn; a second message is another."""
    said = {"type": "output_text", "text": "let me ", "annotations": []}
    request = read(
        [
            {"role": "developer", "content": "be exact"},
            {"role": "user", "content": [{"type": "input_text", "text": "a"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
            {"type": "message", "role": "assistant", "content": [said, {**said, "text": "see"}], "status": "completed"},
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1"},
            {"type": "function_call", "call_id": "c2", "name": "f", "arguments": '{"a": 1}'},
            {"type": "function_call_output", "call_id": "c1", "output": "4"},
            {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "5"}]},
            {"role": "assistant", "content": "nine"},
            {"role": "assistant", "content": "no, ten"},
            {
                "role": "user",
                "content": [{"type": "input_text", "text": "b"}, {"type": "input_image", "image_url": "data:,"}],
            },
        ],
        instructions="be brief",
    )
    calls = (ToolCall(id="c1", name="f", arguments="{}"), ToolCall(id="c2", name="f", arguments='{"a": 1}'))
    picture = OtherPart({"type": "image_url", "image_url": {"url": "data:,"}})
    assert request.messages == (
        Message(role="system", content="be brief"),
        Message(role="system", content="be exact"),
        Message(role="user", content="a"),
        Message(role="assistant", content="let me see", reasoning="hm", tool_calls=calls),
        Message(role="tool", tool_call_id="c1", content="4"),
        Message(role="tool", tool_call_id="c2", content="5"),
        Message(role="assistant", content="nine"),
        Message(role="assistant", content="no, ten"),
        Message(role="user", content=(TextPart("b"), picture)),
    )
    assert request.num_led == 1 and request.is_kept


def test_fields_become_types() -> None:
    """Tools, wishes and the format of the answer; what was asked of sampling is kept as received."""
    request = read(
        tools=[TOOL],
        tool_choice={"type": "function", "name": "f"},
        parallel_tool_calls=False,
        max_output_tokens=9,
        temperature=1,
        top_logprobs=2,
        text={"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}},
        reasoning={"effort": "low"},
        store=False,
        stream=True,
    )
    assert request.tools == (Tool(name="f", description="d", parameters={"type": "object"}, is_strict=True),)
    assert (request.tool_choice, request.allows_parallel_calls, request.is_stream) == (NamedTool("f"), False, True)
    wishes = request.wishes
    assert (wishes.max_tokens, wishes.temperature, wishes.top_logprobs) == (9, 1.0, 2)
    schema = {"name": "n", "schema": {"type": "object"}, "strict": True}
    assert request.extra["response_format"] == {"type": "json_schema", "json_schema": schema}
    assert request.extra["reasoning_effort"] == "low" and not request.is_kept
    assert request.sampling_asked["max_output_tokens"] == 9 and "store" not in request.sampling_asked
    assert read(tools=[]).tools is None
    assert read(tool_choice="required").tool_choice is ToolUse.REQUIRED
    assert read(include=["message.output_text.logprobs"]).wishes.top_logprobs == 0
    assert read(text={"format": {"type": "text"}}).extra.get("response_format") is None


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"input": []}, "input", "expected a text or items"),
        ({"input": None}, "input", "expected a text or items"),
        ({"input": [{"type": "computer_call"}]}, "input", "got 'computer_call'"),
        ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input", "or a summary as a message"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input", "input[0].role: expected a value"),
        ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input", "input_file"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input", "image_url"),
        (
            {"tools": [{"type": "web_search"}, {"type": "computer"}]},
            "tools",
            "tools[1].type: expected a value",
        ),
        ({"tool_choice": {"type": "web_search"}}, "tool_choice", "tool_choice"),
        ({"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: expected `int` >= 1"),
        ({"temperature": 3}, "temperature", "temperature: expected"),
        ({"background": True}, "background", "expected none"),
        ({"conversation": "conv_1"}, "conversation", "expected none"),
        ({"text": {"format": {"type": "grammar"}}}, "text", "text.format"),
        ({"metadata": {"a": 1}}, "metadata", "metadata"),
        ({"previous_response_id": "resp_none"}, "previous_response_id", "Previous response with id 'resp_none' not"),
        ({"input": [{"type": "item_reference", "id": "msg_none"}]}, "input", "Item with id 'msg_none' not found"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    """Expected, got, where; tools and state of OpenAI's own servers too."""
    with pytest.raises(RequestError) as error:
        RESPONSES.read({"model": "m", "input": "hello", **fields})
    assert (error.value.status, error.value.param) == (404 if "Item" in said else 400, param)
    assert said in str(error.value)


def test_an_earlier_response_is_gone_on_with() -> None:
    """Its conversation comes before the input, behind the instructions of this request."""
    before = (Message(role="user", content="a"), Message(role="assistant", content="b"))

    def recall(call_id: CallId) -> tuple[Message, ...] | None:
        return before if call_id == CALL_ID else None

    body = {"input": "c", "instructions": "be brief", "previous_response_id": response_id(CALL_ID)}
    request = read_on(body, recall)
    system = Message(role="system", content="be brief")
    assert request.messages == (system, *before, Message(role="user", content="c"))
    assert (request.continues, request.num_led) == (CALL_ID, 1)
    with pytest.raises(RequestError) as error:
        read_on({**body, "previous_response_id": response_id(new_call("0" * 32))}, recall)
    assert (error.value.status, error.value.code) == (400, "previous_response_not_found")


EVENTS = st.tuples(
    st.lists(TEXT.map(Reasoning), max_size=2),
    st.lists(TEXT.map(Text), max_size=3),
    st.lists(TEXT.map(called), max_size=2),
    st.sampled_from(["stop", "length", "tool_calls"]).map(finished),
).map(lambda lists: [STARTED, *lists[0], *lists[1], *lists[2], lists[3]])


def streamed(events: list[Event], **fields: Any) -> list[Any]:
    """The stream's events as the SDK's types, numbered from 0."""
    writer = RESPONSES.write(read(stream=True, **fields))
    sent = server_sent(b"".join(chunk for event in events for chunk in writer.chunks(event)))
    parsed = [parsed_as(ResponseStreamEvent, data) for _, data in sent]
    assert [event.sequence_number for event in parsed] == list(range(len(parsed)))
    return parsed


@given(EVENTS)
def test_the_stream_put_together_is_the_whole_answer(events: list[Event]) -> None:
    """Items, parts and texts begin, grow and end in OpenAI's order; all are the SDK's types, nothing more or less."""
    whole = parsed_as(Response, RESPONSES.write(read()).whole(events))
    created, in_progress, *middle, completed = streamed(events)
    assert (created.type, in_progress.type) == ("response.created", "response.in_progress")
    assert completed.type == f"response.{whole.status}" and created.response.output == []
    assert completed.response == whole
    assert canonical_call(whole.id) == CALL_ID
    added, grown, done = list[Any](), dict[int, str](), list[Any]()
    for event in middle:
        match event.type.removeprefix("response."):
            case "output_item.added":
                added.append(event.item)
                assert event.output_index == len(added) - 1 == len(done)
            case "output_item.done":
                done.append(event.item)
            case "output_text.delta" | "reasoning_text.delta" | "function_call_arguments.delta":
                assert event.item_id == added[-1].id
                grown[event.output_index] = grown.get(event.output_index, "") + event.delta
            case "output_text.done" | "reasoning_text.done":
                assert event.text == grown.get(event.output_index, "")
            case "function_call_arguments.done":
                assert event.arguments == grown[event.output_index]
    assert done == whole.output and [item.id for item in added] == [item.id for item in done]
    assert all(item.status == "in_progress" for item in added)


def test_events_come_in_openais_order() -> None:
    """As its documentation lists them."""
    types = [event.type for event in streamed([STARTED, Reasoning("r"), Text("a"), Text("b"), called(), finished()])]
    item, text = ("output_item.added", "content_part.added"), ("content_part.done", "output_item.done")
    call = ("output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done")
    assert [kind.removeprefix("response.") for kind in types] == [
        *("created", "in_progress"),
        *(*item, "reasoning_text.delta", "reasoning_text.done", *text),
        *(*item, "output_text.delta", "output_text.delta", "output_text.done", *text),
        *(*call, "completed"),
    ]


@given(EVENTS)
def test_what_was_answered_reads_as_what_was_remembered(events: list[Event]) -> None:
    """Output that the agent sends back as input is one turn, and says the same; also of an answer that says nothing."""
    output = json.loads(RESPONSES.write(read()).whole(events))["output"]
    first, turn, last = read([{"role": "user", "content": "a"}, *output, {"role": "user", "content": "b"}]).messages
    assert (first.role, turn.role, last.role) == ("user", "assistant", "user")
    assert (turn.content or "") == "".join(event.text or "" for event in events if isinstance(event, Text))
    assert turn.tool_calls == tuple(event.call for event in events if isinstance(event, ToolCalled))


def test_what_was_asked_is_repeated_and_an_answer_that_was_cut_is_incomplete() -> None:
    """Tools, format, instructions; why it ended."""
    fields: dict[str, Any] = {
        "tools": [TOOL],
        "tool_choice": {"type": "function", "name": "f"},
        "instructions": "be brief",
    }
    fields |= {"metadata": {"a": "b"}, "max_output_tokens": 2, "text": {"format": {"type": "json_object"}}}
    body = RESPONSES.write(read(**fields)).whole([STARTED, Text("x"), finished("length")])
    whole = parsed_as(Response, body)
    assert (whole.status, whole.incomplete_details and whole.incomplete_details.reason) == (
        "incomplete",
        "max_output_tokens",
    )
    assert {name: json.loads(body)[name] for name in fields} == fields
    assert whole.output[0].status == "incomplete" and whole.usage and whole.usage.total_tokens == 5


def test_logprobs_are_in_its_words() -> None:
    """Whole and in a stream."""
    top = {"token": "x", "bytes": [120], "logprob": -0.5}
    logprobs = {"content": [{**top, "top_logprobs": [top]}]}
    events: list[Event] = [STARTED, Text("x", logprobs), finished()]
    whole = parsed_as(Response, RESPONSES.write(read()).whole(events))
    assert whole.output[0].content[0].logprobs[0].model_dump() == {**top, "top_logprobs": [top]}
    (delta,) = [event for event in streamed(events) if event.type == "response.output_text.delta"]
    assert delta.logprobs[0].top_logprobs[0].logprob == -0.5


@pytest.mark.parametrize("has_started", [False, True])
def test_a_failure_in_mid_stream_is_an_event(has_started: bool) -> None:
    """Of the response, once there is one."""
    problem = Failed(Problem(status=503, message="away", code="unavailable"))
    *_, last = streamed([STARTED, Text("x"), problem] if has_started else [problem])
    if has_started:
        assert (last.type, last.response.status, last.response.error.message) == ("response.failed", "failed", "away")
    else:
        assert (last.type, last.message, last.code) == ("error", "away", "unavailable")
