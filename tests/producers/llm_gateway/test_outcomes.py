"""Captured calls: what the gateway tells of how each went, and how it samples those that are to train."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine
from tests.producers.llm_gateway.harness import ASK, TOPICS, Rig, rig, until
from tests.producers.llm_gateway.provider import Provider, with_provider
from tests.versions import label
from tracegrad.producers.llm_gateway import outcomes
from tracegrad.producers.llm_gateway.config import Timings
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import conversation_key, key_in
from tracegrad.schemas.metrics import CALL_OUTCOMES_DROPPED
from tracegrad.schemas.records.calls import CallEnded, CallOpen, CallOutcome
from tracegrad.schemas.topics import Topic

MINE = {"x-conversation-id": "c-17", "authorization": "Bearer sk-ann"}
KEY = conversation_key("c-17")
BRIEF = Timings(weights_poll_s=0.005, open_after_s=0.01, retry_s=0.01, last_words_s=0.05)


async def ask(r: Rig, text: str = "hello", *, patience_s: float | None = None) -> Any:
    """A captured call's answer; with patience, of a client that leaves."""
    r.engine.replies.append(Reply(text))
    body = {"messages": ASK}
    if patience_s is None:
        return await r.post("/v1/chat/completions", body, **MINE)
    timeout = aiohttp.ClientTimeout(total=patience_s)
    with pytest.raises(asyncio.TimeoutError):
        async with r.http.post(f"{r.url}/v1/chat/completions", json=body, headers=MINE, timeout=timeout):
            pass
    return None


def ended(r: Rig) -> list[CallEnded]:
    """What was told of ends, in order."""
    return [record for record in r.records() if isinstance(record, CallEnded)]


def opened(r: Rig) -> list[CallOpen]:
    """Likewise, of calls that last."""
    return [record for record in r.records() if isinstance(record, CallOpen)]


async def test_an_answer_that_was_sent_is_told_under_its_conversations_key() -> None:
    """After the record, in the same partition; an attempt's calls are told of by its end alone."""
    async with rig() as r:
        _, answer = await ask(r)
        await until(lambda: ended(r))
        (told,) = ended(r)
        assert (told.call_id, told.outcome, told.conversation_key) == (answer["id"], CallOutcome.DELIVERED, KEY)
        assert key_in(told.call_id) == KEY and r.calls()[0].call_id == told.call_id
        places = [(record.key, record.partition) for record in r.log.records(TOPICS.name(Topic.LLM_CALLS))]
        assert len(set(places)) == 1 and places[0][0] == KEY.encode()
        await r.begin()
        r.engine.replies.append(Reply("42"))
        await r.chat(ASK)
        await r.end()
        assert len(ended(r)) == 1 and not opened(r)


async def test_a_client_that_left_and_asked_again_has_one_answer(r: Rig) -> None:
    """Of the first it is told that the client was gone; what it got instead is a call of its own."""
    r.engine.delay_s = 0.1
    await ask(r, "unseen", patience_s=0.05)
    await until(lambda: ended(r))
    await ask(r, "seen")
    await until(lambda: len(ended(r)) == 2)
    first, second = r.calls()
    assert [(told.call_id, told.outcome.value) for told in ended(r)] == [
        (first.call_id, "client_disconnected"),
        (second.call_id, "delivered"),
    ]


async def test_a_call_that_lasts_is_told_and_how_it_ended() -> None:
    """By its record's id, or without any record by the error."""
    async with rig(engine_wait_s=0.1, timings=BRIEF) as r:
        r.engine.delay_s = 0.05
        await ask(r)
        await until(lambda: ended(r))
        assert [told.call_id for told in opened(r)] == [r.calls()[0].call_id] == [told.call_id for told in ended(r)]
        r.engine.fail_next = 1_000
        status, _ = await ask(r)
        assert status == 503
        await until(lambda: len(ended(r)) == 2)
        assert opened(r)[1].call_id == ended(r)[1].call_id
        assert (ended(r)[1].outcome, ended(r)[1].reason) == (CallOutcome.UNKNOWN, "UnavailableError")


async def test_a_request_to_an_upstream_that_lasts_is_told() -> None:
    """Its record is no call of the episode, so it always says when it ended."""
    provider = Provider(delay=asyncio.Event())
    async with with_provider(provider, timings=BRIEF) as r:
        asking = asyncio.create_task(r.post("/v1/chat/completions", {"model": "gpt-4o", "messages": ASK}, **MINE))
        await until(lambda: opened(r))
        assert provider.delay is not None
        provider.delay.set()
        await asking
        await until(lambda: ended(r))
        assert [told.call_id for told in opened(r)] == [told.call_id for told in ended(r)]
        assert (ended(r)[0].outcome, ended(r)[0].conversation_key) == (CallOutcome.UNKNOWN, KEY)


async def test_what_kafka_did_not_take_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And answers do not wait for it."""
    async with rig(timings=BRIEF) as r:
        append, failures = r.gateway.parts.outcomes._append, [UnavailableError("away")] * 2

        def away(*given: Any, **named: Any) -> Any:
            if failures:
                raise failures.pop()
            return append(*given, **named)

        monkeypatch.setattr(r.gateway.parts.outcomes, "_append", away)
        await ask(r)
        await until(lambda: ended(r))
        assert len(ended(r)) == 1 and not failures


async def test_what_waits_for_kafka_is_bounded_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest go first; a gateway that stops counts what it could not tell."""
    monkeypatch.setattr(outcomes, "_MAX_WAITING", 2)

    def away(*_: Any, **__: Any) -> Any:
        raise UnavailableError("away")

    async with rig(timings=Timings(retry_s=0.01, last_words_s=0.05)) as r:
        monkeypatch.setattr(r.gateway.parts.outcomes, "_append", away)
        for _ in range(3):
            await ask(r)
    assert r.gateway.parts.metrics.value(CALL_OUTCOMES_DROPPED, "full") == 1
    assert r.gateway.parts.metrics.value(CALL_OUTCOMES_DROPPED, "stopped") == 2


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
