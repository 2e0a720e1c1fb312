"""What the readers of all APIs share."""

from __future__ import annotations

from typing import Any

import pytest

from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message, TextPart
from tracegrad.producers.llm_gateway.api.events import Api
from tracegrad.producers.llm_gateway.api.messages.write import MESSAGES
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES
from tracegrad.producers.llm_gateway.engines.chat_form import chat_form
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import new_tool_call, next_tool_call
from tracegrad.schemas.records.calls import ToolCall

FIRST = new_tool_call("0" * 32)
SECOND = next_tool_call(FIRST)
OTHER = new_tool_call("0" * 32)
ASK = {"role": "user", "content": "x"}
BODIES: dict[str, dict[str, Any]] = {
    OPENAI_CHAT.path: {"messages": [ASK]},
    RESPONSES.path: {"input": "x"},
    MESSAGES.path: {"messages": [ASK], "max_tokens": 9},
}


def of_chat(it: str) -> list[Any]:
    """A call and its result, by chat completions."""
    call = {"id": it, "type": "function", "function": {"name": "f", "arguments": "{}"}}
    return [{"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": it, "content": "4"}]


def of_messages(it: str) -> list[Any]:
    """The same by Messages."""
    call = {"type": "tool_use", "id": it, "name": "f", "input": {}}
    result = {"type": "tool_result", "tool_use_id": it, "content": "4"}
    return [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]


def of_responses(it: str) -> list[Any]:
    """The same by Responses."""
    call = {"type": "function_call", "call_id": it, "name": "f", "arguments": "{}"}
    return [call, {"type": "function_call_output", "call_id": it, "output": "4"}]


@pytest.mark.parametrize(
    ("api", "name", "form"),
    [
        pytest.param(OPENAI_CHAT, "messages", of_chat, id="chat"),
        pytest.param(MESSAGES, "messages", of_messages, id="messages"),
        pytest.param(RESPONSES, "input", of_responses, id="responses"),
    ],
)
def test_calls_of_one_answer_are_one_turn_wherever_their_results_stand(api: Api, name: str, form: Any) -> None:
    """The model sampled them together; calls of another answer are another turn."""
    body = {"model": "m", "max_tokens": 9, name: [ASK, *form(FIRST), *form(SECOND), *form(OTHER)]}
    messages = with_whole_answers(api.read(body)).messages
    assert [[call.id for call in it.tool_calls] for it in messages] == [[], [FIRST, SECOND], [], [], [OTHER], []]
    assert [it.tool_call_id for it in messages] == [None, None, FIRST, SECOND, None, OTHER]


@pytest.mark.parametrize(
    ("api", "body"),
    [
        pytest.param(OPENAI_CHAT, {"messages": [ASK], "tool_choice": "auto"}, id="chat"),
        pytest.param(MESSAGES, {"max_tokens": 9, "messages": [ASK], "tool_choice": {"type": "auto"}}, id="messages"),
        pytest.param(RESPONSES, {"input": "x", "tool_choice": "auto", "tools": []}, id="responses"),
    ],
)
def test_the_choice_that_is_the_default_is_not_sent_without_tools(api: Api, body: dict[str, Any]) -> None:
    """Clients send it all the same, and the engine would refuse it."""
    assert "tool_choice" not in chat_form(api.read(body), with_grammar=True)


@pytest.mark.parametrize(
    "between",
    [Message(role="user", content="well?"), Message(role="assistant", content="so"), Message(role="system")],
)
def test_what_stands_between_parts_an_answer(between: Message) -> None:
    """Only results may: else the agent changed its history, and the splice says so."""
    calls = [
        Message(role="assistant", tool_calls=(ToolCall(id=it, name="f", arguments="{}"),)) for it in (FIRST, SECOND)
    ]
    request = ChatRequest(messages=(calls[0], Message(role="tool", tool_call_id=FIRST), between, calls[1]))
    assert with_whole_answers(request) == request


@pytest.mark.parametrize(
    ("api", "field", "given", "expected"),
    [
        (OPENAI_CHAT, "max_tokens", 16.0, "wishes.max_tokens=16"),
        (OPENAI_CHAT, "max_completion_tokens", 8.0, "wishes.max_tokens=8"),
        (OPENAI_CHAT, "n", 1.0, "num_choices=1"),
        (OPENAI_CHAT, "seed", 7.0, "wishes.seed=7"),
        (OPENAI_CHAT, "logprobs", 0, "wishes.top_logprobs=None"),
        (OPENAI_CHAT, "logprobs", 1, "wishes.top_logprobs=0"),
        (OPENAI_CHAT, "stream", 0, "is_stream=False"),
        (RESPONSES, "max_output_tokens", 16.0, "wishes.max_tokens=16"),
        (MESSAGES, "max_tokens", 16.0, "wishes.max_tokens=16"),
        (MESSAGES, "top_k", 5.0, "wishes.top_k=5"),
    ],
)
def test_numbers_in_each_others_form_are_taken(api: Api, field: str, given: Any, expected: str) -> None:
    """As vLLM takes them: JavaScript and JSON schemas know one kind of number. The record keeps what was asked."""
    request = api.read({**BODIES[api.path], field: given})
    name, _, value = expected.partition("=")
    found: Any = request
    for part in name.split("."):
        found = getattr(found, part)
    assert (str(found), type(found).__name__ in ("int", "bool", "NoneType")) == (value, True)
    assert request.sampling_asked.get(field, given) == given


@pytest.mark.parametrize(
    ("api", "fields", "param", "said"),
    [
        (OPENAI_CHAT, {"max_tokens": 16.5}, "max_tokens", "expected `int | null`, got `float`"),
        (OPENAI_CHAT, {"max_completion_tokens": 0}, "max_completion_tokens", "max_completion_tokens: expected `int`"),
        (OPENAI_CHAT, {"logprobs": 2}, "logprobs", "expected `bool | null`, got `int`"),
        (OPENAI_CHAT, {"tools": [{"type": "web", "function": {"name": "f"}}]}, "tools", "tools[0].type: expected a"),
        (OPENAI_CHAT, {"tool_choice": "any"}, "tool_choice", "expected a value that docs/apis.md says"),
        (RESPONSES, {"max_output_tokens": 0}, "max_output_tokens", "max_output_tokens: expected `int` >= 1"),
        (RESPONSES, {"reasoning": {"effort": "vast"}}, "reasoning", "reasoning.effort: expected a value"),
        (MESSAGES, {"stop_sequences": [""]}, "stop_sequences", "stop_sequences[0]: expected `str` of length >= 1"),
        (MESSAGES, {"messages": [{"role": "ctx", "content": "x"}]}, "messages", "[0].role: expected a value"),
        (MESSAGES, {"tool_choice": {"type": "all"}}, "tool_choice", "tool_choice.type: expected a value"),
    ],
)  # fmt: skip
def test_a_refusal_names_the_field_as_its_api_calls_it(api: Api, fields: dict[str, Any], param: str, said: str) -> None:
    """With what came, and where the values that may stand there are listed."""
    with pytest.raises(RequestError) as error:
        api.read(BODIES[api.path] | fields)
    assert (error.value.status, error.value.param) == (400, param) and said in str(error.value)


def test_a_bare_string_among_parts_is_a_text() -> None:
    """As vLLM reads it; of an assistant it joins the others."""
    user = {"role": "user", "content": ["a", {"type": "text", "text": "b"}]}
    request = OPENAI_CHAT.read({"messages": [user, {**user, "role": "assistant"}, {"role": "user", "content": ["c"]}]})
    assert [message.content for message in request.messages] == [(TextPart("a"), TextPart("b")), "ab", "c"]
