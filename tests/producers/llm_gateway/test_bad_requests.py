"""Requests that the gateway refuses or bounds, too long prompts among them: the status and the words of each API."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine, too_long
from tests.producers.llm_gateway.edge import STARTED
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, GENERATE, ROLLOUT, Rig, begun, rig, until
from tests.producers.llm_gateway.strictly import server_sent
from tests.versions import label
from tracegrad.producers.llm_gateway.api.events import TOO_LONG, Failed, Problem
from tracegrad.producers.llm_gateway.api.messages.write import MESSAGES as ANTHROPIC
from tracegrad.producers.llm_gateway.api.responses.write import RESPONSES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": ASK, "n": 0}, None),
        ({"messages": ASK, "max_tokens": -1}, None),
        ({"messages": ASK, "max_tokens": "many"}, None),
        ({"messages": ASK, "stop": [1]}, None),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, None),
    ],
)
async def test_a_bad_request_is_an_openai_shaped_400(r: Rig, body: Any, param: str | None) -> None:
    """Also what the engine refuses."""
    status, answer = await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions", body)
    assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}
    assert answer["error"]["type"] == "invalid_request_error"
    assert param is None or answer["error"]["param"] == param


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b'{"messages": NaN}', b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
     b'{"messages": [{"role": "user", "content": "x"}], "seed": 1' + b"0" * 40 + b"}", b'{"a":' * 5000, b"\xff"],
    ids=["empty", "cut", "list", "nan", "surrogate", "huge", "deep", "utf8"],
)  # fmt: skip
async def test_a_body_that_is_no_chat_request_is_a_400(r: Rig, body: bytes) -> None:
    """Nothing reaches the engine."""
    path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
    async with r.http.post(path, data=body) as response:
        assert response.status == 400
    assert not r.engine.requests


async def test_what_a_request_may_cost_is_bounded() -> None:
    """Body size and calls at once."""
    async with begun(max_body_bytes=1000, max_inflight=1) as r:
        assert (await r.chat_raw([{"role": "user", "content": "x" * 2000}]))[0] == 413
        r.engine.running.clear()
        r.engine.replies.append(Reply("ok"))
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        status, answer = await r.chat_raw(ASK)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        r.engine.running.set()
        await call


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "cut \ud83d"},
        {"role": "user", "content": "a", "\udcff": 1},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "calc", "arguments": '{"a": "\\ud83d"}'}}
            ],
        },
    ],
    ids=["content", "key", "tool arguments"],
)
async def test_half_a_surrogate_pair_is_refused(r: Rig, message: dict[str, Any]) -> None:
    """No token means it: 400 with the reason before anything is asked of the engine; whole pairs pass."""
    r.engine.replies.append(Reply("42"))
    status, answer = await r.chat_raw([*ASK, message])
    assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
    assert r.engine.requests == []
    assert (await r.chat([*ASK, {"role": "user", "content": "\U0001f642"}]))["choices"]


LIMIT = 200
LONG = {"role": "user", "content": "a word " * 200}
COMPACTS = re.compile(r"prompt is too long: (\d+) tokens > (\d+) maximum")
"""Claude Code 2.1.332 looks for this, from the beginning to the end."""
MESSAGES = {"model": "policy", "max_tokens": 10, "messages": [LONG]}


def engine() -> ScriptedEngine:
    """With a short context window."""
    return ScriptedEngine(label=label(0), max_model_len=LIMIT)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_messages_say_it_in_the_words_by_which_claude_code_compacts(is_stream: bool) -> None:
    """With both numbers; a stream that has not begun has the status too."""
    async with rig(engine(), keep_alive_s=5.0) as r:
        status, answer = await r.post("/v1/messages", {**MESSAGES, "stream": is_stream})
        assert status == 400 and answer["error"]["type"] == "invalid_request_error"
        found = COMPACTS.fullmatch(answer["error"]["message"])
        _, counted = await r.post("/v1/messages/count_tokens", {"model": "policy", "messages": [LONG]})
        assert found is not None and (int(found[1]), int(found[2])) == (counted["input_tokens"], LIMIT)
        assert not r.records()


async def test_a_prompt_that_is_too_long_is_counted_all_the_same() -> None:
    """Who counts wants to know by how much; with the tools, which the template writes too."""
    tools = [{"name": "calc", "input_schema": {"type": "object"}}]
    body = {"model": "policy", "messages": [LONG]}
    async with rig(engine()) as short, rig(ScriptedEngine(label=label(0))) as wide:
        for asked in (body, body | {"tools": tools}):
            answers = [await r.post("/v1/messages/count_tokens", asked) for r in (short, wide)]
            assert answers[0] == answers[1] and answers[0][0] == 200
            assert answers[0][1]["input_tokens"] > LIMIT


async def test_openais_apis_say_it_by_their_code() -> None:
    """`context_length_exceeded`, which Codex and others know, also of a stream that has begun to wait."""
    async with rig(engine()) as r:
        for path, fields in (("/v1/chat/completions", {"messages": [LONG]}), ("/v1/responses", {"input": [LONG]})):
            status, answer = await r.post(path, {"model": "policy", **fields})
            assert (status, answer["error"]["code"]) == (400, TOO_LONG)


def test_a_stream_of_responses_that_fails_has_the_code() -> None:
    """At which Codex compacts."""
    writer = RESPONSES.write(RESPONSES.read({"input": "x"}))
    problem = Failed(Problem(status=400, message="long", code=TOO_LONG))
    (_, last) = server_sent(b"".join(chunk for event in (STARTED, problem) for chunk in writer.chunks(event)))[-1]
    assert json.loads(last)["response"]["error"] == {"code": TOO_LONG, "message": "long"}


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (too_long(5000, 4096), "prompt is too long: 5000 tokens > 4096 maximum"),
        (
            too_long(5000, 4096).replace("contains ", "contains at least "),
            "prompt is too long: 5000 tokens > 4096 maximum",
        ),
        (
            "The decoder prompt (length 513) is longer than the maximum model length of 512. Make sure",
            "prompt is too long: 513 tokens > 512 maximum",
        ),
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains 9000 characters (more "
            "than 5120 characters, which is the upper bound for 512 input tokens).",
            "prompt is too long: 513 tokens > 512 maximum",
        ),
        ("max_model_len it is", "max_model_len it is"),
    ],
    ids=["tokens", "at-least", "at-sampling", "characters", "other"],
)
def test_each_of_the_engines_ways_to_say_it_is_read(said: str, words: str) -> None:
    """Where it tells characters alone, the prompt has one token too many at least."""
    problem = Problem(status=400, message=said, code=TOO_LONG)
    assert json.loads(ANTHROPIC.error(problem))["error"]["message"] == words


async def test_a_prompt_that_fits_is_sampled_from() -> None:
    """The other side of the bound."""
    async with rig(engine()) as r:
        r.engine.replies.append(Reply("ok"))
        status, _ = await r.post("/v1/messages", {**MESSAGES, "messages": [{"role": "user", "content": "hi"}]})
        assert status == 200
