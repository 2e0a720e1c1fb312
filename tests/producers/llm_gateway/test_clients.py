"""The real SDKs against the gateway, each with its own two-turn agent: the SDKs' types hold all that is answered."""

from __future__ import annotations

import asyncio
from typing import Any

import anthropic
import openai
import pytest
from openai.types.responses import Response

from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.producers.keys import HOST, KEY
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, begun, rig
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.versions import label
from tracegrad.schemas.credentials import credential
from tracegrad.schemas.ids import canonical_call

pytestmark = pytest.mark.slow
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"expr": {"type": "string"}}}
REPLIES = (Reply("Let me see." + tool_call_text("calc", expr="12+34")), Reply("the answer is 46"))
PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"
TOOLS: Any = [{"name": "calc", "description": "d", "input_schema": SCHEMA}]


def clients(r: Rig) -> dict[str, Any]:
    """How an agent of the attempt makes its client; no retries, or a fault would pass unseen."""
    return {"base_url": r.url + PATH, "api_key": credential(KEY, HOST), "max_retries": 0, "timeout": 20}


def results(message: anthropic.types.Message) -> Any:
    """What the tool says, for the next request."""
    calls = [block for block in message.content if block.type == "tool_use"]
    assert [(call.name, call.input) for call in calls] == [("calc", {"expr": "12+34"})]
    return [{"type": "tool_result", "tool_use_id": call.id, "content": "46"} for call in calls]


def asked(messages: list[Any]) -> dict[str, Any]:
    """The arguments of one request."""
    return {"model": "policy", "max_tokens": 200, "system": "be brief", "tools": TOOLS, "messages": messages}


def anthropic_agent(r: Rig, *, is_stream: bool) -> list[anthropic.types.Message]:
    """By the synchronous client, in a thread."""
    messages: list[Any] = [{"role": "user", "content": "use the tool"}]
    answers: list[anthropic.types.Message] = []
    with anthropic.Anthropic(**clients(r)) as client:
        for _ in REPLIES:
            if is_stream:
                with client.messages.stream(**asked(messages)) as stream:
                    answers.append(stream.get_final_message())
            else:
                answers.append(client.messages.create(**asked(messages)))
            messages += [answers[-1].to_param()]
            if answers[-1].stop_reason == "tool_use":
                messages += [{"role": "user", "content": results(answers[-1])}]
        counted = client.messages.count_tokens(model="policy", messages=messages)
        assert counted.input_tokens > 0 and not counted.model_extra
    return answers


async def anthropic_async_agent(r: Rig, *, is_stream: bool) -> list[anthropic.types.Message]:
    """By the asynchronous client."""
    messages: list[Any] = [{"role": "user", "content": "use the tool"}]
    answers: list[anthropic.types.Message] = []
    async with anthropic.AsyncAnthropic(**clients(r)) as client:
        for _ in REPLIES:
            if is_stream:
                async with client.messages.stream(**asked(messages)) as stream:
                    answers.append(await stream.get_final_message())
            else:
                answers.append(await client.messages.create(**asked(messages)))
            messages += [answers[-1].to_param()]
            if answers[-1].stop_reason == "tool_use":
                messages += [{"role": "user", "content": results(answers[-1])}]
    return answers


@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_an_anthropic_agent_is_answered_and_its_turns_merge(is_async: bool, is_stream: bool) -> None:
    """Tool call, result, answer; the SDK's ids are the records'."""
    engine = ScriptedEngine(label=label(0))
    engine.replies.extend(REPLIES)
    async with begun(engine) as r:
        if is_async:
            first, last = await anthropic_async_agent(r, is_stream=is_stream)
        else:
            first, last = await asyncio.to_thread(anthropic_agent, r, is_stream=is_stream)
        assert [block.type for block in first.content] == ["text", "tool_use"]
        assert [block.text for block in last.content if block.type == "text"] == ["the answer is 46"]
        assert (first.stop_reason, last.stop_reason) == ("tool_use", "end_turn")
        assert [canonical_call(answer.id) for answer in (first, last)] == [call.call_id for call in r.calls()]
        assert_merged(await rows_of(r), r.calls())


async def test_an_anthropic_client_knows_what_went_wrong() -> None:
    """Its own exceptions, by status; in mid-stream too."""
    async with rig(keep_alive_s=0.01, engine_wait_s=0.2) as r, anthropic.AsyncAnthropic(**clients(r)) as client:
        await r.begin()
        with pytest.raises(anthropic.BadRequestError, match="max_tokens"):
            await client.messages.create(model="policy", max_tokens=0, messages=[{"role": "user", "content": "x"}])
        r.engine.fail_next = 99
        with pytest.raises(anthropic.APIStatusError, match="engine"):
            async with client.messages.stream(
                model="policy", max_tokens=9, messages=[{"role": "user", "content": "x"}]
            ) as stream:
                await stream.get_final_message()


FUNCTION: Any = {"type": "function", "name": "calc", "description": "d", "parameters": SCHEMA, "strict": False}


def openai_clients(r: Rig) -> dict[str, Any]:
    """With OpenAI's base URL."""
    return {**clients(r), "base_url": f"{r.url}{PATH}/v1"}


def outputs(answer: Response, *, by_id: bool) -> list[Any]:
    """What the agent sends next: the answer itself, unless it is named, and what its tools say."""
    calls = [item for item in answer.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] in ([], [("calc", '{"expr": "12+34"}')])
    told: list[Any] = [{"type": "function_call_output", "call_id": call.call_id, "output": "46"} for call in calls]
    return told if by_id else [*answer.output, *told]


def responses_agent(r: Rig, *, is_stream: bool, by_id: bool) -> list[Response]:
    """By the synchronous client, in a thread."""
    items: list[Any] = [{"role": "user", "content": "use the tool"}]
    answers: list[Response] = []
    with openai.OpenAI(**openai_clients(r)) as client:
        for _ in REPLIES:
            before = answers[-1].id if answers and by_id else openai.omit
            asked: dict[str, Any] = {"model": "policy", "instructions": "be brief", "tools": [FUNCTION]}
            asked |= {"previous_response_id": before, "input": items}
            if is_stream:
                with client.responses.stream(**asked) as stream:
                    answers.append(stream.get_final_response())
            else:
                answers.append(client.responses.create(**asked))
            told = outputs(answers[-1], by_id=by_id)
            items = told if by_id else [*items, *told]
    return answers


async def responses_async_agent(r: Rig, *, is_stream: bool, by_id: bool) -> list[Response]:
    """By the asynchronous client; its stream as raw events."""
    items: list[Any] = [{"role": "user", "content": "use the tool"}]
    answers: list[Response] = []
    async with openai.AsyncOpenAI(**openai_clients(r)) as client:
        for _ in REPLIES:
            before = answers[-1].id if answers and by_id else openai.omit
            asked: dict[str, Any] = {"model": "policy", "instructions": "be brief", "tools": [FUNCTION]}
            asked |= {"previous_response_id": before, "input": items}
            if is_stream:
                events = [event async for event in await client.responses.create(**asked, stream=True)]
                answers.append(events[-1].response)
            else:
                answers.append(await client.responses.create(**asked))
            told = outputs(answers[-1], by_id=by_id)
            items = told if by_id else [*items, *told]
    return answers


@pytest.mark.parametrize("by_id", [False, True], ids=["repeated", "by id"])
@pytest.mark.parametrize("is_stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("is_async", [False, True], ids=["sync", "async"])
async def test_a_responses_agent_is_answered_and_its_turns_merge(is_async: bool, is_stream: bool, by_id: bool) -> None:
    """Whether it repeats the conversation or names the response before."""
    engine = ScriptedEngine(label=label(0))
    engine.replies.extend(REPLIES)
    async with begun(engine) as r:
        if is_async:
            first, last = await responses_async_agent(r, is_stream=is_stream, by_id=by_id)
        else:
            first, last = await asyncio.to_thread(responses_agent, r, is_stream=is_stream, by_id=by_id)
        assert [item.type for item in first.output] == ["message", "function_call"]
        assert (last.output_text, last.status) == ("the answer is 46", "completed")
        assert [canonical_call(answer.id) for answer in (first, last)] == [call.call_id for call in r.calls()]
        assert_merged(await rows_of(r), r.calls())


async def test_an_openai_client_knows_what_went_wrong() -> None:
    """Its own exceptions, by status; an event where the stream had begun."""
    async with rig(keep_alive_s=0.01, engine_wait_s=0.2) as r, openai.AsyncOpenAI(**openai_clients(r)) as client:
        await r.begin()
        with pytest.raises(openai.BadRequestError, match="not found") as refused:
            await client.responses.create(model="policy", input="x", previous_response_id="resp_none")
        assert refused.value.code == "previous_response_not_found"
        r.engine.fail_next = 99
        events = [event async for event in await client.responses.create(model="policy", input="x", stream=True)]
        assert [event.type for event in events] == ["error"]
