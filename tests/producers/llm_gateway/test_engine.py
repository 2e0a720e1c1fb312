"""The gateway on a real vLLM engine: splice with two templates, logprobs, and each answer beside the engine's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.engine_fixture import RunningEngine
from tests.producers.keys import HOST, KEY
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, begun, full_prompt, rig, until
from tests.producers.llm_gateway.merging import assert_merged, disable_splice, rows_of
from tests.producers.llm_gateway.taught_model import ANSWERS, OWN_TOKENIZER, TEMPLATES, tools_for
from tests.serving import ENGINE_TOKEN
from tracegrad.schemas.credentials import bearer, credential
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.metrics import RENDERS_LOCALLY
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes

OWN = bearer(ENGINE_TOKEN)
pytestmark = [pytest.mark.engine, pytest.mark.torch, pytest.mark.timeout(600)]

LIMIT: dict[str, Any] = {"max_tokens": 120}


@pytest.fixture(scope="module", params=TEMPLATES)
def engine(request: pytest.FixtureRequest, engines: dict[str, RunningEngine]) -> tuple[str, Path]:
    """(url, model folder) of an engine."""
    engine = engines[request.param]
    return engine.url, engine.model


async def _converse(r: Rig) -> list[Any]:
    """Three turns with a tool or a second question; the messages at the end."""
    await r.begin()
    messages: list[Any] = [{"role": "user", "content": "use the tool"}]
    for _ in range(3):
        answer = await r.chat(messages, tools=tools_for("use the tool"), **LIMIT)
        message = answer["choices"][0]["message"]
        messages.append(message)
        for call in message.get("tool_calls") or []:
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": "46"})
        if not message.get("tool_calls"):
            messages.append({"role": "user", "content": "use the tool"})
    return messages


async def test_the_next_prompt_is_prompt_plus_sampled_plus_suffix(engine: tuple[str, Path]) -> None:
    """Rendering anew differs (asserted first); the spliced prompts begin with all that was sampled, and merge."""
    from transformers import AutoTokenizer

    url, model = engine
    tokenizer: Any = AutoTokenizer.from_pretrained(model)
    async with rig(engine_url=url, engine_wait_s=60) as r:
        messages = await _converse(r)
        calls = r.calls()
        for i, call in enumerate(calls[:-1]):
            sampled = ids_from_bytes(call.sampled_ids).tolist()
            before = full_prompt(call, calls) + sampled
            position = [j for j, message in enumerate(messages) if message["role"] == "assistant"][i]
            anew = await _rendered(r, url, messages[: position + 2])
            assert anew[: len(before)] != before, "the test needs a tokenizer whose re-rendering differs"
            after = calls[i + 1]
            prompt = full_prompt(after, calls)
            assert after.splice.kind == "extended" and after.parent_call_id == call.call_id
            assert prompt[: len(before)] == before and after.shared_tokens == len(before)
            # What follows is what the template puts after an assistant's message.
            suffix = tokenizer.decode(prompt[len(before) :])
            assert tokenizer.decode(anew).endswith(suffix.removeprefix("<|im_end|>"))
            assert (sampled[-1] == tokenizer.eos_token_id) != suffix.startswith("<|im_end|>")


async def test_all_turns_merge_with_mask_1_on_the_sampled_ids_alone(engine: tuple[str, Path]) -> None:
    """One row of the trainer's input for the three calls."""
    async with rig(engine_url=engine[0], engine_wait_s=60) as r:
        await _converse(r)
        assert len(r.calls()) == 3
        assert_merged(await rows_of(r), r.calls())


async def test_without_the_splice_turns_do_not_merge(engine: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same assertion fails: the template's own ids differ from those sampled, so another row begins."""
    disable_splice(monkeypatch)
    async with rig(engine_url=engine[0], engine_wait_s=60) as r:
        await _converse(r)
        rows = await rows_of(r)
        with pytest.raises((AssertionError, ValueError)):
            assert_merged(rows, r.calls())
        # The first answer is the one learnt by heart, spelt letter by letter; the later ones may be anything.
        assert len(rows) > 1
        assert rows[1].token_ids[: len(rows[0].token_ids)].tolist() != rows[0].token_ids.tolist()


async def _rendered(r: Rig, url: str, messages: list[Any]) -> list[int]:
    body = {"messages": messages, "tools": tools_for("use the tool")}
    async with r.http.post(url + "/v1/chat/completions/render", json=body, headers=OWN) as response:
        answer = await response.json()
    ids: list[int] = answer["token_ids"]
    return ids


async def test_logprobs_equal_a_recomputation(engine: tuple[str, Path]) -> None:
    """By transformers, float32, within 1e-3, at the policy's temperature."""
    import torch
    from transformers import AutoModelForCausalLM

    from tracegrad.producers.llm_gateway.config import PolicyConfig

    url, folder = engine
    policy = PolicyConfig(model=str(folder), temperature=0.8)
    async with rig(engine_url=url, engine_wait_s=60, policy=policy) as r:
        await _converse(r)
        calls = r.calls()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for call in calls:
        prompt, sampled = full_prompt(call, calls), ids_from_bytes(call.sampled_ids).tolist()
        with torch.inference_mode():
            logits_TV = model(torch.tensor([prompt + sampled])).logits[0, len(prompt) - 1 : -1] / 0.8
        expected = torch.log_softmax(logits_TV, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0]
        got = torch.tensor(logprobs_from_bytes(call.logprobs))
        assert float((got - expected).abs().max()) <= 1e-3


CASES: dict[str, dict[str, Any]] = {
    "plain": {"said": "say something"},
    "plain_with_tools": {"said": "just chat"},
    "tool_call": {"said": "use the tool"},
    "two_tool_calls": {"said": "use it twice"},
    "content_and_tool_call": {"said": "think, then use it"},
    "parallel_tool_calls_false": {"said": "use it twice", "parallel_tool_calls": False},
    "broken_tool_call": {"said": "break it"},
    "empty": {"said": "say nothing"},
    "length": {"said": "say something", "max_tokens": 5},
    "length_within_tool_call": {"said": "use the tool", "max_tokens": 12},
    "stop_string": {"said": "stop early", "stop": [" three"]},
    "stop_string_absent": {"said": "stop early", "stop": ["never"]},
    "tool_choice_none": {"said": "use the tool", "tool_choice": "none"},
}


@pytest.mark.skipif(bool(OWN_TOKENIZER), reason="random weights have learnt no answers")
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_the_answer_equals_the_engines_own(engine: tuple[str, Path], case: dict[str, Any]) -> None:
    """Content, tool calls, finish reason and usage, greedy."""
    url, folder = engine
    fields = {**LIMIT, **case}
    said = fields.pop("said")
    body = {"messages": [{"role": "user", "content": said}], **fields}
    if tools_for(said):
        body["tools"] = tools_for(said)
    async with contextlib.AsyncExitStack() as stack:
        remote = await stack.enter_async_context(rig(engine_url=url, engine_wait_s=60, renders_locally=False))
        local = await stack.enter_async_context(rig(engine_url=url, engine_wait_s=60, folder=str(folder)))
        await until(lambda: "renders_locally" in local.gateway.parts.metrics.snapshot(), 60)
        assert local.gateway.parts.metrics.value(RENDERS_LOCALLY) == 1
        async with remote.http.post(
            url + "/v1/chat/completions", json={**body, "temperature": 0}, headers=OWN
        ) as response:
            own = await response.json()
        for r in (remote, local):
            await r.begin(purpose="validation")
            ours, theirs = _essence(await r.chat(**body)), _essence(own)
            if "parallel_tool_calls" in case:
                # The engine stops after the first call by a grammar, which would bend the logprobs.
                ours, theirs = ours[:3], theirs[:3]
            assert ours == theirs
    if case.keys() == {"said"}:
        content, calls, _, _ = _essence(own)
        assert (content or "") == ANSWERS[said].split("<tool_call>")[0] or said == "break it"
        assert len(calls) == (0 if said == "break it" else ANSWERS[said].count("<tool_call>"))


def _essence(answer: Any) -> Any:
    choice = answer["choices"][0]
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in choice["message"].get("tool_calls") or []
    ]
    usage = {name: answer["usage"][name] for name in ("prompt_tokens", "completion_tokens")}
    return choice["message"]["content"], calls, choice["finish_reason"], usage


async def test_a_grammar_is_honoured_and_marked(engine: tuple[str, Path]) -> None:
    """response_format json_object: the engine samples under it."""
    url, _ = engine
    async with begun(engine_url=url, engine_wait_s=60) as r:
        fields: dict[str, Any] = {"response_format": {"type": "json_object"}, "max_tokens": 20}
        await r.chat([{"role": "user", "content": "say something"}], **fields)
        (call,) = r.calls()
        assert call.is_constrained and (call.content or "").lstrip().startswith("{")


async def test_calls_wait_while_the_engine_is_paused(engine: tuple[str, Path]) -> None:
    """As weight sync pauses it: the call ends after the resume."""
    url, _ = engine
    async with begun(engine_url=url, engine_wait_s=60) as r:
        async with r.http.post(url + "/pause?mode=keep", headers=OWN) as response:
            assert response.status == 200
        call = asyncio.create_task(r.chat([{"role": "user", "content": "say something"}], max_tokens=8))
        done, _ = await asyncio.wait({call}, timeout=0.5)
        assert not done
        async with r.http.post(url + "/resume", headers=OWN) as response:
            assert response.status == 200
        await asyncio.wait_for(call, 30)


PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"
ALIKE = (
    "plain",
    "plain_with_tools",
    "tool_call",
    "two_tool_calls",
    "content_and_tool_call",
    "broken_tool_call",
    "empty",
)


async def _by_messages(r: Rig, said: str) -> tuple[str, list[Any]]:
    tools = [{**tool["function"], "input_schema": tool["function"]["parameters"]} for tool in tools_for(said) or ()]
    body = {"model": "policy", "messages": [{"role": "user", "content": said}], "tools": tools or None, **LIMIT}
    status, answer = await r.post(f"{PATH}/messages", body)
    assert status == 200, answer
    texts = [block["text"] for block in answer["content"] if block["type"] == "text"]
    calls = [(block["name"], block["input"]) for block in answer["content"] if block["type"] == "tool_use"]
    return "".join(texts), calls


async def _by_responses(r: Rig, said: str) -> tuple[str, list[Any]]:
    tools = [{"type": "function", **tool["function"]} for tool in tools_for(said) or ()]
    body = {"model": "policy", "input": said, "max_output_tokens": LIMIT["max_tokens"], "tools": tools or None}
    status, answer = await r.post(f"{PATH}/responses", body)
    assert status == 200, answer
    texts = [item["content"][0]["text"] for item in answer["output"] if item["type"] == "message"]
    calls = [(it["name"], json.loads(it["arguments"])) for it in answer["output"] if it["type"] == "function_call"]
    return "".join(texts), calls


@pytest.mark.skipif(bool(OWN_TOKENIZER), reason="random weights have learnt no answers")
@pytest.mark.parametrize("case", ALIKE)
async def test_every_api_has_the_engines_own_ids_and_words(engine: tuple[str, Path], case: str) -> None:
    """Greedy: what is recorded is what the engine samples by its own chat endpoint, and each API says the same."""
    url, _ = engine
    said = CASES[case]["said"]
    tools: dict[str, Any] = {"tools": tools_for(said)} if tools_for(said) else {}
    body = {"messages": [{"role": "user", "content": said}], "temperature": 0, "return_token_ids": True, **LIMIT}
    async with rig(engine_url=url, engine_wait_s=60) as r:
        async with r.http.post(f"{url}/v1/chat/completions", json={**body, **tools}, headers=OWN) as response:
            own = (await response.json())["choices"][0]
        await r.begin(purpose="validation")
        await r.chat([{"role": "user", "content": said}], **tools, **LIMIT)
        calls = [
            (call["function"]["name"], json.loads(call["function"]["arguments"]))
            for call in own["message"].get("tool_calls") or ()
        ]
        for speak in (_by_messages, _by_responses):
            assert await speak(r, said) == (own["message"]["content"] or "", calls)
        assert [ids_from_bytes(call.sampled_ids).tolist() for call in r.calls()] == [own["token_ids"]] * 3
        assert len({tuple(full_prompt(call, r.calls())) for call in r.calls()}) == 1


@pytest.mark.parametrize("name", ["responses", "messages"])
async def test_a_client_that_gives_up_and_retries_is_answered_once(engine: tuple[str, Path], name: str) -> None:
    """By the SDKs' own time-outs and retries, while the engine is paused: the first call is nobody's."""
    url, _ = engine
    async with rig(engine_url=url, engine_wait_s=60) as r, contextlib.AsyncExitStack() as stack:
        await r.begin()
        given: Any = {"api_key": credential(KEY, HOST), "timeout": 2.0, "max_retries": 5}
        create: Any
        ask: dict[str, Any] = {"model": "policy"}
        if name == "responses":
            oai = await stack.enter_async_context(openai.AsyncOpenAI(base_url=r.url + PATH, **given))
            create, ask = oai.responses.create, ask | {"input": "say something", "max_output_tokens": 8}
        else:
            ant = anthropic.AsyncAnthropic(base_url=r.url + PATH.removesuffix("/v1"), **given)
            client = await stack.enter_async_context(ant)
            create = client.messages.create
            ask |= {"messages": [{"role": "user", "content": "say something"}], "max_tokens": 8}
        async with r.http.post(url + "/pause?mode=keep", headers=OWN) as response:
            assert response.status == 200
        call = asyncio.create_task(create(**ask))
        # The second request has come: the first was given up.
        await until(lambda: r.gateway._chat.num_inflight == 2, 30)
        async with r.http.post(url + "/resume", headers=OWN) as response:
            assert response.status == 200
        answer: Any = await asyncio.wait_for(call, 60)
        outcomes = {told["call_id"]: told["outcome"] for told in await r.end()}
        assert outcomes.pop(canonical_call(answer.id)) == "delivered"
        assert set(outcomes.values()) == {"client_disconnected"}


@pytest.mark.parametrize("renders_locally", [False, True])
async def test_a_prompt_that_is_too_long_is_counted_and_told_in_numbers(
    engine: tuple[str, Path], renders_locally: bool
) -> None:
    """By each way to render: its count is the engine's own, and its refusal names the context window."""
    url, folder = engine
    where = str(folder) if renders_locally else "/nowhere"
    messages = [{"role": "user", "content": "word " * 3000}]
    tools = [{"name": "calc", "input_schema": {"type": "object"}}]
    async with rig(engine_url=url, engine_wait_s=60, renders_locally=renders_locally, folder=where) as r:
        body = {"model": "policy", "messages": messages, "tools": tools}
        status, counted = await r.post("/v1/messages/count_tokens", body)
        function = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
        async with r.http.post(
            f"{url}/tokenize", json={"messages": messages, "tools": [function]}, headers=bearer(ENGINE_TOKEN)
        ) as response:
            assert (status, counted["input_tokens"]) == (200, (await response.json())["count"])
        status, answer = await r.post("/v1/messages", {**body, "max_tokens": 9})
        words = r"prompt is too long: (\d+) tokens > (\d+) maximum"
        assert status == 400 and (found := re.fullmatch(words, answer["error"]["message"])), answer
        # The engine cuts what it tokenizes, and says how many there are at least.
        assert int(found[2]) < int(found[1]) <= counted["input_tokens"]
