"""Which captured calls are one conversation where none is named: by what was said, and by minted tool-call ids."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.conversing import (
    ANN,
    GO_ON,
    OTHER_TRACE,
    REFLECTS,
    TRACE,
    answered_by_a_tool,
    ask,
    keys,
)
from tests.producers.llm_gateway.harness import ASK, CALC, GENERATE, Rig, rig, until
from tracegrad.producers.llm_gateway.captured.conversation_ends import (
    ConversationDigest,
    ConversationEnd,
    ConversationEnds,
)
from tracegrad.producers.llm_gateway.session import CapturedSession
from tracegrad.schemas.ids import conversation_key, key_in, new_tool_call
from tracegrad.schemas.metrics import CALLS_JOINED


async def test_a_request_that_names_nothing_goes_on_with_what_was_said(r: Rig) -> None:
    """Turn by turn; each continues the one before, in one episode."""
    messages: list[Any] = [*ASK]
    for i in range(3):
        messages += [await ask(r, messages, reply=Reply(f"answer {i}")), GO_ON]
    one, two, three = r.calls()
    assert keys(r) == [one.trace_id] * 3
    assert [two.parent_call_id, three.parent_call_id] == [one.call_id, two.call_id]
    assert {key_in(call.call_id) for call in r.calls()} == set(keys(r))
    assert r.gateway.parts.metrics.value(CALLS_JOINED) == 2


async def test_two_users_who_say_the_same_stay_apart(r: Rig) -> None:
    """And get the same: of two equal ends nobody knows which is continued, so neither is."""
    said = [await ask(r, ASK) for _ in range(2)]
    await ask(r, [*ASK, said[0], GO_ON])
    await ask(r, [*ASK, said[1], GO_ON])
    assert len(set(keys(r))) == 4
    assert [call.parent_call_id for call in r.calls()] == [None] * 4


async def test_equal_answers_are_told_apart_by_their_tool_calls(r: Rig) -> None:
    """Whose ids the gateway drew."""
    said = [await ask(r, ASK, reply=Reply(tool_call_text("calc", a=1)), tools=CALC) for _ in range(2)]
    for answer in reversed(said):
        result = {"role": "tool", "tool_call_id": answer["tool_calls"][0]["id"], "content": "1"}
        await ask(r, [*ASK, answer, result], tools=CALC)
    one, two, three, four = keys(r)
    assert (three, four) == (two, one) and one != two


async def test_an_end_is_continued_once(r: Rig) -> None:
    """A second branch from one answer may be another user's; it is an episode of its own."""
    said = await ask(r, ASK)
    await ask(r, [*ASK, said, GO_ON], reply=Reply("one"))
    await ask(r, [*ASK, said, {"role": "user", "content": "no"}], reply=Reply("two"))
    one, two, three = keys(r)
    assert one == two != three


async def test_another_client_joins_nothing(r: Rig) -> None:
    """Another API key is another client; who names a conversation is in that."""
    said = await ask(r, ASK)
    await ask(r, [*ASK, said, GO_ON], {"authorization": "Bearer sk-bob"})
    await ask(r, [*ASK, said, GO_ON], {"x-conversation-id": "c-18"})
    assert len(set(keys(r))) == 3 and keys(r)[2] == conversation_key("c-18")


async def test_a_client_that_begins_a_trace_for_each_request_is_known_by_its_words(r: Rig) -> None:
    """Its first trace is the key. A trace that has calls keeps its own."""
    first, second, known = ({"traceparent": f"00-{one * 16}-00f067aa0ba902b7-01"} for one in ("a1", "a2", "a3"))
    other = [{"role": "user", "content": "another"}]
    said = await ask(r, ASK, first)
    await ask(r, [*ASK, said, GO_ON], second)
    again = await ask(r, other, reply=Reply("yes"))
    await ask(r, [{"role": "user", "content": "new"}], known)
    await ask(r, [*other, again, GO_ON], known)
    found = keys(r)
    assert [found[0], found[1], found[3], found[4]] == ["a1" * 16, "a1" * 16, "a3" * 16, "a3" * 16]
    one, two, *_ = r.calls()
    assert (two.trace_id, two.parent_call_id) == ("a2" * 16, one.call_id)


async def test_a_changed_history_joins_nothing(r: Rig) -> None:
    """Nor does one that another system prompt or other tools stand before: exact, or not at all."""
    said = await ask(r, ASK)
    await ask(r, [*ASK, said | {"content": "Hello"}, GO_ON])
    await ask(r, [{"role": "system", "content": "s"}, *ASK, said, GO_ON])
    await ask(r, [*ASK, said, GO_ON], tools=CALC)
    assert len(set(keys(r))) == 4


async def test_a_call_that_failed_leaves_its_conversation_to_the_retry() -> None:
    """The client asks the same again, and is still in it."""
    async with rig(engine_wait_s=0.05) as r:
        said = await ask(r, ASK)
        r.engine.fail_next = 1_000
        status, _ = await r.post("/v1/chat/completions", {"messages": [*ASK, said, GO_ON]}, **ANN)
        assert status == 503
        r.engine.fail_next = 0
        await ask(r, [*ASK, said, GO_ON])
        assert len(set(keys(r))) == 1


def test_an_end_of_one_conversation_that_comes_twice_is_one() -> None:
    """As of two equal choices, or of an answer that its client had to ask for again."""
    leaves, leaf = ConversationEnds(), ConversationEnd(ConversationDigest(b"", b"d", ()), "a")
    leaves.add_end(leaf)
    leaves.add_end(leaf)
    assert (leaves.take_end(leaf.said), leaves.take_end(leaf.said)) == (leaf, None)


def test_equal_ends_are_forgotten_together() -> None:
    """The last one left would look like the only one."""
    leaves = ConversationEnds(max_ends=2)
    said = [ConversationDigest(b"", bytes([i]), ()) for i in range(3)]
    for one, key in ((said[0], "a"), (said[0], "b"), (said[1], "c"), (said[2], "d")):
        leaves.add_end(ConversationEnd(one, key))
    assert [leaves.take_end(one) for one in said] == [
        None,
        ConversationEnd(said[1], "c"),
        ConversationEnd(said[2], "d"),
    ]
    assert leaves.take_end(said[1]) is None


@pytest.mark.parametrize(("before", "tools"), REFLECTS.values(), ids=REFLECTS)
@pytest.mark.parametrize("traced", [False, True], ids=["alone", "traces"])
async def test_a_request_that_repeats_our_tool_ids_is_in_their_conversation(
    r: Rig, before: list[Any], tools: Any, traced: bool
) -> None:
    """Whatever its tools and instructions: AutoGen reflects without tools, a handoff has another agent's."""
    traces = [{"traceparent": f"00-{one}-00f067aa0ba902b7-01"} if traced else {} for one in (TRACE, OTHER_TRACE)]
    messages = await answered_by_a_tool(r, traces[0])
    said = await ask(r, [*before, *messages], traces[1], tools=tools)
    await ask(r, [*before, *messages, said, GO_ON], traces[1], tools=tools)
    assert len(set(keys(r))) == 1
    assert [call.splice.kind for call in r.calls()] == ["first", "new_segment", "extended"]
    assert r.gateway.parts.metrics.value(CALLS_JOINED) == 2


@pytest.mark.parametrize(
    "headers",
    [
        {"authorization": "Bearer sk-bob"},
        {"x-conversation-id": "c-18"},
        {"baggage": "conversation.id=c-18"},
        {"traceparent": f"00-{OTHER_TRACE}-00f067aa0ba902b7-01"},
    ],
    ids=["stranger", "header", "baggage", "trace-with-calls"],
)
async def test_our_tool_ids_alone_join_nobody_else(r: Rig, headers: dict[str, str]) -> None:
    """A stranger, who names another conversation, a trace that has its own: each stays where it is."""
    await ask(r, [{"role": "user", "content": "first"}], headers)
    messages = await answered_by_a_tool(r)
    await ask(r, messages, headers)
    one, two, three = keys(r)
    assert two not in (one, three)
    assert r.gateway.parts.metrics.value(CALLS_JOINED) == 0


async def test_ids_of_two_conversations_and_ids_that_were_never_drawn_join_neither(r: Rig) -> None:
    """A critic that is given both transcripts, and an id of our form that no answer here bore."""
    one, two = [await answered_by_a_tool(r) for _ in range(2)]
    await ask(r, [*one, *two])
    drawn = new_tool_call(keys(r)[0])
    made_up = {"id": drawn, "type": "function", "function": {"name": "calc", "arguments": "{}"}}
    asked = {"role": "assistant", "tool_calls": [made_up]}
    await ask(r, [*ASK, asked, {"role": "tool", "tool_call_id": drawn, "content": "1"}])
    assert len(set(keys(r))) == 4


def test_remembered_tool_calls_are_bounded() -> None:
    """The oldest are forgotten."""
    session = CapturedSession("k")
    session.tool_calls.update({f"call_{i}": b"" for i in range(1_001)})
    assert len(session.tool_calls) == 1_000 and "call_0" not in session.tool_calls


async def leave(r: Rig, messages: list[Any]) -> None:
    """Asks as `ask`, and goes away before the engine has answered."""
    num_asked = len(r.asked(GENERATE))
    call = asyncio.create_task(ask(r, messages))
    await until(lambda: len(r.asked(GENERATE)) > num_asked)
    call.cancel()
    await asyncio.wait({call})
    await asyncio.sleep(0.02)  # the gateway sees it


@pytest.mark.slow
async def test_a_client_that_leaves_and_asks_again_is_still_in_its_conversation(r: Rig) -> None:
    """While what it asked first is sampled, too; of the two answers only the one that it got is gone on from."""
    r.engine.delay_s = 0.2
    said = await ask(r, ASK)
    await leave(r, [*ASK, said, GO_ON])
    again = await ask(r, [*ASK, said, GO_ON])
    await ask(r, [*ASK, said, GO_ON, again, GO_ON])
    assert len(keys(r)) == 4 and len(set(keys(r))) == 1


@pytest.mark.slow
async def test_an_answer_that_nobody_got_is_nobodys_to_go_on_from(r: Rig) -> None:
    """Of a first request nobody knows that it is one asked again; its equal answer is not mistaken for another's."""
    r.engine.delay_s = 0.2
    await leave(r, ASK)
    said = await ask(r, ASK)
    await ask(r, [*ASK, said, GO_ON])
    first, second, third = keys(r)
    assert first != second == third
