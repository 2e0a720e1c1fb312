"""The gateway over HTTP: what agents ask, what they get, what is recorded."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.fake_engine.tokenizer import EOT
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, GENERATE, ROLLOUT, Rig, begun, full_prompt, rig
from tests.versions import label, sampled_by
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.metrics import CALLS_NOT_REMEMBERED, SESSIONS_FORGOTTEN
from tracegrad.schemas.records.calls import CallOutcome, CallsClosed, Purpose
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes

pytestmark = pytest.mark.slow


async def test_a_call_is_recorded_with_ids_logprobs_and_version(r: Rig) -> None:
    """The record holds what the engine sampled; the response id is the call id."""
    r.engine.replies.append(Reply("42"))
    answer = await r.chat(ASK, temperature=0.2, top_p=0.5, logit_bias={"5": 3})
    assert answer["choices"][0]["message"]["content"] == "42"
    assert answer["choices"][0]["finish_reason"] == "stop"
    (call,) = r.calls()
    sampled = [*r.engine.tokenizer.encode("42", merge=False), EOT]
    assert call.call_id == answer["id"] and (call.rollout_id, call.attempt_id) == (ROLLOUT, ATTEMPT)
    assert ids_from_bytes(call.sampled_ids).tolist() == sampled
    assert logprobs_from_bytes(call.logprobs).tolist() == pytest.approx([-0.1 * (1 + t % 7) for t in sampled])
    assert call.versions == (sampled_by(0),)
    assert answer["usage"] == {
        "prompt_tokens": len(full_prompt(call, [call])),
        "completion_tokens": 3,
        "total_tokens": len(full_prompt(call, [call])) + 3,
    }
    assert call.sampling_asked["temperature"] == 0.2 and call.sampling_used.temperature == 1.0
    assert not call.is_constrained and not call.is_truncated
    assert call.splice.kind == "first"


async def test_training_writes_every_sampling_field() -> None:
    """What the agent asks for does not reach the engine; the policy's own temperature does."""
    async with begun(policy=PolicyConfig(model="none", temperature=0.7, max_tokens=40)) as r:
        r.engine.replies.append(Reply("x"))
        await r.chat(ASK, temperature=0, top_p=0.1, seed=5, presence_penalty=1.0, max_tokens=9, top_k=3)
        (body,) = r.asked(GENERATE)
        assert body["sampling_params"] == {
            "n": 1, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "logprobs": 0,
            "detokenize": False, "max_tokens": 9,
        }  # fmt: skip


@pytest.mark.parametrize("settings", [{}, {"validation_temperature": 0.5}], ids=["greedy", "configured"])
async def test_validation_is_greedy_unless_configured(settings: dict[str, Any]) -> None:
    """Whatever the agent asks for."""
    async with rig(policy=PolicyConfig(model="none", **settings)) as r:
        r.engine.replies.append(Reply("x"))
        await r.begin(purpose="validation")
        await r.chat(ASK, temperature=1.0)
        (call,) = r.calls()
        assert call.sampling_used.temperature == settings.get("validation_temperature", 0.0)
        assert call.purpose is Purpose.VALIDATION


async def test_a_tool_call_turn_is_spliced_with_the_sampled_ids(r: Rig) -> None:
    """Turn 2's prompt is turn 1's prompt, what was sampled, and the tool's answer; rendering anew would differ."""
    r.engine.replies.extend([Reply(tool_call_text("calc", expr="12+30")), Reply("42")])
    first = (await r.chat(ASK, tools=CALC))["choices"][0]
    assert first["finish_reason"] == "tool_calls"
    call = first["message"]["tool_calls"][0]
    assert json.loads(call["function"]["arguments"]) == {"expr": "12+30"}
    messages = [*ASK, first["message"], {"role": "tool", "tool_call_id": call["id"], "content": "42"}]
    await r.chat(messages, tools=CALC)
    one, two = r.calls()
    assert (two.splice.kind, two.splice.reason, two.parent_call_id) == ("extended", "", one.call_id)
    before = full_prompt(one, [one]) + ids_from_bytes(one.sampled_ids).tolist()
    assert two.shared_tokens == len(before)
    prompt = full_prompt(two, [one, two])
    assert prompt == r.asked(GENERATE)[1]["token_ids"]
    anew = r.engine.render(messages, CALC, generation_prompt=True)
    assert anew[: len(before)] != before
    tail = "\n<|im_start|>tool\n42<|im_end|>\n<|im_start|>assistant\n"
    assert prompt[len(before) :] == r.engine.tokenizer.encode(tail)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda m: m[1].update(content="shorter"), "answer_changed"),
        (lambda m: m[0].update(content="something else"), "history_changed"),
        (lambda m: m.pop(1), "new_conversation"),
        (lambda m: m.insert(0, {"role": "system", "content": "s"}) or m[2].update(content="!"), "no_match"),
    ],
    ids=["answer_changed", "history_changed", "new_conversation", "no_match"],
)
async def test_a_changed_history_starts_a_new_segment_with_its_reason(r: Rig, change: Any, reason: str) -> None:
    """The prompt is then the template's own."""
    r.engine.replies.extend([Reply("answer 12"), Reply("next")])
    first = await r.chat(ASK)
    messages = [dict(ASK[0]), first["choices"][0]["message"], {"role": "user", "content": "go on"}]
    change(messages)
    await r.chat(messages)
    call = r.calls()[1]
    assert (call.splice.kind, call.splice.reason, call.parent_call_id) == ("new_segment", reason, None)
    assert full_prompt(call, r.calls()) == r.engine.render(messages, None, generation_prompt=True)


async def test_a_template_that_drops_history_starts_a_new_segment() -> None:
    """What the model would no longer see is not put back."""
    async with begun(ScriptedEngine(label=label(0), forgetful=True)) as r:
        r.engine.replies.extend([Reply("one 12"), Reply("two 34"), Reply("three")])
        messages: list[Any] = list(ASK)
        for _ in range(3):
            answer = await r.chat(messages)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
        # After the third request's render the first answer is gone.
        assert [call.splice.kind for call in r.calls()] == ["first", "extended", "extended"]
        rendered = r.engine.render(messages[:5], None, generation_prompt=True)
        assert full_prompt(r.calls()[2], r.calls())[: len(rendered)] != rendered


async def test_an_answer_without_end_gets_the_templates_end_as_context(r: Rig) -> None:
    """Cut at max_tokens: the record is truncated, the next prompt has the end of turn after the sampled ids."""
    r.engine.replies.extend([Reply("a long answer"), Reply("fine")])
    first = await r.chat(ASK, max_tokens=4)
    assert first["choices"][0]["finish_reason"] == "length"
    assert first["choices"][0]["message"]["content"] == "a lo"
    await r.chat([*ASK, first["choices"][0]["message"], {"role": "user", "content": "go on"}])
    one, two = r.calls()
    assert one.is_truncated and two.splice.kind == "extended"
    prompt = full_prompt(two, [one, two])
    assert two.shared_tokens == len(full_prompt(one, [one])) + 4
    assert prompt[two.shared_tokens] == EOT


async def test_stop_string_is_cut(r: Rig) -> None:
    """The agent sees the text before it; where it goes on from that alone, the next turn is a new segment."""
    r.engine.replies.extend([Reply("Thought. Observation: x"), Reply("next")])
    first = await r.chat(ASK, stop=["Observation:"])
    choice = first["choices"][0]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("Thought. ", "stop")
    await r.chat([*ASK, choice["message"], {"role": "user", "content": "go on"}])
    one, two = r.calls()
    assert not one.is_truncated and one.content == "Thought. "
    assert (two.splice.kind, two.splice.reason) == ("new_segment", "answer_cut")


async def test_parallel_tool_calls_false_keeps_the_first(r: Rig) -> None:
    """As OpenAI's field asks."""
    both = tool_call_text("calc", expr="1+1") + tool_call_text("calc", expr="2+2")
    r.engine.replies.extend([Reply(both), Reply(both)])
    one = (await r.chat(ASK, tools=CALC, parallel_tool_calls=False))["choices"][0]["message"]
    two = (await r.chat(ASK, tools=CALC))["choices"][0]["message"]
    assert (len(one["tool_calls"]), len(two["tool_calls"])) == (1, 2)
    assert "parallel_tool_calls" not in r.asked("/v1/chat/completions/render")[0]


async def test_logprobs_that_the_agent_asks_for_go_through_the_engines_parser(r: Rig) -> None:
    """One for each token but the terminal one, as sampled; the engine words them."""
    r.engine.replies.extend([Reply("42"), Reply("42")])
    await r.chat(ASK, logprobs=True, top_logprobs=3)
    await r.chat(ASK)
    asked, plain = (body["generate_response"]["choices"][0] for body in r.asked("/v1/chat/completions/derender"))
    (call, _) = r.calls()
    sampled = zip(asked["token_ids"], logprobs_from_bytes(call.logprobs).tolist(), strict=False)
    assert [(entry["token_id"], entry["logprob"]) for entry in asked["logprobs"]["content"]] == [
        (token, pytest.approx(logprob)) for token, logprob in sampled
    ]
    assert plain["logprobs"] is None
    assert [body["sampling_params"]["logprobs"] for body in r.asked(GENERATE)] == [3, 0]


async def test_empty_output_is_an_empty_answer(r: Rig) -> None:
    """The engine refuses to derender nothing, so it is not asked."""
    r.engine.replies.append(Reply(""))
    answer = await r.chat(ASK)
    assert answer["choices"][0]["message"]["content"] == ""
    assert ids_from_bytes(r.calls()[0].sampled_ids).tolist() == [EOT]
    assert not r.asked("/v1/chat/completions/derender")


async def test_end_closes_the_attempt_and_can_be_asked_again(r: Rig) -> None:
    """calls_closed names every call; later calls get 410; a second /end answers alike and appends nothing."""
    r.engine.replies.extend([Reply("a"), Reply("b")])
    await r.begin()
    await r.chat(ASK)
    await r.chat(ASK)
    calls = await r.end()
    assert [(call["content"], call["outcome"], call["sampled_tokens"]) for call in calls] == [
        ("a", "delivered", 2), ("b", "delivered", 2),
    ]  # fmt: skip
    closed = r.records()[-1]
    assert isinstance(closed, CallsClosed)
    assert closed.outcomes == {call.call_id: CallOutcome.DELIVERED for call in r.calls()}
    assert await r.end() == calls
    assert len(r.records()) == 3
    status, answer = await r.chat_raw(ASK)
    assert status == 410 and answer["error"]["type"] == "invalid_request_error"


async def test_strict_is_kept_where_the_settings_allow_it() -> None:
    """`[llm] allow_strict`."""
    async with begun(allow_strict=True) as r:
        r.engine.replies.append(Reply("a"))
        await r.chat(ASK, tools=[{"type": "function", "function": {"name": "calc", "strict": True}}])
        assert r.asked("/v1/chat/completions/render")[0]["tools"][0]["function"]["strict"] is True


async def test_strict_is_dropped_and_a_grammar_is_marked(r: Rig) -> None:
    """`strict` never reaches the engine; response_format does, and the call leaves the loss."""
    r.engine.replies.extend([Reply("{}"), Reply("{}")])
    strict = [{"type": "function", "function": {"name": "calc", "strict": True}}]
    await r.chat(ASK, tools=strict)
    await r.chat(ASK, response_format={"type": "json_object"})
    assert "strict" not in r.asked("/v1/chat/completions/render")[0]["tools"][0]["function"]
    assert [call.is_constrained for call in r.calls()] == [False, True]
    assert r.asked(GENERATE)[1]["sampling_params"]["structured_outputs"] == {"json_object": True}


async def test_streaming_sends_the_finished_message_in_chunks(r: Rig) -> None:
    """Comments first, then role, content, tool calls, finish, usage, done."""
    r.engine.delay_s = 0.12
    r.engine.replies.append(Reply("so " + tool_call_text("calc", expr="1+1")))
    path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
    body = {"messages": ASK, "tools": CALC, "stream": True, "stream_options": {"include_usage": True}}
    async with r.http.post(path, json=body) as response:
        assert response.headers["content-type"] == "text/event-stream"
        events = (await response.text()).strip().split("\n\n")
    assert events[0] == ": keep-alive" and events[-1] == "data: [DONE]"
    data = [json.loads(event[6:]) for event in events[:-1] if event.startswith("data: ")]
    deltas = [chunk["choices"][0]["delta"] for chunk in data if chunk["choices"]]
    assert deltas[0]["role"] == "assistant" and deltas[1] == {"content": "so "}
    assert deltas[2]["tool_calls"][0]["function"]["name"] == "calc"
    assert data[-2]["choices"][0]["finish_reason"] == "tool_calls"
    assert data[-1]["usage"]["completion_tokens"] > 0
    assert {chunk["id"] for chunk in data} == {r.calls()[0].call_id}
    assert [call["outcome"] for call in await r.end()] == ["delivered"]


@pytest.mark.slow
async def test_a_streamed_failure_keeps_its_status_when_nothing_was_sent() -> None:
    """And is an event afterwards."""
    async with begun(engine_wait_s=0.2, keep_alive_s=0.05) as r:
        status, _ = await r.post(
            f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions", {"messages": ASK, "n": 0, "stream": True}
        )
        assert status == 400
        r.engine.fail_next = 100
        path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        async with r.http.post(path, json={"messages": ASK, "stream": True}) as response:
            events = (await response.text()).strip().split("\n\n")
        assert response.status == 200 and json.loads(events[-1][6:])["error"]["type"] == "server_error"


async def test_memory_is_bounded_by_token_ids() -> None:
    """Captured traces go first; an attempt keeps its session, and only starts a new segment, counted."""
    async with rig(max_history_ids=60) as r:
        r.engine.replies.extend(Reply("42") for _ in range(4))
        for number in range(2):
            parent = f"00-{number + 1:032x}-{1:016x}-01"
            assert (await r.post("/v1/chat/completions", {"messages": ASK}, traceparent=parent))[0] == 200
        await r.begin()
        answer = (await r.chat(ASK))["choices"][0]["message"]
        again = [*ASK, answer, {"role": "user", "content": "and 3 plus 4? " * 9}]
        await r.chat(again)
        await r.chat([*again, {"role": "user", "content": "and then?"}])
        assert r.gateway.parts.metrics.value(SESSIONS_FORGOTTEN, "open", "memory") > 0
        assert r.gateway.parts.metrics.value(CALLS_NOT_REMEMBERED) > 0
        assert len(await r.end()) == 3
