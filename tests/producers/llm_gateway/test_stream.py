"""Streamed answers: text as it is sampled, and nothing that is not so in the end."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import anthropic
import openai
import pytest

from tests.fake_engine.scripted import EngineFault, Reply, tool_call_text
from tests.producers.keys import HOST, KEY
from tests.producers.llm_gateway.harness import ASK, CALC, GENERATE, until
from tests.producers.llm_gateway.streaming import BODIES, PATH, Stream, live_rig
from tests.versions import label
from tracegrad.schemas.credentials import credential
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.metrics import GENERATIONS_REFUSED

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("path", BODIES)
async def test_text_comes_as_it_is_sampled_and_the_end_after_kafka(path: str) -> None:
    """By each API: the first letters before the engine has the others; the finish when the record is acknowledged."""
    async with live_rig() as (r, script):
        r.engine.replies.extend([Reply("to you: \u4f60"), Reply("to you: \u4f60")])
        stream = Stream(r, path)
        await until(lambda: stream.text == "to ")
        assert not r.calls()
        r.log.hold()
        script.goes_on.set()
        await until(r.calls)
        await asyncio.sleep(0.05)
        assert not stream.is_finished
        r.log.release()
        assert await stream.end() == 200 and stream.is_finished
        r.engine.before_token = None
        whole = Stream(r, path, stream=False)
        await whole.end()
        first, second = r.calls()
        assert stream.text == first.content == second.content == "to you: \u4f60"
        assert (first.sampled_ids, first.logprobs, first.versions) == (
            second.sampled_ids,
            second.logprobs,
            second.versions,
        )
        assert [body["stream"] for body in r.asked(GENERATE)] == [True, False]
        assert [call["outcome"] for call in await r.end()] == ["delivered", "delivered"]


async def test_the_sdks_put_a_stream_together() -> None:
    """OpenAI's for Responses, Anthropic's for Messages: their own accumulators find the record's text."""
    async with live_rig() as (r, script):
        script.goes_on.set()
        r.engine.replies.extend([Reply("to you"), Reply("to you")])
        given: Any = {"api_key": credential(KEY, HOST), "max_retries": 0}
        async with (
            openai.AsyncOpenAI(base_url=r.url + PATH, **given) as client,
            client.responses.stream(model="policy", input="hello") as stream,
        ):
            answer = await stream.get_final_response()
        assert answer.output_text == "to you" and answer.status == "completed"
        ask: Any = {"model": "policy", "max_tokens": 50, "messages": ASK}
        async with (
            anthropic.AsyncAnthropic(base_url=r.url + PATH.removesuffix("/v1"), **given) as other,
            other.messages.stream(**ask) as messages,
        ):
            message: Any = await messages.get_final_message()
        assert message.content[0].text == "to you" and message.stop_reason == "end_turn"
        assert [call.content for call in r.calls()] == ["to you"] * 2
        assert all(body["stream"] for body in r.asked(GENERATE))


async def test_captured_calls_stream_too() -> None:
    """Whatever the engine's label is."""
    async with live_rig(keep_alive_s=60) as (r, script):
        r.engine.label = "default"
        r.engine.replies.append(Reply("hello"))
        stream = Stream(r, prefix="/v1")
        await until(lambda: stream.text == "hel")
        script.goes_on.set()
        await stream.end()
        assert stream.text == "hello" and r.calls()[0].versions == ()


@pytest.mark.parametrize(
    ("reply", "fields", "told", "content", "finish"),
    [
        ("one two END three", {"stop": [" END"]}, "one two", "one two", "stop"),
        ("one two", {"max_tokens": 5}, "one ", "one t", "length"),
        ("so " + tool_call_text("calc", expr="1"), {"tools": CALC}, "so ", "so ", "tool_calls"),
        ("so <tool_call>{", {"tools": CALC}, "so ", "so <tool_call>{", "stop"),
        ("so <tool_call>{", {"tools": CALC, "tool_choice": "none"}, "so ", "so {", "stop"),
        ("", {}, "", "", "stop"),
    ],
    ids=["stop", "length", "tool_call", "broken_tool_call", "tool_choice_none", "empty"],
)
async def test_a_stream_says_what_the_record_says(
    reply: str, fields: Any, told: str, content: str, finish: str
) -> None:
    """What may yet be cut, or become a call, waits for the end."""
    async with live_rig(at=len(told)) as (r, script):
        r.engine.replies.append(Reply(reply))
        stream = Stream(r, **fields)
        await until(lambda: stream.text == told)
        script.goes_on.set()
        await stream.end()
        (call,) = r.calls()
        assert stream.text == call.content == content and call.finish_reason == finish
        tools = [tool for event in stream.events for tool in event["choices"][0]["delta"].get("tool_calls", ())]
        assert [tool["id"] for tool in tools] == [tool.id for tool in call.tool_calls]


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["n", "logprobs", "grammar"],
)
async def test_what_needs_the_whole_is_not_asked_for_in_pieces(fields: Any) -> None:
    """Several answers, logprobs in the engine's words, grammars: events come at the end, as always."""
    async with live_rig() as (r, _):
        r.engine.replies.extend([Reply("one"), Reply("one")])
        stream = Stream(r, **fields)
        assert await stream.end() == 200 and stream.is_finished
        assert not any(body["stream"] for body in r.asked(GENERATE))


async def test_no_text_leaves_under_an_unknown_label() -> None:
    """A restarted engine is waited for, as without a stream; nothing was told, so it is asked again."""
    async with live_rig() as (r, script):
        r.engine.label = "default"
        r.engine.replies.extend([Reply("base weights")] * 50)
        stream = Stream(r)
        await until(lambda: r.gateway.parts.metrics.value(GENERATIONS_REFUSED))
        assert not stream.events
        r.engine.replies.clear()
        r.engine.replies.append(Reply("trained"))
        script.goes_on.set()
        r.engine.label = label(0)
        await stream.end()
        assert stream.text == "trained" == r.calls()[0].content


async def test_an_engine_that_hides_its_label_is_heard_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer bears a label, which is known when it is whole."""
    async with live_rig() as (r, script):

        async def hides(engine: Any) -> None:
            return None

        monkeypatch.setattr(r.gateway._engine, "label", hides)
        r.engine.replies.append(Reply("hello"))
        stream = Stream(r)
        await until(lambda: r.asked(GENERATE))
        await asyncio.sleep(0.05)
        assert not stream.events
        script.goes_on.set()
        await stream.end()
        assert stream.text == "hello" == r.calls()[0].content


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("status", [0, 400, 500, 503])
async def test_an_engine_that_fails_after_the_first_word_is_not_asked_again(path: str, status: int) -> None:
    """The client is told by an event; nothing is recorded, and the attempt's end names no call."""
    async with live_rig() as (r, script):
        r.engine.replies.extend([Reply("hello"), Reply("again")])
        script.fault = EngineFault(status)
        stream = Stream(r, path)
        await until(lambda: stream.text == "hel")
        script.goes_on.set()
        assert await stream.end() == 200
        assert stream.has_failed and not stream.is_finished and stream.text == "hel"
        assert len(r.asked(GENERATE)) == 1 and not r.calls() and await r.end() == []


@pytest.mark.parametrize("status", [0, 503])
async def test_an_engine_that_fails_before_the_first_word_is_asked_again(status: int) -> None:
    """Half a character is no word."""
    async with live_rig(at=2) as (r, script):
        r.engine.replies.extend([Reply("\u4f60"), Reply("hello")])
        script.fault = EngineFault(status)
        stream = Stream(r)
        await until(lambda: r.asked(GENERATE))
        script.goes_on.set()
        assert await stream.end() == 200
        assert stream.text == "hello" == r.calls()[0].content
        assert len(r.asked(GENERATE)) == 2


async def test_an_answer_under_a_foreign_label_is_not_recorded() -> None:
    """Its text has left, but not its end: the labels of the whole do not belong to the policy."""
    async with live_rig() as (r, script):
        r.engine.replies.append(Reply("hello", label="default"))
        stream = Stream(r)
        await until(lambda: stream.text == "hel")
        script.goes_on.set()
        await stream.end()
        assert stream.has_failed and not stream.is_finished
        assert len(r.asked(GENERATE)) == 1 and not r.calls()
        assert r.gateway.parts.metrics.value(GENERATIONS_REFUSED) == 1


async def test_an_answer_without_finite_logprobs_is_not_recorded() -> None:
    """As without a stream, except that nobody samples it again."""
    async with live_rig() as (r, script):
        r.engine.has_nan_weights = True
        r.engine.replies.append(Reply("hello"))
        stream = Stream(r)
        script.goes_on.set()
        await stream.end()
        assert stream.has_failed and not r.calls()


async def test_versions_of_a_stream_are_the_wholes() -> None:
    """An update in mid-answer gives two spans."""
    async with live_rig() as (r, script):
        r.publish(1)
        r.engine.delay_s = 0.05
        r.engine.replies.append(Reply("hello"))
        stream = Stream(r)
        await until(lambda: r.asked(GENERATE))
        r.engine.label = label(1)
        script.goes_on.set()
        await stream.end()
        (call,) = r.calls()
        assert [(span.start, span.version) for span in call.versions] == [(0, 0), (3, 1)]


async def test_a_refused_record_ends_the_stream_with_an_error() -> None:
    """Kafka is away: the text has left, its end has not."""
    async with live_rig() as (r, script):
        r.engine.replies.append(Reply("lost"))
        r.log.fail_next(UnavailableError("away"))
        stream = Stream(r)
        script.goes_on.set()
        await stream.end()
        assert stream.has_failed and not stream.is_finished and await r.end() == []


async def test_a_client_that_leaves_within_the_text_is_recorded_and_its_retry_supersedes() -> None:
    """What was begun is sampled to its end."""
    async with live_rig() as (r, script):
        r.engine.replies.extend([Reply("unheard"), Reply("heard")])
        stream = Stream(r)
        await until(lambda: stream.text == "unh")
        stream.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await stream.task
        script.goes_on.set()
        await until(lambda: len(r.calls()) == 1)
        await Stream(r).end()
        assert [call["outcome"] for call in await r.end()] == ["client_disconnected", "delivered"]
        assert [call.content for call in r.calls()] == ["unheard", "heard"]


async def test_an_attempts_end_cuts_a_stream() -> None:
    """The engine is waited for no longer than for a whole answer."""
    async with live_rig(end_wait_s=0.05) as (r, _):
        r.engine.replies.append(Reply("hello"))
        stream = Stream(r)
        await until(lambda: stream.text == "hel")
        assert await r.end() == []
        await stream.end()
        assert stream.has_failed and not stream.is_finished


async def test_a_streamed_conversation_merges() -> None:
    """The next prompt begins with the ids that were sampled."""
    async with live_rig() as (r, script):
        script.goes_on.set()
        r.engine.replies.extend([Reply("42 it is"), Reply("so it is")])
        stream = Stream(r)
        await stream.end()
        said = [*ASK, {"role": "assistant", "content": stream.text}, {"role": "user", "content": "sure?"}]
        await Stream(r, messages=said).end()
        first, second = r.calls()
        assert second.splice.kind == "extended" and second.parent_call_id == first.call_id
