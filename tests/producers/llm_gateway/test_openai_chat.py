"""OpenAI's chat completions at the edge: read into a ChatRequest, written back from events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.producers.llm_gateway.edge import ASK, CALL_ID, STARTED, TEXT, called, finished
from tracegrad.producers.llm_gateway.api.chat_request import (
    ChatRequest,
    Message,
    NamedTool,
    OtherPart,
    TextPart,
    ToolUse,
)
from tracegrad.producers.llm_gateway.api.events import Event, Failed, Problem, Reasoning, Text
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.engines.chat_form import chat_form
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import ToolCall

CALL = st.builds(
    lambda name, arguments: {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}},
    st.text(min_size=1, max_size=4),
    st.dictionaries(TEXT, st.integers(), max_size=2).map(json.dumps),
)
PART = st.one_of(
    st.builds(lambda text: {"type": "text", "text": text}, TEXT),
    st.just({"type": "image_url", "image_url": {"url": "data:,"}}),
)
MESSAGE = st.one_of(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "developer"]), "content": st.one_of(TEXT, st.lists(PART))},
        optional={"name": TEXT, "task": TEXT},
    ),
    st.fixed_dictionaries(
        {"role": st.just("assistant"), "content": st.one_of(st.none(), TEXT)},
        optional={"tool_calls": st.lists(CALL, min_size=1, max_size=2), "reasoning": TEXT},
    ),
    st.fixed_dictionaries({"role": st.just("tool"), "content": TEXT, "tool_call_id": TEXT}),
)
FUNCTION = st.fixed_dictionaries(
    {"name": TEXT}, optional={"description": TEXT, "parameters": st.just({"type": "object"}), "strict": st.booleans()}
)
BODY = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGE, min_size=1, max_size=3)},
    optional={
        "tools": st.lists(st.builds(lambda function: {"type": "function", "function": function}, FUNCTION)),
        "tool_choice": st.sampled_from(["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]),
        "response_format": st.just({"type": "json_object"}),
        "chat_template_kwargs": st.just({"enable_thinking": False}),
    },
)


@given(BODY)
def test_what_the_template_sees_is_what_the_agent_sent(body: dict[str, Any]) -> None:
    """Messages, tools and the engine's own fields go through the record, in the form that most templates know."""
    expected = {**body, "messages": [plainly(message) for message in body["messages"]]}
    if "tools" not in body and body.get("tool_choice") == "auto":
        del expected["tool_choice"]
    assert chat_form(OPENAI_CHAT.read(body), with_grammar=True) == expected


def plainly(message: dict[str, Any]) -> dict[str, Any]:
    """No developer; one text as a string."""
    plain = {**message, "role": {"developer": "system"}.get(message["role"], message["role"])}
    content = message["content"]
    if content == []:
        plain["content"] = ""
    elif isinstance(content, list) and len(content) == 1 and content[0]["type"] == "text":
        plain["content"] = content[0]["text"]
    return plain


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "developer", "content": "be brief"}, Message(role="system", content="be brief")),
        (
            {"role": "assistant", "content": [{"type": "text", "text": "let me "}, {"type": "text", "text": "see"}]},
            Message(role="assistant", content="let me see"),
        ),
        (
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}], "refusal": None},
            Message(role="assistant", content="no"),
        ),
        ({"role": "assistant", "content": None, "refusal": "no"}, Message(role="assistant", content="no")),
        ({"role": "assistant", "content": [], "tool_calls": []}, Message(role="assistant", content="")),
        (
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}]},
            Message(role="tool", tool_call_id="c", content="4"),
        ),
        (
            {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "4"}] * 2},
            Message(role="tool", tool_call_id="c", content=(TextPart("4"), TextPart("4"))),
        ),
        (
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm"}]},
            Message(role="assistant", content=(OtherPart({"type": "thinking", "thinking": "hm"}),)),
        ),
    ],
)
def test_a_message_says_the_same_in_each_of_its_forms(message: dict[str, Any], expected: Message) -> None:
    """What an assistant says in pieces is one text, as it was sampled."""
    assert OPENAI_CHAT.read({"messages": [message]}).messages == (expected,)


def test_fields_become_types() -> None:
    """Alike for all spellings of one thing; the sampling fields are also kept as received."""
    request = OPENAI_CHAT.read(
        {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "input_audio"}]},
                {"role": "assistant", "reasoning_content": "hm", "refusal": None, "audio": {"id": "x"}},
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            ],
            "tool_choice": {"type": "function", "function": {"name": "f"}},
            "max_tokens": 9,
            "max_completion_tokens": 5,
            "stop": "x",
            "temperature": 1,
            "logprobs": True,
            "presence_penalty": 0,
            "logit_bias": {"1": 2},
            "user": "me",
            "store": None,
        }
    )
    user, thought, called = request.messages
    assert user.content == (TextPart("a"), OtherPart({"type": "input_audio"}))
    assert (thought.reasoning, thought.content, thought.extra) == ("hm", None, {"audio": {"id": "x"}})
    assert called.tool_calls == (ToolCall(id="", name="f", arguments='{"a":1}'),)
    assert request.tool_choice == NamedTool("f")
    wishes = request.wishes
    assert (wishes.max_tokens, wishes.stop, wishes.temperature, wishes.top_logprobs) == (5, ("x",), 1.0, 0)
    assert wishes.filters == {"logit_bias": {"1": 2}}
    assert request.sampling_asked["max_tokens"] == 9 and "user" not in request.sampling_asked
    assert request.extra["user"] == "me" and "store" not in request.extra


def test_defaults_are_openais() -> None:
    """One answer, whole, tools in parallel, no wishes."""
    request = OPENAI_CHAT.read({"messages": [ASK], "tool_choice": "auto", "n": None, "stream": None, "stop": None})
    assert (request.is_stream, request.allows_parallel_calls) == (False, True)
    assert request.tool_choice is ToolUse.AUTO and request.wishes == type(request.wishes)()


@pytest.mark.parametrize(
    ("fields", "param", "said"),
    [
        ({"messages": []}, "messages", "messages: expected `array` of length >= 1"),
        ({"messages": [1]}, "messages", "messages[0]: expected `object`, got `int`"),
        ({"messages": [{"content": "x"}]}, "messages", "messages[0]: object missing required field `role`"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"id": "c"}]}]}, "messages", "field `function`"),
        ({"temperature": 3}, "temperature", "temperature: expected `float` <= 2.0"),
        ({"temperature": "hot"}, "temperature", "got `str`"),
        ({"top_p": 0}, "top_p", "expected `float` > 0"),
        ({"top_k": -2}, "top_k", "expected `int` >= -1"),
        ({"min_p": 2}, "min_p", "expected `float` <= 1"),
        ({"max_tokens": 0}, "max_tokens", "expected `int` >= 1"),
        ({"max_completion_tokens": True}, "max_completion_tokens", "got `bool`"),
        ({"seed": 1.5}, "seed", "got `float`"),
        ({"stop": ""}, "stop", "expected `str` of length >= 1"),
        ({"stop": ["x"] * 17}, "stop", "expected `array` of length <= 16"),
        ({"top_logprobs": 21}, "top_logprobs", "expected `int` <= 20"),
        ({"tools": [{"type": "custom", "custom": {}}]}, "tools", "tools[0]"),
        ({"tool_choice": "any"}, "tool_choice", "tool_choice"),
        ({"functions": [{"name": "f"}]}, "functions", "functions: expected none, got some; they are OpenAI's older"),
        ({"function_call": "auto"}, "function_call", "send tool_choice"),
        ({"messages": [{"role": "function", "name": "f", "content": "4"}]}, "messages", "expected tool_calls"),
        ({"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "messages", "expected tool_calls"),
        (
            {"modalities": ["text", "audio"]},
            "modalities",
            "expected a value that docs/apis.md says is taken, got 'audio'",
        ),
        ({"web_search_options": {}}, "web_search_options", "expected none"),
        ({"continue_final_message": True}, "continue_final_message", "expected none"),
        ({"chat_template": "{{ messages }}"}, "chat_template", "expected none"),
    ],
)
def test_a_field_that_does_not_fit_is_named(fields: dict[str, Any], param: str, said: str) -> None:
    """Expected, got, where."""
    with pytest.raises(RequestError) as error:
        OPENAI_CHAT.read({"messages": [ASK], **fields})
    assert (error.value.status, error.value.param) == (400, param)
    assert said in str(error.value)


FINISHED = finished("tool_calls")
MADE = called()


def streamed(events: list[Event], **fields: Any) -> list[Any]:
    """The chunks' bodies, the last marker checked."""
    writer = OPENAI_CHAT.write(OPENAI_CHAT.read({"messages": [ASK], "stream": True, **fields}))
    sent = b"".join(chunk for event in events for chunk in writer.chunks(event)).decode()
    *bodies, done, end = sent.split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    return [json.loads(body.removeprefix("data: ")) for body in bodies]


@given(st.lists(TEXT), st.lists(TEXT), st.integers(0, 3))
def test_chunks_put_together_are_the_whole_answer(thoughts: list[str], texts: list[str], num_calls: int) -> None:
    """However the text is cut."""
    events: list[Event] = [STARTED, *map(Reasoning, thoughts), *map(Text, texts)]
    events += [MADE] * num_calls + [FINISHED]
    whole = json.loads(OPENAI_CHAT.write(ChatRequest(messages=())).whole(events))
    chunks = streamed(events, stream_options={"include_usage": True})
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    message = whole["choices"][0]["message"]
    assert "".join(delta.get("content") or "" for delta in deltas) == (message["content"] or "")
    assert "".join(delta.get("reasoning", "") for delta in deltas) == message.get("reasoning", "")
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert [call.pop("index") for call in calls] == list(range(num_calls))
    assert calls == message.get("tool_calls", [])
    assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"] == "tool_calls"
    assert chunks[-1]["usage"] == whole["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
    assert {(body["id"], body["model"], body["created"]) for body in (whole, *chunks)} == {(CALL_ID, "m", 7)}


def test_an_answer_of_tool_calls_alone_has_no_content_but_keeps_its_logprobs() -> None:
    """Null, not an empty text."""
    logprobs = {"content": [{"token": "x"}]}
    whole = OPENAI_CHAT.write(ChatRequest(messages=())).whole([STARTED, Text(None, logprobs), MADE, FINISHED])
    (choice,) = json.loads(whole)["choices"]
    assert choice["message"]["content"] is None and choice["logprobs"] == logprobs


def test_usage_is_streamed_only_when_asked_for() -> None:
    """OpenAI's clients count on it."""
    assert all("usage" not in chunk for chunk in streamed([STARTED, Text("a"), FINISHED]))


def test_a_failure_in_mid_stream_is_an_event() -> None:
    """In the shape of every other error."""
    problem = Problem(status=503, message="away", code="unavailable")
    (sent,) = OPENAI_CHAT.write(ChatRequest(messages=())).chunks(Failed(problem))
    assert json.loads(sent.removeprefix(b"data: ")) == json.loads(OPENAI_CHAT.error(problem))
    assert json.loads(sent.removeprefix(b"data: "))["error"]["type"] == "server_error"
