"""Bodies of any content at the routes of each API and of upstreams; HYPOTHESIS_PROFILE=attack sends 10^5 to
each of an API, and 10^5 to those of upstreams."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.producers.hostile import Target, llm
from tests.producers.llm_gateway.provider import Provider, upstream
from tests.producers.mutants import mutants
from tests.serving import serve

pytestmark = pytest.mark.slow
SCHEMA = {"type": "object", "properties": {"expr": {"type": "string"}}}
COUNT: dict[str, Any] = {
    "model": "policy",
    "system": [{"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "let me see"},
                {"type": "tool_use", "id": "call_0", "name": "calc", "input": {"expr": "1+2"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "call_0", "content": [{"type": "text", "text": "3"}]},
                {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}},
            ],
        },
    ],
    "tools": [{"name": "calc", "description": "d", "input_schema": SCHEMA, "strict": True}],
    "tool_choice": {"type": "auto", "disable_parallel_tool_use": True},
}
MESSAGES: dict[str, Any] = {
    **COUNT,
    "max_tokens": 50,
    "stop_sequences": ["x"],
    "temperature": 0.5,
    "top_k": 3,
    "stream": False,
    "thinking": {"type": "disabled"},
    "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
    "metadata": {"user_id": "u"},
}
RESPONSES: dict[str, Any] = {
    "model": "policy",
    "instructions": "be brief",
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "hello"}]},
        {"type": "reasoning", "id": "rs_0", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "let me see"}]},
        {"type": "function_call", "call_id": "call_0", "name": "calc", "arguments": "{}", "id": "fc_0"},
        {"type": "function_call_output", "call_id": "call_0", "output": "3"},
    ],
    "previous_response_id": None,
    "tools": [{"type": "function", "name": "calc", "parameters": SCHEMA, "strict": True}],
    "tool_choice": "auto",
    "max_output_tokens": 50,
    "top_logprobs": 2,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA}},
    "reasoning": {"effort": "low"},
    "metadata": {"a": "b"},
    "stream": False,
    "store": True,
}
REFERRING: dict[str, Any] = {
    "previous_response_id": None,
    "input": [{"type": "item_reference", "id": "rs_resp_" + "0" * 31}, {"role": "user", "content": "hello"}],
}
GOOD = {
    "messages": [MESSAGES],
    "messages/count_tokens": [COUNT],
    "responses": [RESPONSES, REFERRING],
}


CHAT: dict[str, Any] = {
    "model": "gpt-4o",
    "messages": [
        {"role": "system", "content": "be brief"},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "call_0", "type": "function"}]},
        {"role": "tool", "tool_call_id": "call_0", "content": [{"type": "text", "text": "3"}]},
    ],
    "n": 2,
    "stream": True,
}
PASSED_ON = {
    "chat/completions": CHAT,
    "completions": {"model": "gpt-4o", "prompt": ["hello"], "max_tokens": 5},
    "responses": RESPONSES | {"model": "gpt-4o"},
    "messages": MESSAGES | {"model": "claude-x"},
    "messages/count_tokens": COUNT | {"model": "claude-x"},
    "embeddings": {"model": "text-embedding-3-small", "input": ["hello", [1, 2]], "encoding_format": "base64"},
}


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module")
def attacked(runner: asyncio.Runner) -> Iterator[Target]:
    """A gateway that serves all examples."""
    stack = contextlib.AsyncExitStack()
    url = runner.run(stack.enter_async_context(serve(Provider().app)))
    yield runner.run(stack.enter_async_context(llm(upstreams=(upstream(url),))))
    runner.run(stack.aclose())


@pytest.mark.parametrize("route", GOOD)
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_body_is_the_gateways_fault(
    attacked: Target, runner: asyncio.Runner, route: str, data: st.DataObject
) -> None:
    """Of the attempt, or of nobody: below 500, and it is the body that is judged."""
    body = data.draw(st.sampled_from(GOOD[route]).flatmap(mutants))
    status = runner.run(_ask(attacked, data.draw(_paths(attacked, route)), body))
    assert status < 500 and status != 403, body


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_body_for_another_model_is_the_gateways_fault(
    attacked: Target, runner: asyncio.Runner, data: st.DataObject
) -> None:
    """This upstream takes every body: what it does not get was refused for what the body is or names."""
    route = data.draw(st.sampled_from(sorted(PASSED_ON)))
    body = data.draw(mutants(PASSED_ON[route]))
    assert runner.run(_ask(attacked, data.draw(_paths(attacked, route)), body)) in (200, 400, 404), body


def _paths(attacked: Target, route: str) -> st.SearchStrategy[str]:
    return st.sampled_from([attacked.path.replace("chat/completions", route), f"/v1/{route}"])


async def _ask(attacked: Target, path: str, body: bytes) -> int:
    headers = {"content-type": "application/json"}
    async with attacked.http.post(attacked.url + path, data=body, headers=headers) as response:
        await response.read()
        return response.status


@pytest.mark.parametrize(
    ("route", "good"), [(route, good[0]) for route, good in GOOD.items()] + list(PASSED_ON.items())
)
def test_the_bodies_are_nearly_good(attacked: Target, runner: asyncio.Runner, route: str, good: dict[str, Any]) -> None:
    """Or the attack would end at the first check."""
    assert runner.run(_ask(attacked, f"/v1/{route}", json.dumps(good).encode())) == 200
