"""Requests for other models: passed on as they are, recorded as context, and never answered by the policy."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from typing import Any

import aiohttp
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_engine.scripted import Reply
from tests.producers.keys import by_host
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, GENERATE, ROLLOUT, Rig, begun, rig, until
from tests.producers.llm_gateway.provider import KEY, Provider, events, upstream, with_provider
from tests.serving import free_port
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.llm_gateway.upstream.answer import AnswerReader
from tracegrad.producers.llm_gateway.upstream.pass_on import ROUTES
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.metrics import UPSTREAM_CALLS, UPSTREAM_CALLS_UNRECORDED
from tracegrad.schemas.records.calls import CallOutcome, UpstreamCall

pytestmark = pytest.mark.slow
ANSWER = {
    "id": "chatcmpl-AbC",
    "model": "gpt-4o-2024-11-20",
    "choices": [{"message": {"role": "assistant", "tool_calls": [{"id": "call_x", "type": "function"}]}}],
    "usage": {"prompt_tokens": 12, "completion_tokens": 34},
}
BODY = b'{ "model":"gpt-4o",\n "messages": [{"role":"user","content":"h\\u00e9"}] , "n" : 3}'


TYPES = ["application/json", "text/event-stream", "text/event-stream; charset=utf-8", "audio/mpeg", ""]
PIECES = [
    b"data: ",
    b"\n",
    b'{"id": 1, "usage": {"prompt_tokens": true, "output_tokens": -1}}',
    b'{"choices": [{"delta": {"tool_calls": [{"id": {}}]}}], "content": 5, "response": []}',
    b'[[{"usage": 7}]]',
    b'{"id": "\\ud800", "model": "\\udfff"}',
    b"[DONE]",
    b"\xff\xfe",
]


async def recorded(r: Rig, num: int = 1) -> list[UpstreamCall]:
    """The records of so many, which come once their answers are sent."""
    await until(lambda: len(r.passed_on()) >= num)
    return r.passed_on()


async def send(
    r: Rig, route: str, body: bytes, headers: dict[str, str] | None = None, *, attempt: bool = False
) -> tuple[int, bytes, Any]:
    """(status, body, headers) of the answer."""
    path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}{route}" if attempt else route
    given = {"content-type": "application/json"} | (headers or {})
    async with r.http.post(r.url + path, data=body, headers=given) as response:
        return response.status, await response.read(), response.headers


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_is_passed_on_unchanged_with_the_upstreams_key(route: str) -> None:
    """Every byte of its body, its query and the headers that change an answer; none that says who the agent is."""
    provider = Provider(json.dumps(ANSWER).encode(), headers={"content-type": "application/json", "x-request-id": "r1"})
    async with with_provider(provider) as r:
        secret = {
            "authorization": "Bearer sk-agents-own",
            "cookie": "session=agents-own",
            "x-goog-api-key": "agents-own",
            "api-key": "agents-own",
            "openai-organization": "agents-own",
            "x-tracegrad-token": "agents-own",
            "x-conversation-id": "agents-own",
            "baggage": "who=agents-own",
        }
        passed = {"anthropic-version": "2023-06-01", "openai-beta": "x", "user-agent": "me", "x-stainless-lang": "js"}
        status, answer, headers = await send(r, f"{route}?beta=true", BODY, secret | passed)
        assert (status, answer, headers["x-request-id"]) == (200, provider.answer, "r1")
        (asked,) = provider.asked
        assert (asked.path, asked.query, asked.body) == (route, "beta=true", BODY)
        assert passed.items() <= asked.headers.items()
        told = " ".join((*asked.headers, *asked.headers.values()))
        assert "agents-own" not in told and by_host()["x-api-key"] not in told
        own = {"x-api-key": KEY} if route.startswith("/v1/messages") else {"authorization": f"Bearer {KEY}"}
        assert own.items() <= asked.headers.items() and told.count(KEY) == 1
        assert r.engine.requests == []


async def test_it_is_recorded_as_context_without_content() -> None:
    """Who called, what was asked, what it cost; an attempt's end does not name it, for it trains nothing."""
    async with with_provider(Provider(json.dumps(ANSWER).encode())) as r:
        await r.begin()
        assert (await send(r, "/v1/chat/completions", BODY, attempt=True))[0] == 200
        assert await r.end() == []
        (call,) = await recorded(r)
        assert (call.rollout_id, call.attempt_id) == (ROLLOUT, ATTEMPT)
        assert (call.upstream, call.route, call.model) == ("openai", "/v1/chat/completions", "gpt-4o")
        assert (call.status, call.outcome) == (200, CallOutcome.DELIVERED)
        assert (call.response_id, call.answered_model) == ("chatcmpl-AbC", "gpt-4o-2024-11-20")
        assert (call.tool_call_ids, call.prompt_tokens, call.sampled_tokens) == (("call_x",), 12, 34)
        assert r.gateway.parts.metrics.value(UPSTREAM_CALLS, "openai", "200") == 1
        assert (await send(r, "/v1/chat/completions", BODY, attempt=True))[0] == 410


STREAMS = {
    "chat": (
        {"id": "chatcmpl-1", "choices": [{"delta": {"content": "h"}}]},
        {"id": "chatcmpl-1", "choices": [{"delta": {"tool_calls": [{"index": 0, "id": "call_1"}]}}]},
        {"id": "chatcmpl-1", "choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 7}},
    ),
    "responses": (
        {"type": "response.created", "response": {"id": "chatcmpl-1", "usage": None}},
        {"type": "response.output_item.done", "item": {"type": "function_call", "id": "fc_1", "call_id": "call_1"}},
        {"type": "response.completed", "response": {"id": "x", "usage": {"input_tokens": 5, "output_tokens": 7}}},
    ),
    "messages": (
        {"type": "message_start", "message": {"id": "chatcmpl-1", "usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "content_block": {"type": "tool_use", "id": "call_1"}},
        {"type": "message_delta", "usage": {"output_tokens": 7}},
    ),
}


@pytest.mark.parametrize("name", STREAMS)
async def test_a_stream_is_passed_on_as_it_comes(name: str) -> None:
    """The first piece is there before the second exists; the record has the last word of each figure."""
    provider = Provider([*events(*STREAMS[name]), b"data: [DONE]\n\n"], headers={"content-type": "text/event-stream"})
    provider.go_on.clear()
    async with with_provider(provider) as r, r.http.post(r.url + "/v1/chat/completions", data=BODY) as response:
        assert response.headers["content-type"] == "text/event-stream"
        assert await response.content.readany() == provider.answer[0]
        provider.go_on.set()
        assert await response.read() == b"".join(provider.answer[1:])  # type: ignore[arg-type]
        (call,) = await recorded(r)
        assert (call.response_id, call.tool_call_ids) == ("chatcmpl-1", ("call_1",))
        assert (call.prompt_tokens, call.sampled_tokens) == (5, 7)


@pytest.mark.parametrize("status", [400, 401, 404, 429, 500, 503, 529])
async def test_an_error_comes_back_as_it_is(status: int) -> None:
    """Status, body and the headers that tell when to try again; its own key is in none of them."""
    headers = {"content-type": "application/json", "retry-after": "7", "set-cookie": "a=b"}
    async with with_provider(Provider(b'{"error": "as it is"}', status, headers)) as r:
        found, answer, told = await send(r, "/v1/chat/completions", BODY)
        assert (found, answer, told["retry-after"]) == (status, b'{"error": "as it is"}', "7")
        assert "set-cookie" not in told
        (call,) = await recorded(r)
        assert (call.status, call.outcome) == (status, CallOutcome.DELIVERED)


async def test_it_serves_on_when_kafka_is_down() -> None:
    """The answer waits for nothing; what left no record is counted."""
    async with with_provider(Provider(json.dumps(ANSWER).encode())) as r:
        r.log.hold()
        assert (await send(r, "/v1/chat/completions", BODY))[0] == 200
        assert len(await recorded(r)) == 1
        r.log.release()
        r.log.fail_next(UnavailableError("away"))
        assert (await send(r, "/v1/chat/completions", BODY))[0] == 200
        metrics = r.gateway.parts.metrics
        await until(lambda: metrics.value(UPSTREAM_CALLS_UNRECORDED, "UnavailableError") == 1)
        assert len(r.passed_on()) == 1


async def test_no_redirect_is_followed() -> None:
    """It would take the key, and the prompt, to whom the settings do not name."""
    provider = Provider(b"", 307, {"location": "http://127.0.0.1:1/v1/chat/completions"})
    async with with_provider(provider) as r:
        status, answer, headers = await send(r, "/v1/chat/completions", BODY)
        assert status == 502 and b"redirect" in answer and "location" not in headers


async def test_an_upstream_that_is_away_gives_502() -> None:
    """In the words of the agent's API, with a record."""
    away = upstream(f"http://127.0.0.1:{free_port()}")
    async with rig(upstreams=(away,)) as r:
        status, answer, _ = await send(r, "/v1/chat/completions", BODY)
        assert (status, json.loads(answer)["error"]["code"]) == (502, "upstream_unavailable")
        assert [(call.status, call.outcome) for call in await recorded(r)] == [(502, CallOutcome.DELIVERED)]


async def test_an_upstream_that_is_slow_gives_504_and_what_breaks_off_breaks_off() -> None:
    """An answer that has begun cannot become an error: its connection ends without its end."""
    provider = Provider([b"x", b"y"])
    provider.go_on.clear()
    async with with_provider(provider, of={"timeout_s": 0.1}) as r:
        provider.delay = asyncio.Event()
        assert (await send(r, "/v1/chat/completions", BODY))[0] == 504
        provider.delay.set()
        with pytest.raises(aiohttp.ClientPayloadError):
            await send(r, "/v1/chat/completions", BODY)
        assert {(call.status, call.outcome) for call in await recorded(r, 2)} == {
            (504, CallOutcome.DELIVERED),
            (200, CallOutcome.UNKNOWN),
        }


async def test_an_agent_that_leaves_ends_its_request() -> None:
    """Nobody pays for what nobody reads; the record says that it was not delivered."""
    provider = Provider([b"x", b"y"])
    provider.go_on.clear()
    async with with_provider(provider) as r:
        async with r.http.post(r.url + "/v1/chat/completions", data=BODY) as response:
            await response.content.readany()
        assert [call.outcome for call in await recorded(r)] == [CallOutcome.CLIENT_DISCONNECTED]
        await until(lambda: provider.num_gone)


async def test_an_attempts_end_ends_its_requests() -> None:
    """It waits as it does for calls of the policy, and then goes on without them."""
    provider = Provider()
    provider.delay = asyncio.Event()
    async with with_provider(provider, end_wait_s=0.05) as r:
        await r.begin()
        asked = asyncio.create_task(send(r, "/v1/chat/completions", BODY, attempt=True))
        await until(lambda: provider.asked)
        assert await r.end() == []
        assert (await asked)[0] == 410
        provider.delay.set()


async def test_the_slots_of_an_upstream_are_its_own() -> None:
    """Beyond them 503; calls of the policy go on, and an attempt's, which a 503 would have tried again."""
    provider = Provider()
    provider.delay = asyncio.Event()
    async with with_provider(provider, of={"max_inflight": 4}) as r:
        await r.begin()
        asked = [asyncio.create_task(send(r, "/v1/chat/completions", BODY)) for _ in range(2)]
        await until(lambda: len(provider.asked) == 2)
        status, _, headers = await send(r, "/v1/chat/completions", BODY)
        assert status == 503 and int(headers["retry-after"]) >= 1
        asked.append(asyncio.create_task(send(r, "/v1/chat/completions", BODY, attempt=True)))
        await until(lambda: len(provider.asked) == 3 or asked[-1].done())
        r.engine.replies.append(Reply("42"))
        assert (await r.post("/v1/chat/completions", {"model": "policy", "messages": ASK}))[0] == 200
        provider.delay.set()
        assert [(await one)[0] for one in asked] == [200] * 3
        assert (await send(r, "/v1/chat/completions", BODY))[0] == 200


async def test_names_of_the_policy_are_the_policys_and_the_first_upstream_takes_the_others() -> None:
    """Whatever pattern would fit too; exact names are listed beside the policy's."""
    provider, policy = Provider(), PolicyConfig(model="none", aliases=("gpt-4o-mini",))
    async with with_provider(provider, policy=policy) as r:
        r.engine.replies.append(Reply("42"))
        status, answer = await r.post("/v1/chat/completions", {"model": "gpt-4o-mini", "messages": ASK})
        assert (status, answer["choices"][0]["message"]["content"], provider.asked) == (200, "42", [])
        status, answer = await r.post("/v1/chat/completions", {"model": "mistral-large", "messages": ASK})
        assert status == 404 and '[[upstream]] models = ["mistral-large"]' in answer["error"]["message"]
        for route in ("/v1/embeddings", "/v1/completions"):
            status, answer = await r.post(route, {"model": "policy", "input": "x", "prompt": "x"})
            said = answer["error"]["message"]
            assert status == 404 and route in said and OPENAI_CHAT.path in said
        async with r.http.get(r.url + "/v1/models") as response:
            models = await response.json()
        assert [one["id"] for one in models["data"]] == ["policy", "gpt-4o-mini", "text-embedding-3-small"]


@given(st.lists(st.binary(max_size=60) | st.sampled_from(PIECES), max_size=12), st.sampled_from(TYPES))
def test_no_answer_is_too_strange_to_be_passed_on(pieces: list[bytes], content_type: str) -> None:
    """What is read beside it never fails, and can be recorded."""
    reader = AnswerReader(content_type)
    for piece in pieces:
        reader.read_piece(piece)
    said = reader.close()
    assert said.sampled_tokens is None or type(said.sampled_tokens) is int
    assert all(isinstance(id_, str) for id_ in said.tool_call_ids)
    msgspec.msgpack.encode(said)


@given(st.data())
def test_a_stream_says_the_same_however_it_is_cut(data: st.DataObject) -> None:
    """Into pieces by the network."""
    whole = b"".join(events(*STREAMS[data.draw(st.sampled_from(sorted(STREAMS)))]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(whole)), max_size=6)))
    reader = AnswerReader("text/event-stream")
    for start, end in pairwise([0, *cuts, len(whole)]):
        reader.read_piece(whole[start:end])
    said = reader.close()
    assert (said.response_id, said.tool_call_ids) == ("chatcmpl-1", ["call_1"])
    assert (said.prompt_tokens, said.sampled_tokens) == (5, 7)


@pytest.mark.parametrize("begun", [True, False], ids=["attempt", "captured"])
async def test_another_model_is_never_answered_by_the_policy(r: Rig, begun: bool) -> None:
    """404, with the line that would make the name the policy's; no engine is asked, nothing is recorded."""
    if begun:
        status, answer = await r.chat_raw(ASK, model="gpt-4o")
    else:
        status, answer = await r.post("/v1/chat/completions", {"model": "gpt-4o", "messages": ASK})
    assert status == 404
    assert answer["error"]["code"] == "model_not_found" and answer["error"]["param"] == "model"
    assert '[policy] aliases = ["gpt-4o"]' in answer["error"]["message"]
    assert r.asked(GENERATE) == [] and r.calls() == []
    assert await r.end() == []


async def test_an_alias_is_the_policy() -> None:
    """By its exact spelling; the answer and the list of models repeat it, the record names the policy."""
    async with begun(policy=PolicyConfig(model="none", aliases=("gpt-4o-mini",))) as r:
        r.engine.replies.append(Reply("42"))
        answer = await r.chat(ASK, model="gpt-4o-mini")
        assert answer["model"] == "gpt-4o-mini"
        assert [call.policy for call in r.calls()] == ["policy"]
        assert (await r.chat_raw(ASK, model="GPT-4o-mini"))[0] == 404
        async with r.http.get(r.url + "/v1/models") as response:
            models = await response.json()
        assert [model["id"] for model in models["data"]] == ["policy", "gpt-4o-mini"]


async def test_a_request_without_a_model_means_the_policy(r: Rig) -> None:
    """OpenAI's clients always name one; a request by hand need not."""
    r.engine.replies.append(Reply("42"))
    assert (await r.chat(ASK, model=None))["model"] == "policy"


async def test_without_a_policy_every_model_is_another() -> None:
    """404 says what to configure; a request without a model means nobody."""
    async with rig(policy=PolicyConfig()) as r:
        for model in ("policy", "gpt-4o", None):
            status, answer = await r.post("/v1/chat/completions", {"model": model, "messages": ASK})
            assert status == 404 and "[policy] model = DIR" in answer["error"]["message"]
        async with r.http.get(r.url + "/v1/models") as response:
            assert (await response.json())["data"] == []
