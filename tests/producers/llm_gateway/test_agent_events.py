"""Agents of Agent Lightning 1.0: their routes are the gateway's own, and what they say of their reward is only said."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.producers.keys import bearer
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, ROLLOUT, TOPICS, Rig, rig
from tracegrad.producers.llm_gateway.agent_events import _reward
from tracegrad.producers.llm_gateway.session import AttemptSession
from tracegrad.schemas.credentials import Holder, attempt_holder
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import AttemptId, RolloutId
from tracegrad.schemas.metrics import AGENT_EVENTS
from tracegrad.schemas.records.calls import CallRecord, CallsClosed, Purpose
from tracegrad.schemas.records.rollouts import REWARDS, Reward, is_usable
from tracegrad.schemas.topics import Topic

NUM_TRIES = int(os.environ.get("TRACEGRAD_TEST_TRIES", "100"))
EVENTS = f"/api/rollouts/{ROLLOUT}/attempt/{ATTEMPT}/events"
PROXY = f"/proxy/rollout/{ROLLOUT}/attempt/{ATTEMPT}/mode"


def said(value: Any) -> dict[str, Any]:
    """A reward event."""
    return {"event_type": "reward", "data": {"value": value, "source": "agent"}}


def rewards(rig: Rig) -> list[Reward]:
    """All of `rewards`."""
    return [REWARDS.decode(record.value) for record in rig.log.records(TOPICS.name(Topic.REWARDS))]


@pytest.mark.parametrize("mode", ["train", "val"])
async def test_a_call_by_the_proxy_path_is_a_call_of_the_attempt(mode: str) -> None:
    """Whatever mode the path names, the purpose is what the runner said."""
    async with rig() as gateway:
        await gateway.begin(purpose="validation")
        body = {"model": "policy", "messages": ASK}
        status, answer = await gateway.post(f"{PROXY}/{mode}/openai/v1/chat/completions", body)
        assert status == 200 and answer["choices"][0]["message"]["content"]
        (call,) = gateway.calls()
        assert (call.call_id, call.rollout_id, call.purpose) == (answer["id"], ROLLOUT, Purpose.VALIDATION)


@pytest.mark.parametrize(
    ("path", "status"),
    [(f"{PROXY}/test/openai/v1/chat/completions", 404), (f"{PROXY}/train/openai/v1/embeddings", 404)],
)
async def test_other_modes_and_paths_are_unknown(r: Rig, path: str, status: int) -> None:
    """Nothing is proxied that is not listed."""
    async with r.http.post(r.url + path, json={"model": "policy", "messages": ASK}) as response:
        assert response.status == status


async def test_the_last_reward_is_one_record_before_the_end(r: Rig) -> None:
    """An event is answered as that server answers it; other types are let go; `/end` asked again writes the same."""
    status, event = await r.post(EVENTS, said(0.25))
    assert (status, event["event_type"], event["data"]["value"]) == (200, "reward", 0.25)
    assert (event["rollout_id"], event["attempt_id"]) == (ROLLOUT, ATTEMPT) and event["timestamp"] > 0
    assert (await r.post(EVENTS, {"event_type": "agent_output", "data": {"patch": "x"}}))[0] == 200
    assert (await r.post(EVENTS, said(True)))[0] == 200
    assert rewards(r) == []
    await r.chat(ASK)
    await r.end()
    await r.end()
    (reward,) = rewards(r)
    assert (reward.name, reward.value, reward.source) == ("agent", 1.0, "agent")
    assert [type(record) for record in r.records()][-1] is CallsClosed
    counted = r.gateway.parts.metrics
    assert (counted.value(AGENT_EVENTS, "reward"), counted.value(AGENT_EVENTS, "other")) == (2, 1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"event_type": 1},
        {"event_type": "reward"},
        {"event_type": "reward", "data": 1},
        {"event_type": "reward", "data": {"value": "NaN"}},
        {"event_type": "reward", "data": {"value": None}},
        {"event_type": "reward", "data": {"value": [1]}},
        {"event_type": "reward", "data": {"value": 1e300}},
    ],
    ids=str,
)
async def test_what_is_no_event_is_400_and_says_nothing(r: Rig, body: Any) -> None:
    """The attempt goes on."""
    assert (await r.post(EVENTS, body))[0] == 400
    await r.chat(ASK)
    await r.end()
    assert rewards(r) == []


async def test_only_the_attempts_own_agent_may_say_it() -> None:
    """Nobody (403), another attempt's command (403), before it began (409), after its end (410), a stranger's (409)."""
    other = bearer(attempt_holder(RolloutId(ROLLOUT), AttemptId("bbbb")))
    async with rig() as gateway:
        assert (await gateway.post(EVENTS, said(1)))[0] == 409
        await gateway.begin()
        for headers in ({"x-api-key": "nobody"}, {"x-api-key": "", **other}):
            assert (await gateway.post(EVENTS, said(1e6), **headers))[0] == 403
        await gateway.end()
        assert (await gateway.post(EVENTS, said(1e6)))[0] == 410
        strange = EVENTS.replace(ROLLOUT, "f" * 28)
        assert (await gateway.post(strange, said(1e6)))[0] == 409
        assert rewards(gateway) == []


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.integers() | st.text(), st.lists))
def test_any_value_is_a_usable_number_or_refused(value: Any) -> None:
    """Nothing else reaches the log."""
    session = AttemptSession(ROLLOUT + ATTEMPT, Purpose.TRAIN, Holder("rh-1"))
    try:
        reward = _reward(session, {"value": value})
    except RequestError as error:
        assert error.status == 400
    else:
        assert is_usable(reward.value) and reward.value == float(value)


async def test_a_command_calls_and_tells_by_its_key_alone() -> None:
    """The credential in AGL_KEY, as Bearer: the openai client's header and the one that agents send."""
    own = {"x-api-key": "", **bearer(attempt_holder(RolloutId(ROLLOUT), AttemptId(ATTEMPT)))}
    async with rig() as gateway:
        await gateway.begin(host=None)
        body = {"model": "policy", "messages": ASK}
        assert (await gateway.post(f"{PROXY}/train/openai/v1/chat/completions", body, **own))[0] == 200
        assert (await gateway.post(EVENTS, said(0.5), **own))[0] == 200
        await gateway.end()
        assert [type(record) for record in gateway.records()] == [CallRecord, CallsClosed]
        assert [reward.value for reward in rewards(gateway)] == [0.5]


@pytest.mark.slow
async def test_damaged_events_are_the_clients_fault(r: Rig) -> None:
    """Whatever the body, never a 5xx; TRACEGRAD_TEST_TRIES makes it longer. What was said before stays said."""
    source, whole = random.Random(7), json.dumps(said(0.5)).encode()
    await r.post(EVENTS, said(0.5))
    for _ in range(NUM_TRIES):
        body = bytearray(whole)
        for _ in range(source.randrange(6)):
            body[source.randrange(len(body))] = source.randrange(256)
        cut = bytes(body[: source.randrange(len(body))])
        async with r.http.post(r.url + EVENTS, data=cut) as response:
            assert response.status == 400, cut
    await r.end()
    assert [reward.value for reward in rewards(r)] == [0.5]
