"""Anthropic Messages: what Anthropic would run itself is left out, what a search finds is written out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import rig
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest
from tracegrad.producers.llm_gateway.api.messages.write import COUNT_TOKENS, MESSAGES
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.metrics import TOOLS_LEFT_OUT

READ = {"name": "Read", "description": "Reads.", "input_schema": {"type": "object"}}
LATER = {"name": "Fetch", "input_schema": {"type": "object"}, "defer_loading": True}
SEARCH = {"type": "web_search_20250305", "name": "web_search", "max_uses": 5}
ASK = {"role": "user", "content": "go"}
USE = {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "Read", "input": {}}]}


def read(*messages: Any, **fields: Any) -> ChatRequest:
    """A request with these messages."""
    return MESSAGES.read({"model": "m", "max_tokens": 9, "messages": [*messages] or [ASK], **fields})


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
    assert [message.content for message in request.messages] == ["go", "found", "go"]
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
