"""Streamed answers of a real vLLM engine: as they are sampled, and in the end those that are not streamed."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.engine_fixture import RunningEngine, generate_body
from tests.fake_engine.scripted import EngineFault, Reply, ScriptedEngine
from tests.producers.llm_gateway.harness import GENERATE, Rig, rig, until
from tests.producers.llm_gateway.merging import assert_merged, rows_of
from tests.producers.llm_gateway.streaming import BODIES, Stream
from tests.producers.llm_gateway.taught_model import ANSWERS, tools_for
from tests.serving import ENGINE_TOKEN, serve
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.metrics import RENDERS_LOCALLY
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes

OWN = bearer(ENGINE_TOKEN)
pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(300)]
DRAWS = 10
"""Streams of which one at least is to be caught before its end."""
CASES: dict[str, dict[str, Any]] = {
    "plain": {"said": "say something"},
    "plain_with_tools": {"said": "just chat"},
    "tool_call": {"said": "use the tool"},
    "content_and_tool_call": {"said": "think, then use it"},
    "broken_tool_call": {"said": "break it"},
    "empty": {"said": "say nothing"},
    "length": {"said": "say something", "max_tokens": 5},
    "stop_string": {"said": "stop early", "stop": [" three"]},
    "tool_choice_none": {"said": "use the tool", "tool_choice": "none"},
}


@pytest.fixture(scope="module")
def engine(engines: dict[str, RunningEngine]) -> RunningEngine:
    """Of the template that the gateway renders itself."""
    return engines["qwen2_5"]


@asynccontextmanager
async def proved(engine: RunningEngine, purpose: str = "validation") -> AsyncIterator[Rig]:
    """A gateway that reads answers itself; its attempt has begun."""
    async with rig(engine_url=engine.url, engine_wait_s=60, folder=str(engine.model)) as r:
        await until(lambda: "renders_locally" in r.gateway.parts.metrics.snapshot(), 60)
        assert r.gateway.parts.metrics.value(RENDERS_LOCALLY) == 1
        await r.begin(purpose=purpose)
        yield r


def fields_of(case: dict[str, Any]) -> dict[str, Any]:
    """A chat request's."""
    said = case["said"]
    tools = {"tools": tools_for(said)} if tools_for(said) else {}
    rest = {name: value for name, value in case.items() if name != "said"}
    return {"messages": [{"role": "user", "content": said}], "max_tokens": 120, **tools, **rest}


async def _held(r: Rig, engine: RunningEngine, stream: Stream) -> str | None:
    """The text that is here once the engine is paused and holds the rest; None: all was said before."""
    await until(lambda: stream.text, 30)
    num_calls = len(r.calls())
    async with r.http.post(engine.url + "/pause?mode=keep", headers=OWN) as response:
        assert response.status == 200
    try:
        await asyncio.wait([stream.task], timeout=1.0)
        is_ended = stream.task.done() or stream.is_finished or len(r.calls()) != num_calls
        return None if is_ended or stream.text == ANSWERS["say something"] else stream.text
    finally:
        async with r.http.post(engine.url + "/resume", headers=OWN) as response:
            assert response.status == 200


@pytest.mark.parametrize("path", BODIES)
async def test_text_arrives_before_the_engine_has_finished(engine: RunningEngine, path: str) -> None:
    """By each API: the engine is paused once the first text is here, and holds the rest. One that is done by then is
    asked again, of an attempt of its own: where text comes when all is sampled, it always is."""
    said = [{"role": "user", "content": "say something"}]
    fields: dict[str, Any] = {"input": said} if path == "responses" else {"messages": said}
    early: str | None = None
    for _ in range(DRAWS):
        async with proved(engine, "train") as r:
            stream = Stream(r, path, **fields)
            early = await _held(r, engine, stream)
            await stream.end()
            (call,) = r.calls()
            assert stream.is_finished and stream.text == call.content and stream.text.startswith(early or "")
            assert [(span.start, span.version) for span in call.versions] == [(0, 0)]
            assert_merged(await rows_of(r), [call])
        if early is not None:
            break
    assert early is not None


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_streamed_answer_equals_the_whole_one(engine: RunningEngine, case: dict[str, Any]) -> None:
    """Greedy: ids, logprobs, text, tool calls, finish reason."""
    async with proved(engine) as r:
        whole = await r.chat(**fields_of(case))
        stream = Stream(r, **fields_of(case))
        assert await stream.end() == 200 and stream.is_finished
        first, second = r.calls()
        assert first.sampled_ids == second.sampled_ids and first.is_truncated == second.is_truncated
        assert logprobs_from_bytes(second.logprobs) == pytest.approx(logprobs_from_bytes(first.logprobs), abs=1e-4)
        assert first.versions == second.versions and first.finish_reason == second.finish_reason
        message = whole["choices"][0]["message"]
        assert stream.text == (message["content"] or "") == (second.content or "")
        assert [call.name for call in second.tool_calls] == [
            call["function"]["name"] for call in message.get("tool_calls", ())
        ]


async def test_a_prompt_that_is_too_long_is_refused_before_the_stream(engine: RunningEngine) -> None:
    """With the engine's status and words."""
    async with proved(engine) as r:
        for stream in (True, False):
            asked = Stream(r, messages=[{"role": "user", "content": "long " * 2000}], stream=stream)
            assert await asked.end() == 400
            assert asked.events[0]["error"]["code"] == "context_length_exceeded"


async def test_logprobs_are_answered_on_request(engine: RunningEngine) -> None:
    """Those of the record, one for each token but the terminal one, the engine's own alternatives; streamed too."""
    fields = fields_of(CASES["plain"]) | {"logprobs": True, "top_logprobs": 2}
    own = engine.client.post("/v1/chat/completions", json=fields | {"temperature": 0}).json()
    async with proved(engine) as r:
        answer = await r.chat(**fields)
        stream = Stream(r, **fields)
        await stream.end()
        (call, _) = r.calls()
        told = answer["choices"][0]["logprobs"]["content"]
        assert len(told) == len(ids_from_bytes(call.sampled_ids)) - 1
        assert [entry["logprob"] for entry in told] == pytest.approx(logprobs_from_bytes(call.logprobs)[:-1], abs=1e-4)
        streamed = [choice["logprobs"] for event in stream.events for choice in event["choices"] if choice["logprobs"]]
        for others in (streamed[0]["content"], own["choices"][0]["logprobs"]["content"][: len(told)]):
            assert _tokens(others) == _tokens(told)
        assert "".join(entry["token"] for entry in told) == ANSWERS["say something"]


def _tokens(content: Any) -> list[Any]:
    return [(entry["token"], [top["token"] for top in entry["top_logprobs"]]) for entry in content]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_schema_is_obeyed_marked_and_masked(engine: RunningEngine, stream: bool) -> None:
    """The answer fits it; in the transitions nothing of it trains."""
    schema: Any = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    schema["additionalProperties"] = False
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    async with proved(engine, "train") as r:
        asked = Stream(r, **fields_of(CASES["plain"]), response_format=form, stream=stream)
        assert await asked.end() == 200
        await r.chat(**fields_of(CASES["plain"]))
        constrained, free = r.calls()
        assert constrained.is_constrained and not free.is_constrained
        assert isinstance(json.loads(constrained.content or "")["ok"], bool)
        assert not stream or asked.text == constrained.content
        rows = await rows_of(r)
        trained = [token for row in rows for token, mask in zip(row.token_ids, row.loss_mask, strict=True) if mask]
        assert trained == ids_from_bytes(free.sampled_ids).tolist()


async def _chunks(r: Rig, url: str, body: Any) -> list[dict[str, Any]]:
    async with r.http.post(url + GENERATE, json=body, headers=OWN) as response:
        assert response.status == 200
        text = await response.text()
    events = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    assert events.pop() == "[DONE]"
    return [json.loads(event) for event in events]


@pytest.mark.parametrize("ending", [{"max_tokens": 4}, {"max_tokens": 60, "ignore_eos": False}], ids=["length", "stop"])
async def test_the_scripted_engine_streams_as_vllm_does(engine: RunningEngine, ending: dict[str, Any]) -> None:
    """What a chunk has, and in which chunk; together they are the whole answer."""
    tokens = engine.client.post("/tokenize", json={"messages": [{"role": "user", "content": "say something"}]}).json()
    body = generate_body(tokens["tokens"], **{"temperature": 0, **ending}) | {"stream": True}
    scripted = ScriptedEngine(replies=deque([Reply("hello")]))
    async with proved(engine) as r, serve(scripted.app) as scripted_url:
        real, script = await _chunks(r, engine.url, body), await _chunks(r, scripted_url, body)
        whole = engine.generate(tokens["tokens"], temperature=0, **ending)
    for chunks in (real, script):
        choices = [chunk["choices"] for chunk in chunks]
        assert all(len(choice) == 1 and choice[0]["logprobs"]["content"] for choice in choices)
        for (choice,) in choices[:-1]:
            assert [choice[name] for name in ("finish_reason", "stop_reason", "weight_versions")] == [None] * 3
        (last,) = choices[-1]
        # A client that is slow to read gets several tokens at once.
        assert last["finish_reason"] and last["weight_versions"] and last["token_ids"]
        for (choice,) in choices:
            assert [entry["token_id"] for entry in choice["logprobs"]["content"]] == choice["token_ids"]
    assert script[0].keys() <= real[0].keys() and script[0]["choices"][0].keys() <= real[0]["choices"][0].keys()
    assert [token for chunk in real for token in chunk["choices"][0]["token_ids"]] == whole["token_ids"]
    assert real[-1]["choices"][0]["weight_versions"] == whole["weight_versions"]
    assert real[-1]["choices"][0]["finish_reason"] == whole["finish_reason"]


async def test_the_scripted_engine_refuses_within_a_stream_as_vllm_does(engine: RunningEngine) -> None:
    """It finds ids that are no tokens once the stream has begun: an error in it, of the scripted shape."""
    body = generate_body([10**6]) | {"stream": True}

    async def fails(index: int) -> None:
        raise EngineFault(400)

    scripted = ScriptedEngine(replies=deque([Reply("hello")]), before_token=fails)
    async with proved(engine) as r, serve(scripted.app) as scripted_url:
        (real,), (script,) = await _chunks(r, engine.url, body), await _chunks(r, scripted_url, body)
        assert real["error"]["code"] == script["error"]["code"] == 400
        assert script.keys() == real.keys() and script["error"].keys() == real["error"].keys()
