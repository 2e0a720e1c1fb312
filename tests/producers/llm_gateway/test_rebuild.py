"""A gateway that was restarted goes on with the attempts that were open, from their records alone."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest

from tests.fake_engine.scripted import Reply
from tests.producers.keys import by_host
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, rig, until
from tracegrad.producers.llm_gateway.splice import conversation_digest
from tracegrad.schemas.records.calls import CallOutcome

DELIVERED, GONE = CallOutcome.DELIVERED, CallOutcome.CLIENT_DISCONNECTED


@pytest.mark.slow
async def test_records_tell_how_the_answers_before_them_went() -> None:
    """Each once, so that a record is no longer for the calls before it; of captured calls other records tell it."""
    async with rig() as r:
        await r.begin()
        for _ in range(3):
            r.engine.replies.append(Reply("42"))
            await r.chat(ASK)
        r.engine.delay_s = 0.2
        path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        with pytest.raises(asyncio.TimeoutError):
            timeout = aiohttp.ClientTimeout(total=0.05)
            await r.http.post(path, json={"messages": ASK}, headers=by_host(), timeout=timeout)
        await until(lambda: len(r.calls()) == 4)
        r.engine.delay_s = 0.0
        await asyncio.sleep(0.01)
        await r.chat(ASK)
        first, second, third, unseen, last = r.calls()
        assert [call.number for call in r.calls()] == [1, 2, 3, 4, 5]
        assert (first.settled, second.settled) == ({}, {first.call_id: DELIVERED})
        assert (third.settled, unseen.settled) == ({second.call_id: DELIVERED}, {third.call_id: DELIVERED})
        assert last.settled == {unseen.call_id: GONE}
        await r.post("/v1/chat/completions", {"messages": ASK}, traceparent=f"00-{'cd' * 16}-00f067aa0ba902b7-01")
        captured = r.calls()[-1]
        assert (captured.number, captured.asked, captured.settled) == (0, b"", {})


async def test_records_tell_what_was_asked_and_what_the_agent_saw_of_the_answer() -> None:
    """Beside its text and tools: the digest by which the next request finds it, its thoughts, whether it was cut."""
    async with rig() as r:
        r.engine.reasons = True
        r.engine.replies += [Reply("<think>easy</think>42"), Reply("one. two")]
        await r.begin()
        await r.chat(ASK)
        await r.chat(ASK, tools=CALC, stop=["."])
        plain, cut = r.calls()
        assert (plain.reasoning, plain.is_cut) == ("easy", False) and (cut.reasoning, cut.is_cut) == (None, True)
        assert len(plain.asked) == len(cut.asked) == len(conversation_digest([], ())) and plain.asked != cut.asked
