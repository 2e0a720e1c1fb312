"""The policy answers for itself and for no other model."""

from __future__ import annotations

import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.llm_gateway.harness import ASK, GENERATE, Rig, begun, rig
from tracegrad.producers.llm_gateway.config import PolicyConfig

pytestmark = pytest.mark.slow


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
