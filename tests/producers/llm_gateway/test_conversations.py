"""Which captured calls are one conversation: by what they name, else by what was said."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.keys import RUN_HASH, bearer
from tests.producers.llm_gateway.conversing import (
    ANN,
    GO_ON,
    OTHER_TRACE,
    TRACE,
    ask,
    keys,
)
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, TOPICS, Rig, full_prompt, rig, until
from tracegrad.producers.llm_gateway.captured.which_conversation import Nesting
from tracegrad.schemas.credentials import attempt_holder
from tracegrad.schemas.ids import AttemptId, RolloutId, conversation_key, key_in
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic


@pytest.mark.parametrize(
    "headers",
    [
        {"x-conversation-id": " c-17 "},
        {"baggage": "a=b,gen_ai.conversation.id=c%2D17;p=1"},
        {"baggage": "session.id=c-17"},
        {"baggage": "session.id=other,conversation.id=c-17"},
        {"x-conversation-id": "c-17", "baggage": "conversation.id=other"},
        {"x-conversation-id": "c-17", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"},
        {"baggage": "conversation.id=,session.id=c-17", "x-conversation-id": ""},
    ],
    ids=["header", "gen-ai", "session", "first-key", "header-first", "before-trace", "empty-is-absent"],
)
async def test_a_conversation_is_known_by_its_id(r: Rig, headers: dict[str, str]) -> None:
    """From any of its sources, before the trace; the record and the minted ids bear its key."""
    await ask(r, ASK, headers)
    (call,) = r.calls()
    assert keys(r) == [conversation_key("c-17")] == [call.conversation_key] == [key_in(call.call_id)]
    assert call.trace_id == (TRACE if "traceparent" in headers else None)


async def test_the_id_of_a_conversation_is_not_recorded(r: Rig) -> None:
    """It may be an address or a name."""
    await ask(r, ASK, {"x-conversation-id": "ann@example.org", "baggage": "session.id=ann@example.org"})
    await until(lambda: len(r.records()) == 2)
    for record in r.log.records(TOPICS.name(Topic.LLM_CALLS)):
        assert b"example.org" not in (record.value or b"") + (record.key or b"")


async def test_traces_of_one_conversation_are_spliced(r: Rig) -> None:
    """Each request a trace of its own, as a server makes them: the second starts with the first's ids."""
    headers = {"x-conversation-id": "c", "traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}
    said = await ask(r, ASK, headers)
    await ask(r, [*ASK, said, GO_ON], headers | {"traceparent": f"00-{OTHER_TRACE}-00f067aa0ba902b7-01"})
    one, two = r.calls()
    assert (two.parent_call_id, two.splice.kind) == (one.call_id, "extended")
    assert [one.trace_id, two.trace_id] == [TRACE, OTHER_TRACE]


async def test_after_a_pause_a_record_holds_its_whole_prompt(r: Rig) -> None:
    """Its episode may have closed, and the next one could not rebuild it; what was sampled stands in it still."""
    messages: list[Any] = [*ASK]
    for i, pause_s in enumerate((1e9, 0.0, 1e9)):
        parts = r.gateway.parts
        parts.handles = msgspec.structs.replace(parts.handles, pause_s=pause_s)
        messages += [await ask(r, messages, {"x-conversation-id": "c"}, reply=Reply(f"answer {i}")), GO_ON]
    one, two, three = r.calls()
    assert [call.splice.kind for call in (one, two, three)] == ["first", "extended", "extended"]
    assert (two.parent_call_id, two.shared_tokens, three.parent_call_id) == (None, 0, two.call_id)
    before = full_prompt(one, []) + ids_from_bytes(one.sampled_ids).tolist()
    assert full_prompt(two, [])[: len(before)] == before


def within(conversation: str, **more: str) -> dict[str, str]:
    """The headers of a framework's run of an agent, within the one trace."""
    traced = {"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01", "baggage": f"gen_ai.conversation.id={conversation}"}
    return traced | {name.replace("_", "-"): value for name, value in more.items()}


async def test_an_agent_that_works_for_a_tool_is_in_its_callers_conversation(r: Rig) -> None:
    """pydantic-ai draws an id for each run: the inner one begins while the outer's tool is awaited."""
    said = await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
    for messages in (ASK, [*ASK, {"role": "assistant", "content": "hello"}, GO_ON]):
        await ask(r, messages, within("inner"))
    result = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "1"}
    await ask(r, [*ASK, said, result], within("outer"), tools=CALC)
    await ask(r, ASK, within("after"))
    await ask(r, ASK, within("inner"))
    outer, after = conversation_key("outer"), conversation_key("after")
    assert keys(r) == [outer] * 4 + [after, outer]
    assert {key_in(call.call_id) for call in r.calls()} == {outer, after}


async def test_an_agent_that_works_for_a_tool_goes_on_by_naming_its_answer(r: Rig) -> None:
    """Which bears the key of the outer conversation."""
    await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
    body: dict[str, Any] = {"model": "policy", "input": "hi"}
    for _ in range(2):
        r.engine.replies.append(Reply("hello"))
        status, answer = await r.post("/v1/responses", body, **(ANN | within("inner")))
        assert status == 200, answer
        body = body | {"previous_response_id": answer["id"]}
    assert keys(r) == [conversation_key("outer")] * 3


@pytest.mark.parametrize("names", [{"traceparent": f"00-{TRACE}-00f067aa0ba902b7-01"}, {"x-conversation-id": "c"}])
async def test_an_answer_is_gone_on_with_by_its_client_or_who_names_the_whole(r: Rig, names: dict[str, str]) -> None:
    """Whatever other clients are in the trace; by the answer's id alone nobody else comes in."""
    ann, bob = {"x-api-key": "sk-ann"}, {"x-api-key": "sk-bob"}
    r.engine.replies.extend([Reply("1"), Reply("2"), Reply("3"), Reply("4")])
    _, one = await r.post("/v1/responses", {"model": "policy", "input": "hi"}, **ann, **names)
    await r.post("/v1/responses", {"model": "policy", "input": "hello"}, **bob, **names)
    further = {"model": "policy", "input": "on", "previous_response_id": one["id"]}
    assert (await r.post("/v1/responses", further, **bob))[0] == 400
    assert (await r.post("/v1/responses", further, **ann))[0] == 200
    status, _ = await r.post("/v1/responses", further, **bob, **names)
    assert status == (200 if "x-conversation-id" in names else 400)


async def test_a_conversation_that_the_header_names_is_its_own(r: Rig) -> None:
    """Whatever waits in its trace: the header is the program's own word."""
    await ask(r, ASK, within("outer"), reply=Reply(tool_call_text("calc", a=1)), tools=CALC)
    await ask(r, ASK, within("x", x_conversation_id="inner"))
    assert keys(r) == [conversation_key("outer"), conversation_key("inner")]


def test_nesting_is_bounded() -> None:
    """The trace that is longest unused is forgotten; so many conversations of one trace are known, and no more."""
    nesting = Nesting(max_traces=1)
    nesting.key_of("t", "outer")
    nesting.answered("t", (), ["call_1"])
    assert [nesting.key_of("t", f"inner{i}") for i in (*range(256), 255)] == ["outer"] * 257
    assert (nesting.key_of("t", "inner256"), nesting.key_of("t", "inner0")) == ("inner256", "outer")
    nesting.key_of("other", "k")
    nesting.answered("t", (), ["call_2"])
    assert nesting.key_of("t", "inner0") == "inner0"


async def test_an_attempt_is_keyed_by_its_rollout_whatever_conversation_it_names(r: Rig) -> None:
    """A runner's episode is no captured one."""
    r.engine.replies.append(Reply("ok"))
    path = f"/rollout/{RUN_HASH}{'0' * 19}7/attempt/9a3c/v1/chat/completions"
    assert (await r.post(path, {"messages": ASK}, **{"x-conversation-id": "c"}))[0] == 200
    (call,) = r.calls()
    assert (keys(r), call.conversation_key) == ([call.rollout_id], None)


async def test_a_rollout_of_agent_lightning_names_a_conversation(r: Rig) -> None:
    """By the path that its `ProxyLLM` makes, or by its headers; its attempts are no ids of ours."""
    key, body = conversation_key("ro-1a2b3c4d5e6f"), {"messages": ASK}
    for path, headers in (
        ("/rollout/ro-1a2b3c4d5e6f/attempt/at-1a2b3c4d/v1/chat/completions", {}),
        ("/v1/chat/completions", {"x-rollout-id": "ro-1a2b3c4d5e6f", "x-attempt-id": "at-1a2b3c4d"}),
    ):
        status, answer = await r.post(path, body, **(ANN | headers))
        assert (status, key_in(answer["id"])) == (200, key)
    assert keys(r) == [key, key]
    assert (await r.post(path, body, **(ANN | headers | {"baggage": "rollout.id=ro-9"})))[0] == 400


async def test_under_the_runner_its_own_names_change_nothing() -> None:
    """The credential says which attempt it is; the path's name is none of ours, also behind our own address."""
    path = "/rollout/ro-1a2b3c4d5e6f/attempt/at-1a2b3c4d/v1/chat/completions"
    async with rig() as r:
        await r.begin(host=None)
        own = {"x-api-key": "", **bearer(attempt_holder(RolloutId(ROLLOUT), AttemptId(ATTEMPT)))}
        for address in ("", f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"):
            status, answer = await r.post(address + path, {"messages": ASK}, **own)
            assert (status, key_in(answer["id"])) == (200, ROLLOUT)
        assert keys(r) == [ROLLOUT, ROLLOUT]
