"""A request that asks to leave no record leaves none."""

from __future__ import annotations

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, ROLLOUT
from tests.producers.llm_gateway.provider import Provider, with_provider
from tracegrad.schemas.metrics import CALLS_OPTED_OUT

pytestmark = pytest.mark.slow
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
