"""A gateway that was restarted goes on with the attempts that were open, from their records alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import pytest
from msgspec.structs import replace

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.keys import HOST, by_host
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, TOPICS, Rig, full_prompt, rig, until
from tracegrad.producers.llm_gateway.splice import conversation_digest
from tracegrad.schemas.errors import ConfigurationError, LogGapError, UnavailableError
from tracegrad.schemas.ids import new_call
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.metrics import ATTEMPTS_NOT_REBUILT, ATTEMPTS_REBUILT
from tracegrad.schemas.records.calls import LLM_CALLS, CallOutcome, CallsClosed
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow
DELIVERED, GONE = CallOutcome.DELIVERED, CallOutcome.CLIENT_DISCONNECTED
SUPERSEDED, UNKNOWN = CallOutcome.SUPERSEDED, CallOutcome.UNKNOWN


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


def said(answer: Any) -> dict[str, Any]:
    """The answer as the agent's next request holds it."""
    message: dict[str, Any] = answer["choices"][0]["message"]
    return message


async def begin_again(r: Rig, **fields: Any) -> tuple[int, Any]:
    """As the runner tells a new gateway process."""
    body = {"policy": "policy", "purpose": "train", "host": HOST, "since": r.since, **fields}
    return await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/begin", body)


async def end(r: Rig) -> tuple[list[str], Any]:
    """The outcomes of the attempt's calls, in order, and the whole answer."""
    status, told = await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end")
    assert status == 200, told
    return [call["outcome"] for call in told["calls"]], told


def closes(r: Rig) -> list[CallsClosed]:
    """What was told of the attempt's end."""
    return [record for record in r.records() if isinstance(record, CallsClosed)]


async def test_a_conversation_goes_on_token_by_token() -> None:
    """The next prompt begins with what was sampled before, not with what the template makes of it."""
    async with rig() as r:
        r.engine.replies += [Reply(tool_call_text("calc", expr="12+30")), Reply("42")]
        await r.begin()
        asked = said(await r.chat(ASK, tools=CALC))
        more = [*ASK, asked, {"role": "tool", "tool_call_id": asked["tool_calls"][0]["id"], "content": "42"}]
        async with r.restarted() as again:
            assert (await begin_again(again))[0] == 200
            await again.chat(more, tools=CALC)
            first, second = again.calls()
            assert (second.parent_call_id, second.splice.kind) == (first.call_id, "extended")
            assert second.number == 2 and again.gateway.parts.metrics.value(ATTEMPTS_REBUILT) == 1
            sampled = full_prompt(first, again.calls()) + ids_from_bytes(first.sampled_ids).tolist()
            assert full_prompt(second, again.calls())[: len(sampled)] == sampled
            outcomes, told = await end(again)
            assert outcomes == ["delivered", "delivered"] and told["fault"] is None
            assert [call["content"] for call in told["calls"]] == [None, "42"]
            assert closes(again)[0].outcomes == {first.call_id: DELIVERED, second.call_id: DELIVERED}


async def test_nobody_knows_how_the_last_answer_went() -> None:
    """It leaves the loss, and an agent that failed meanwhile failed by the gateway; what a record tells is known."""
    async with rig() as r:
        await r.begin()
        for text in ("one", "two", "three"):
            r.engine.replies.append(Reply(text))
            await r.chat([{"role": "user", "content": text}])
        async with r.restarted() as again:
            await begin_again(again)
            outcomes, told = await end(again)
            assert (outcomes, told["fault"]) == (["delivered", "delivered", "unknown"], 503)
            assert closes(again)[0].outcomes[again.calls()[-1].call_id] is UNKNOWN
            assert (await end(again))[1] == told and len(closes(again)) == 1


@pytest.mark.parametrize("is_alike", [True, False])
async def test_an_answer_that_is_asked_for_again_trains_once(is_alike: bool) -> None:
    """The agent's client asks again what the gateway's end broke off, whether it gets the same words or others."""
    async with rig() as r:
        r.engine.replies += [Reply("unseen"), Reply("unseen" if is_alike else "seen"), Reply("bye")]
        await r.begin()
        await r.chat(ASK)
        async with r.restarted() as again:
            await begin_again(again)
            answer = said(await again.chat(ASK))
            await again.chat([*ASK, answer, {"role": "user", "content": "and?"}])
            outcomes, told = await end(again)
            assert (outcomes, told["fault"]) == (["superseded", "delivered", "delivered"], None)


async def test_calls_wait_until_the_runner_has_told_of_their_attempt() -> None:
    """Only where they show a credential, and not for ever."""
    async with rig() as r:
        r.engine.replies += [Reply("42"), Reply("43")]
        await r.begin()
        await r.chat(ASK)
        async with r.restarted(begin_again_s=20.0) as again:
            call = asyncio.create_task(again.chat(ASK))
            await until(lambda: again.gateway.parts.returns.num_waiting == 1)
            assert (await again.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[0] == 409
            foreign = {"x-rollout-id": ROLLOUT, "x-api-key": "sk-ann"}
            assert (await again.post("/v1/chat/completions", {"messages": ASK}, **foreign))[0] == 403
            assert (await begin_again(again))[0] == 200
            await call
            assert again.calls()[-1].number == 2
        async with r.restarted() as again:
            assert (await again.chat_raw(ASK))[0] == 409


async def lose(r: Rig) -> None:
    """Retention takes what was written since the attempt began."""
    for partition, offsets in r.log.offsets(TOPICS.name(Topic.LLM_CALLS)).items():
        r.log.truncate(TOPICS.name(Topic.LLM_CALLS), partition, begin=offsets.end)


async def spoil(r: Rig) -> None:
    """A later release wrote what this one cannot read."""
    name, key = TOPICS.name(Topic.LLM_CALLS), episode_key(ROLLOUT, None)
    r.signed.writer().append(name, key=key, value=b"later").result(5)


async def age(r: Rig) -> None:
    """An earlier release wrote a record that does not tell enough."""
    name, key = TOPICS.name(Topic.LLM_CALLS), episode_key(ROLLOUT, None)
    older = LLM_CALLS.encode(replace(r.calls()[0], call_id=new_call(ROLLOUT), asked=b""))
    r.signed.writer().append(name, key=key, value=older).result(5)


async def orphan(r: Rig) -> None:
    """A record whose parent is not there."""
    name, key = TOPICS.name(Topic.LLM_CALLS), episode_key(ROLLOUT, None)
    changes = {"call_id": new_call(ROLLOUT), "parent_call_id": new_call(ROLLOUT), "shared_tokens": 3}
    r.signed.writer().append(name, key=key, value=LLM_CALLS.encode(replace(r.calls()[0], **changes))).result(5)


Way = Callable[[Rig], Awaitable[None]]
WAYS: dict[Way, str] = {lose: "retention", spoil: "undecodable", age: "older_record", orphan: "missing_parent"}


@pytest.mark.parametrize("way", WAYS)
async def test_what_the_records_do_not_hold_is_refused(way: Way) -> None:
    """The runner aborts the attempt and makes it again."""
    async with rig() as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        await r.chat(ASK)
        await way(r)
        async with r.restarted() as again:
            status, answer = await begin_again(again)
            assert (status, answer["error"]["code"]) == (409, WAYS[way])
            assert again.gateway.parts.metrics.value(ATTEMPTS_NOT_REBUILT, WAYS[way]) == 1
            assert (await again.chat_raw(ASK))[0] == 409


async def test_a_history_that_finds_no_room_is_refused() -> None:
    """Memory is bounded here as it was there."""
    async with rig() as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        await r.chat(ASK)
        async with r.restarted(max_history_ids=3) as again:
            status, answer = await begin_again(again)
            assert (status, answer["error"]["code"]) == (409, "memory")


async def test_what_others_write_under_the_rollouts_key_is_none_of_its_calls() -> None:
    """Anybody may write on the topic; a record counts that the run's key vouches for."""
    async with rig() as r:
        r.engine.replies += [Reply("42"), Reply("43")]
        await r.begin()
        await r.chat(ASK)
        name, key = TOPICS.name(Topic.LLM_CALLS), episode_key(ROLLOUT, None)
        foreign = replace(r.calls()[0], call_id=new_call(ROLLOUT), attempt_id="0bad")
        r.signed.writer().append(name, key=key, value=LLM_CALLS.encode(foreign)).result(5)
        forged = LLM_CALLS.encode(replace(r.calls()[0], call_id=new_call(ROLLOUT)))
        r.log.writer().append(name, key=key, value=forged).result(5)
        r.log.writer().append(name, key=key, value=b"garbage").result(5)
        async with r.restarted() as again:
            await begin_again(again)
            assert len((await end(again))[0]) == 1


async def test_an_attempt_whose_end_is_on_the_log_has_ended() -> None:
    """The gateway may have died between the record and its answer: the same calls, no second record."""
    async with rig() as r:
        r.engine.replies += [Reply("42"), Reply("43")]
        await r.begin()
        await r.chat(ASK)
        outcomes, told = await end(r)
        async with r.restarted() as again:
            await begin_again(again)
            assert (await again.chat_raw(ASK))[0] == 410
            repeated = await end(again)
            assert repeated[0] == outcomes and repeated[1]["calls"] == told["calls"]
            assert len(closes(again)) == 1


async def test_many_attempts_are_read_in_one_pass() -> None:
    """However many come back at once."""
    async with rig() as r:
        attempts = [f"{number:04x}" for number in range(1, 17)]
        for attempt in attempts:
            r.engine.replies.append(Reply(attempt))
            await r.begin(attempt=attempt)
            await r.chat(ASK, attempt=attempt)
        num_read = 0
        tail = r.log.tail

        def counted(starts: Any) -> Any:
            nonlocal num_read
            num_read += any(where.topic == TOPICS.name(Topic.LLM_CALLS) for where in starts)
            return tail(starts)

        r.log.tail = counted  # type: ignore[method-assign]
        async with r.restarted() as again:
            body = {"policy": "policy", "purpose": "train", "host": HOST, "since": r.since}
            paths = [f"/rollout/{ROLLOUT}/attempt/{attempt}" for attempt in attempts]
            assert {status for status, _ in await asyncio.gather(*(again.post(f"{p}/begin", body) for p in paths))} == {
                200
            }
            assert num_read == 1
            for attempt in attempts:
                assert [call["content"] for call in await again.end(attempt=attempt)] == [attempt]


@pytest.mark.parametrize("error", [UnavailableError("away"), ConfigurationError("no such topic yet")], ids=type)
async def test_a_log_that_is_away_is_asked_again(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """The attempt is not given up for it, nor the reading of all others."""
    async with rig() as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        await r.chat(ASK)
        async with r.restarted() as again:
            await until(lambda: again.gateway.parts.returns.knows_offsets)

            def away(topic: str) -> Any:
                raise error

            with monkeypatch.context() as patched:
                patched.setattr(r.log, "offsets", away)
                assert (await begin_again(again))[0] == 503
            assert (await begin_again(again))[0] == 200


async def test_a_topic_that_was_made_anew_holds_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its offsets name other records; and the next attempt is not the worse for it."""
    async with rig() as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        await r.chat(ASK)

        def gone(topic: str) -> Any:
            raise LogGapError("made anew")

        async with r.restarted() as again:
            with monkeypatch.context() as patched:
                patched.setattr(r.log, "offsets", gone)
                status, answer = await begin_again(again)
                assert (status, answer["error"]["code"]) == (409, "retention")
            assert (await begin_again(again))[0] == 200


async def test_a_conversation_that_only_the_gateway_knew_is_not_made_up() -> None:
    """Requests that name the answer before them hold none of what was said: the attempt is made again."""
    async with rig() as r:
        r.engine.replies += [Reply("42"), Reply("43")]
        await r.begin()
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/responses"
        status, answer = await r.post(path, {"model": "policy", "input": "12 + 30?"})
        assert status == 200, answer
        more = {"model": "policy", "input": "and?", "previous_response_id": answer["id"]}
        async with r.restarted() as again:
            await begin_again(again)
            assert (await again.post(path, more))[0] == 409
            assert (await end(again))[1]["fault"] == 503
