"""Requests that the gateway refuses or bounds: the status and the words an agent gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, GENERATE, ROLLOUT, Rig, begun, until

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
