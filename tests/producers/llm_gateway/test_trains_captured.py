"""Captured calls in a run that trains on them: sampled as the policy is, by versions that are known."""

from __future__ import annotations

import asyncio

import pytest

from tests.fake_engine.scripted import ScriptedEngine
from tests.producers.llm_gateway.harness import ASK, Rig, rig
from tests.versions import label

ASKED = {"model": "policy", "messages": ASK, "temperature": 0.2, "top_p": 0.5, "logit_bias": {"5": 3}, "max_tokens": 8}
PATH = "/v1/chat/completions"


@pytest.mark.parametrize(("trains", "temperature", "is_constrained"), [(True, 1.0, False), (False, 0.2, True)])
async def test_the_sampling_is_the_policys_where_the_call_is_to_train(
    trains: bool, temperature: float, is_constrained: bool
) -> None:
    """What the agent asked stays on the record; its bound on the length holds."""
    async with rig(trains_captured=trains) as r:
        status, _ = await r.post(PATH, ASKED)
        (call,) = r.calls()
        assert (status, call.purpose, call.answers_user) == (200, "unknown", True)
        assert (call.sampling_used.temperature, call.is_constrained) == (temperature, is_constrained)
        assert (call.sampling_used.max_tokens, call.sampling_asked["temperature"]) == (8, 0.2)


async def test_the_agents_own_sampling_is_kept_where_the_run_says_so() -> None:
    """By versions that are known all the same; what is cut is masked when episodes are made."""
    async with rig(trains_captured=True, samples_as_asked=True) as r:
        assert (await r.post(PATH, ASKED | {"logit_bias": {}}))[0] == 200
        (call,) = r.calls()
        assert (call.sampling_used.temperature, call.sampling_used.top_p) == (0.2, 0.5)
        assert [span.version for span in call.versions] == [0] and not call.is_constrained


async def test_an_unknown_version_answers_nothing_that_is_to_train() -> None:
    """The call waits, and is sampled by one that is known."""
    async with rig(ScriptedEngine(label="default"), trains_captured=True) as r:
        asking = asyncio.create_task(r.post(PATH, ASKED))
        await asyncio.sleep(0.3)
        assert not asking.done()
        r.engine.label = label(0)
        assert (await asking)[0] == 200
        (call,) = r.calls()
        assert [span.version for span in call.versions] == [0]


async def test_an_answer_to_a_tool_answers_no_user(r: Rig) -> None:
    """Nor does one that goes on from an answer."""
    call = {"id": "call_x", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
    messages = [
        *ASK,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_x", "content": "42"},
    ]
    assert (await r.post(PATH, {"model": "policy", "messages": messages}))[0] == 200
    assert [call.answers_user for call in r.calls()] == [False]
