"""What is odd on the way to an upstream: two models in a body, odd statuses, slots given back, no record wanted."""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, ROLLOUT, rig, until
from tests.producers.llm_gateway.provider import Provider, upstream, with_provider
from tests.producers.llm_gateway.test_upstream import ANSWER, BODY, recorded, send
from tests.serving import serve
from tracegrad.producers.llm_gateway.config import Timings
from tracegrad.producers.llm_gateway.upstream import pass_on
from tracegrad.schemas.metrics import CALLS_OPTED_OUT
from tracegrad.schemas.records.calls import CallOutcome

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("status", [101, 600, 999])
async def test_a_status_that_is_none_of_an_answer_gives_502(status: int) -> None:
    """HTTP knows none from 600 on, and what is below 200 is no answer yet; its slot is free again."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d Odd\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}" % status)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        odd = upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", max_inflight=2)
        async with rig(upstreams=(odd,)) as r:
            for _ in range(2):
                found, said, _ = await send(r, "/v1/chat/completions", BODY)
                assert (found, json.loads(said)["error"]["code"]) == (502, "upstream_unavailable")
            assert [(call.status, call.outcome) for call in await recorded(r, 2)] == [(502, CallOutcome.DELIVERED)] * 2


async def test_a_connection_is_dropped_before_the_upstream_would() -> None:
    """A server ends one that is idle (uvicorn after 5 s), and a request that meets that end would be lost: 502."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, TimeoutError):
            while True:
                head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 0.15)
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        # As if the request that may come right here had been on its way already.
        with contextlib.suppress(asyncio.IncompleteReadError):
            await reader.readexactly(1)
        writer.transport.abort()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        away = upstream(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        async with rig(upstreams=(away,), timings=Timings(upstream_idle_s=0.05)) as r:
            for _ in range(2):
                assert (await send(r, "/v1/chat/completions", BODY))[0] == 200
                await asyncio.sleep(0.2)


TWICE = {
    "twice": b'{"model": "gpt-4o", "messages": [], "model": "gpt-4o-mini"}',
    "escaped": b'{"mod\\u0065l": "gpt-4o", "messages": [], "model": "gpt-4o-mini"}',
    "in capitals": b'{"model": "gpt-4o", "messages": [], "MODEL": "o3"}',
    "the policy first": b'{"model": "policy", "messages": [], "model": "gpt-4o"}',
}


@pytest.mark.parametrize("body", TWICE.values(), ids=TWICE)
async def test_a_body_that_names_two_models_goes_nowhere(body: bytes) -> None:
    """JSON leaves it open which counts, and some readers take names in any case: the upstream might mean the other."""
    async with with_provider(Provider(json.dumps(ANSWER).encode())) as r:
        status, said, _ = await send(r, "/v1/chat/completions", body)
        assert status == 400 and json.loads(said)["error"]["param"] == "model"
        assert r.passed_on() == []


async def test_a_model_that_is_named_deeper_is_no_second_one() -> None:
    """As in a tool's parameters, or in what somebody said."""
    deep = (
        b'{"tools": [{"model": 1, "x": {"Model": 9e99}}], "model": "gpt-4o", "n": 123, "said": "\\"model\\": \\u006d"}'
    )
    provider = Provider(json.dumps(ANSWER).encode())
    async with with_provider(provider) as r:
        assert (await send(r, "/v1/chat/completions", deep))[0] == 200
        assert [asked.body for asked in provider.asked] == [deep]


async def test_a_request_that_is_cancelled_twice_gives_its_slot_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a server that is told to stop, and then to stop at once: a record still tells of it."""
    ending = asyncio.Event()

    async def forward(self: Any, answer: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ending.set()
            await asyncio.sleep(0.05)  # a connection that takes its time to close

    monkeypatch.setattr(pass_on._Answering, "_forward", forward)
    async with with_provider(Provider(), of={"max_inflight": 2}) as r:
        taken: list[asyncio.Task[Any]] = []
        answering = pass_on._Answering.__call__

        async def noted(self: Any, *given: Any) -> None:
            taken.append(asyncio.ensure_future(answering(self, *given)))
            with contextlib.suppress(asyncio.CancelledError):
                await taken[-1]

        monkeypatch.setattr(pass_on._Answering, "__call__", noted)
        asked = asyncio.create_task(send(r, "/v1/chat/completions", BODY))
        await until(lambda: taken)
        await asyncio.sleep(0)
        taken[0].cancel()
        await ending.wait()
        taken[0].cancel()
        await asyncio.wait(taken)
        assert len(await recorded(r)) == 1
        assert r.gateway._upstreams._num_inflight.total() == 0
        asked.cancel()


async def test_two_upstreams_of_one_host_have_slots_of_their_own() -> None:
    """Unnamed, they bear the host's name both; who fills the one leaves the other's."""
    provider = Provider()
    provider.delay = asyncio.Event()
    async with serve(provider.app) as url:
        both = tuple(upstream(url, name, max_inflight=2) for name in ("gpt-4o", "gpt-4o-mini"))
        async with rig(upstreams=both) as r:
            first = asyncio.create_task(send(r, "/v1/chat/completions", BODY))
            await until(lambda: provider.asked)
            assert (await send(r, "/v1/chat/completions", BODY))[0] == 503
            second = asyncio.create_task(send(r, "/v1/chat/completions", BODY.replace(b"gpt-4o", b"gpt-4o-mini")))
            await until(lambda: len(provider.asked) == 2 or second.done())
            provider.delay.set()
            assert [(await one)[0] for one in (first, second)] == [200, 200]


ANN = {"x-api-key": "sk-ann"}
OFF = {"x-tracegrad-record": "off"}
CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("model", ["policy", "gpt-4o"])
async def test_a_call_that_opts_out_is_served_and_leaves_nothing(model: str) -> None:
    """No record on any topic, nothing that a later call could go on from; only a count."""
    async with with_provider(Provider(b'{"choices": []}')) as r:
        r.engine.replies.extend([Reply("42"), Reply("43")])
        status, answer = await r.post(CHAT, {"model": model, "messages": ASK}, **ANN, **OFF)
        assert status == 200
        assert r.records() == []
        assert r.gateway.parts.metrics.value(CALLS_OPTED_OUT) == 1
        if model == "policy":
            messages = [*ASK, answer["choices"][0]["message"], {"role": "user", "content": "and?"}]
            assert (await r.post(CHAT, {"model": model, "messages": messages}))[0] == 200
            assert [call.parent_call_id for call in r.calls()] == [None]


@pytest.mark.parametrize("token", [None, "t"])
@pytest.mark.parametrize("model", ["policy", "gpt-4o"])
async def test_code_of_an_attempt_opts_out_by_hiding_no_key(model: str, token: str | None) -> None:
    """Nobody knows whose a call without a credential is while attempts run; who shows the token is none of theirs."""
    async with with_provider(Provider(b'{"choices": []}'), token=token) as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        shown = {"x-tracegrad-token": token} if token else {}
        status, answer = await r.post(CHAT, {"model": model, "messages": ASK}, **ANN, **OFF, **shown)
        assert status == (200 if token else 400)
        if token is None:
            assert "set [llm] token" in answer["error"]["message"]
            await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end", {})
            assert (await r.post(CHAT, {"model": model, "messages": ASK}, **ANN, **OFF))[0] == 400
        assert r.calls() == [] and r.passed_on() == []


@pytest.mark.parametrize("model", ["policy", "gpt-4o"])
async def test_a_call_of_a_rollout_cannot_opt_out(model: str) -> None:
    """It trains; nor may anybody say anything else in that header."""
    async with with_provider(Provider()) as r:
        await r.begin()
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}{CHAT}"
        status, answer = await r.post(path, {"model": model, "messages": ASK}, **OFF)
        assert status == 400 and "calls of a rollout train" in answer["error"]["message"]
        status, answer = await r.post(CHAT, {"model": model, "messages": ASK}, **{"x-tracegrad-record": "no"})
        assert status == 400 and "expected off" in answer["error"]["message"]
        status, answer = await r.post(CHAT, {"model": model, "messages": ASK}, **OFF)
        assert status == 400 and "calls of a rollout train" in answer["error"]["message"], "host that names no rollout"
        assert r.records() == [] and r.engine.requests == []
