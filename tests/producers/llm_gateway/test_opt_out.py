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
