"""What the readers of all APIs share."""

from __future__ import annotations

from typing import Any

import pytest

from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message
from tracegrad.producers.llm_gateway.api.events import Api
from tracegrad.producers.llm_gateway.api.messages.api import MESSAGES
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.producers.llm_gateway.api.responses.api import RESPONSES
from tracegrad.producers.llm_gateway.render.engine_render import chat_form
from tracegrad.schemas.ids import new_tool_call, next_tool_call
from tracegrad.schemas.records.calls import ToolCall

FIRST = new_tool_call("0" * 32)
SECOND = next_tool_call(FIRST)
OTHER = new_tool_call("0" * 32)
ASK = {"role": "user", "content": "x"}


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
