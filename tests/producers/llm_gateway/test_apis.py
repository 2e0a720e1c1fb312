"""The same conversation by each API: the same prompts, the same sampled ids, every turn merged."""

from __future__ import annotations

import asyncio
import itertools
import random
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, full_prompt, rig
from tests.producers.llm_gateway.speakers import SPEAKERS, Speaker
from tracegrad.schemas.records.tokens import ids_from_bytes

pytestmark = pytest.mark.slow
PHASES = [Phase.explicit, Phase.reuse, Phase.generate]
"""Each example is five conversations: to shrink one would take minutes."""
TEXT = st.text(alphabet="ab 12\n", min_size=1, max_size=9)
VALUE = st.none() | st.booleans() | st.integers(-99, 99) | st.floats(-9, 9) | TEXT | st.lists(st.integers(), max_size=2)
CALLS = st.lists(st.dictionaries(TEXT, VALUE, max_size=2).map(lambda it: tool_call_text("calc", **it)), max_size=2)
TWO = tool_call_text("calc", a=1) + tool_call_text("calc", b="2 3")
REPLY = st.builds(
    lambda thought, text, calls: f"{thought and f'<think>{thought}</think>'}{text}{''.join(calls)}",
    st.just("") | TEXT,
    st.just("") | TEXT,
    CALLS,
)


async def converse(
    speaker: str, replies: list[str], habits: int, reminded: int
) -> tuple[list[str], list[tuple[list[int], Any]]]:
    """Until the model has said all; the texts, and for each call its prompt and what was sampled."""
    async with rig() as r:
        r.engine.reasons = True
        r.engine.replies.extend(map(Reply, replies))
        await r.begin()
        agent: Speaker = SPEAKERS[speaker](r, random.Random(habits))
        heard, calls = [], list[str]()
        for i in range(len(replies)):
            if calls:
                text, calls = await agent.tell(dict.fromkeys(calls, f"{i}12"))
            else:
                if i == reminded:
                    agent.remind("be exact")
                text, calls = await agent.ask(f"use the tool {i}34")
            heard.append(text)
        records = r.calls()
        for before, record in itertools.pairwise(records):
            assert (record.splice.kind, record.parent_call_id) == ("extended", before.call_id), record.splice
        return heard, [(full_prompt(it, records), ids_from_bytes(it.sampled_ids).tolist()) for it in records]


@example([tool_call_text("calc", huge=-(2**77)), "ok"], 0, 0)
@example([f"so:{TWO}", TWO, "ok"], 0, 3)
@example([f"so:{TWO}", TWO, "ok"], 1, 0)
@example([f"<think>hm</think>{TWO}", "ok", TWO, "yes"], 2, 2)
@given(st.lists(REPLY, min_size=1, max_size=4), st.integers(0, 99), st.integers(1, 5))
@settings(max_examples=8, deadline=None, phases=PHASES, suppress_health_check=[HealthCheck.too_slow])
def test_a_conversation_has_the_same_ids_by_every_api(replies: list[str], habits: int, reminded: int) -> None:
    """However the agent writes the answers that it sends back; and each turn continues the one before."""
    expected = asyncio.run(converse("chat", replies, habits, reminded))
    for speaker in SPEAKERS:
        assert asyncio.run(converse(speaker, replies, habits, reminded)) == expected, speaker


async def test_a_count_is_the_prompts_that_would_be_sampled_from(r: Rig) -> None:
    """With the ids of earlier answers, not what their texts would be encoded to; nothing is recorded."""
    r.engine.replies.extend([Reply("1234"), Reply("ok")])
    path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/messages"
    messages: list[Any] = [{"role": "user", "content": "count"}]
    body = {"model": "policy", "max_tokens": 99, "messages": messages}
    answer = (await r.post(path, body))[1]
    messages += [{"role": "assistant", "content": answer["content"]}, {"role": "user", "content": "on"}]
    status, counted = await r.post(f"{path}/count_tokens", {"model": "policy", "messages": messages})
    assert status == 200 and len(r.calls()) == 1
    usage = (await r.post(path, body))[1]["usage"]
    assert counted == {"input_tokens": usage["input_tokens"]}
    assert usage["input_tokens"] == len(full_prompt(r.calls()[1], r.calls()))


@pytest.mark.parametrize("path", ["", f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"])
async def test_a_refused_message_is_told_in_anthropics_words(r: Rig, path: str) -> None:
    """Of a body, of an attempt that ended, for a count."""
    for route in ("/v1/messages", "/v1/messages/count_tokens"):
        status, answer = await r.post(path + route, {"messages": []})
        assert (status, answer["type"], answer["error"]["type"]) == (400, "error", "invalid_request_error")
    await r.end()
    if path:
        body = {"model": "policy", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
        status, answer = await r.post(f"{path}/v1/messages", body)
        assert (status, answer["error"]["type"]) == (410, "invalid_request_error")


async def test_an_episode_goes_on_with_its_own_answers_only(r: Rig) -> None:
    """Another attempt's, one that was not stored, one that nobody gave: 400, in OpenAI's words."""
    paths = [f"/rollout/{ROLLOUT}/attempt/{attempt}/v1/responses" for attempt in (ATTEMPT, "0b0b")]
    await r.begin(attempt="0b0b")
    body = {"model": "policy", "input": "say 12"}
    kept, left = [(await r.post(paths[0], body | {"store": store}))[1]["id"] for store in (True, False)]
    assert (await r.post(paths[0], body | {"previous_response_id": kept}))[0] == 200
    for path, named in ((paths[1], kept), (paths[0], left), (paths[0], "resp_none"), ("/v1/responses", kept)):
        status, answer = await r.post(path, body | {"previous_response_id": named})
        assert (status, answer["error"]["code"]) == (400, "previous_response_not_found"), (path, named)


async def test_a_captured_agent_goes_on_by_the_answers_id(r: Rig) -> None:
    """In the conversation of that answer, whatever trace the request is of; not with another client's key."""
    r.engine.replies.extend([Reply("1234"), Reply("ok")])
    body = {"model": "policy", "input": "count"}
    traces = [f"00-{digit * 32}-{'1' * 16}-01" for digit in "ab"]
    first = (await r.post("/v1/responses", body, traceparent=traces[0]))[1]
    body |= {"previous_response_id": first["id"]}
    assert (await r.post("/v1/responses", body, traceparent=traces[1]))[0] == 200
    before, after = r.calls()
    assert (after.splice.kind, after.parent_call_id) == ("extended", before.call_id)
    alone = (await r.post("/v1/responses", {"model": "policy", "input": "x"}))[1]
    theirs = {"model": "policy", "input": "y", "previous_response_id": alone["id"]}
    assert (await r.post("/v1/responses", theirs, **{"x-api-key": "another"}))[0] == 400
    assert (await r.post("/v1/responses", theirs))[0] == 200
