"""The same clients on a real vLLM engine, whose policy calls the tools of its own accord and says what is no text.

The oracle is the engine itself, asked greedily by its own routes: its chat endpoint for the first request, and its
completions for each recorded prompt, ids in and ids out.
"""

from __future__ import annotations

import asyncio
import functools
import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.catalogue import CLIENTS
from tests.clients.policy import ASKED
from tests.clients.started import Programs, run
from tests.engine_fixture import RunningEngine
from tests.producers.llm_gateway.harness import full_prompt, rig
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = [
    *(pytest.mark.engine, pytest.mark.torch, pytest.mark.e2e, pytest.mark.network),
    pytest.mark.timeout(300),
]
LEFT_OUT = {
    # Its own system prompt is longer than what the policy can read.
    ("by_claude_agent_sdk.py", "messages"),
    # As its other ways, each asynchronous or streamed.
    *(("by_openai.py", "async_stream"), ("by_openai.py", "async_responses"), ("by_anthropic.py", "async_messages")),
}
ON_VLLM = [client for client in CLIENTS if client not in LEFT_OUT]


@pytest.fixture(scope="module")
def own_answer(engine: RunningEngine) -> dict[str, Any]:
    """What the engine's own chat endpoint answers to every client's first request."""
    body = {"model": "policy", "temperature": 0, "return_token_ids": True, **ASKED}
    response = engine.client.post("/v1/chat/completions", json=body)
    choice: dict[str, Any] = response.raise_for_status().json()["choices"][0]
    return choice


@functools.cache
def sampled_again(engine: RunningEngine, prompt: tuple[int, ...], num_tokens: int) -> tuple[str, list[int]]:
    """What the engine says after these ids, by its own detokenizer, and the ids; most clients' prompts are the same."""
    body = {
        "model": "policy",
        "prompt": list(prompt),
        "max_tokens": num_tokens,
        "temperature": 0,
        "return_token_ids": True,
    }
    response = engine.client.post("/v1/completions", json=body | {"skip_special_tokens": False})
    choice = response.raise_for_status().json()["choices"][0]
    return choice["text"], choice["token_ids"]


def assert_first(call: CallRecord, own: dict[str, Any]) -> None:
    """Ids, words and tool calls are the engine's own."""
    assert ids_from_bytes(call.sampled_ids).tolist() == own["token_ids"]
    message, calls = own["message"], [(made.name, json.loads(made.arguments)) for made in call.tool_calls]
    functions = [made["function"] for made in message["tool_calls"]]
    assert (call.content, calls) == (
        message["content"],
        [(function["name"], json.loads(function["arguments"])) for function in functions],
    )


@pytest.mark.parametrize(("program", "way"), ON_VLLM, ids=["-".join(client) for client in ON_VLLM])
async def test_a_client_has_the_engines_own_words_and_its_turns_merge(
    engine: RunningEngine,
    own_answer: dict[str, Any],
    programs: Programs,
    program: str,
    way: str,
    tmp_path: Path,
) -> None:
    """Five calls, unconstrained, are one row, whose ids are the engine's; the client read the text of those ids."""
    policy = PolicyConfig(model=str(engine.model), temperature=0.01)
    async with rig(engine_url=engine.url, engine_wait_s=60, folder=str(engine.model), policy=policy) as r:
        await r.begin()
        texts = await run(r, programs, program, way, tmp_path)
        calls = r.calls()
        assert [call.splice.kind for call in calls] == ["first", *["extended"] * 4], [call.splice for call in calls]
        assert not any(call.is_constrained or call.is_truncated for call in calls)
        assert_first(calls[0], own_answer)
        said = []
        for call in calls:
            sampled = ids_from_bytes(call.sampled_ids).tolist()
            text, ids = await asyncio.to_thread(sampled_again, engine, tuple(full_prompt(call, calls)), len(sampled))
            assert ids == sampled
            said.append(text)
        assert texts == said[2:]
        assert "\ufffd" in texts[1] and "<|im_start|>" in texts[1], "the test needs what is no text"
        assert_merged(await rows_of(r), calls)
