"""The gateway over HTTP: attempts, answers, records, bad days."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest

from tests.producers.llm_gateway.harness import (
    ATTEMPT,
    CALC,
    EPISODE,
    ROLLOUT,
    RUN_HASH,
    TOPICS,
    full_prompt,
    rig,
    until,
)  # fmt: skip
from tests.scripted_engine import EOT, Reply, ScriptedEngine, serve, tool_call_text
from tracegrad.producers.llm_gateway.config import PolicyRef
from tracegrad.schemas.calls import CallOutcome, CallsClosed, Purpose, VersionSpan
from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.topics import Topic

ASK = [{"role": "user", "content": "what is 12 plus 30?"}]
GENERATE = "/inference/v1/generate"


async def test_a_call_is_recorded_with_ids_logprobs_and_version() -> None:
    """The record holds what the engine sampled; the response id is the call id."""
    async with rig() as r:
        r.engine.replies.append(Reply("42"))
        await r.begin()
        answer = await r.chat(ASK, temperature=0.2, top_p=0.5, logit_bias={"5": 3})
        assert answer["choices"][0]["message"]["content"] == "42"
        assert answer["choices"][0]["finish_reason"] == "stop"
        (call,) = r.calls()
        sampled = [*r.engine.tokenizer.encode("42", merge=False), EOT]
        assert call.call_id == answer["id"] and (call.rollout_id, call.attempt_id) == (ROLLOUT, ATTEMPT)
        assert ids_from_bytes(call.sampled_ids).tolist() == sampled
        assert logprobs_from_bytes(call.logprobs).tolist() == pytest.approx([-0.1 * (1 + t % 7) for t in sampled])
        assert call.versions == (VersionSpan(start=0, version=0, epoch=1),)
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
    async with rig(policies=(PolicyRef(name="policy", temperature=0.7, max_tokens=40),)) as r:
        r.engine.replies.append(Reply("x"))
        await r.begin()
        await r.chat(ASK, temperature=0, top_p=0.1, seed=5, presence_penalty=1.0, max_tokens=9, top_k=3)
        (body,) = r.asked(GENERATE)
        assert body["sampling_params"] == {
            "n": 1, "temperature": 0.7, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "logprobs": 0,
            "detokenize": False, "max_tokens": 9,
        }  # fmt: skip


async def test_validation_is_greedy_and_begin_may_override() -> None:
    """Temperature 0 by default; an attempt's own sampling wins."""
    async with rig() as r:
        r.engine.replies.extend([Reply("x"), Reply("x")])
        await r.begin(purpose="validation")
        await r.chat(ASK, temperature=1.0)
        await r.begin(purpose="validation", attempt="0002", sampling={"temperature": 0.5})
        await r.chat(ASK, attempt="0002")
        assert [call.sampling_used.temperature for call in r.calls()] == [0.0, 0.5]
        assert r.calls()[0].purpose is Purpose.VALIDATION


async def test_a_tool_call_turn_is_spliced_with_the_sampled_ids() -> None:
    """Turn 2's prompt is turn 1's prompt, what was sampled, and the tool's answer; rendering anew would differ."""
    async with rig() as r:
        r.engine.replies.extend([Reply(tool_call_text("calc", expr="12+30")), Reply("42")])
        await r.begin()
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
        (lambda m: m[1].update(content="shorter"), "turn_changed"),
        (lambda m: m[0].update(content="something else"), "history_changed"),
        (lambda m: m.pop(1), "new_conversation"),
        (lambda m: m.insert(0, {"role": "system", "content": "s"}) or m[2].update(content="!"), "no_match"),
    ],
    ids=["turn_changed", "history_changed", "new_conversation", "no_match"],
)
async def test_a_changed_history_starts_a_new_segment_with_its_reason(change: Any, reason: str) -> None:
    """The prompt is then the template's own."""
    async with rig() as r:
        r.engine.replies.extend([Reply("answer 12"), Reply("next")])
        await r.begin()
        first = await r.chat(ASK)
        messages = [dict(ASK[0]), first["choices"][0]["message"], {"role": "user", "content": "go on"}]
        change(messages)
        await r.chat(messages)
        call = r.calls()[1]
        assert (call.splice.kind, call.splice.reason, call.parent_call_id) == ("new_segment", reason, None)
        assert full_prompt(call, r.calls()) == r.engine.render(messages, None, generation_prompt=True)


async def test_a_template_that_drops_history_starts_a_new_segment() -> None:
    """What the model would no longer see is not put back."""
    async with rig(ScriptedEngine(label="0-e1", forgetful=True)) as r:
        r.engine.replies.extend([Reply("one 12"), Reply("two 34"), Reply("three")])
        await r.begin()
        messages: list[Any] = list(ASK)
        for _ in range(3):
            answer = await r.chat(messages)
            messages += [answer["choices"][0]["message"], {"role": "user", "content": "more"}]
        # After the third request's render the first answer is gone.
        assert [call.splice.kind for call in r.calls()] == ["first", "extended", "extended"]
        rendered = r.engine.render(messages[:5], None, generation_prompt=True)
        assert full_prompt(r.calls()[2], r.calls())[: len(rendered)] != rendered


async def test_a_turn_without_end_gets_the_templates_end_as_context() -> None:
    """Cut at max_tokens: the record is truncated, the next prompt has the end of turn after the sampled ids."""
    async with rig() as r:
        r.engine.replies.extend([Reply("a long answer"), Reply("fine")])
        await r.begin()
        first = await r.chat(ASK, max_tokens=4)
        assert first["choices"][0]["finish_reason"] == "length"
        assert first["choices"][0]["message"]["content"] == "a lo"
        await r.chat([*ASK, first["choices"][0]["message"], {"role": "user", "content": "go on"}])
        one, two = r.calls()
        assert one.is_truncated and two.splice.kind == "extended"
        prompt = full_prompt(two, [one, two])
        assert two.shared_tokens == len(full_prompt(one, [one])) + 4
        assert prompt[two.shared_tokens] == EOT


async def test_stop_string_is_cut_and_marked() -> None:
    """The agent sees the text before it; the engine was asked for it; the next turn is a new segment."""
    async with rig() as r:
        r.engine.replies.extend([Reply("Thought. Observation: x"), Reply("next")])
        await r.begin()
        first = await r.chat(ASK, stop=["Observation:"])
        choice = first["choices"][0]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("Thought. ", "stop")
        await r.chat([*ASK, choice["message"], {"role": "user", "content": "go on"}])
        one, two = r.calls()
        assert one.is_truncated and one.content == "Thought. "
        assert (two.splice.kind, two.splice.reason) == ("new_segment", "answer_cut")


async def test_parallel_tool_calls_false_keeps_the_first() -> None:
    """As OpenAI's field asks."""
    async with rig() as r:
        both = tool_call_text("calc", expr="1+1") + tool_call_text("calc", expr="2+2")
        r.engine.replies.extend([Reply(both), Reply(both)])
        await r.begin()
        one = (await r.chat(ASK, tools=CALC, parallel_tool_calls=False))["choices"][0]["message"]
        two = (await r.chat(ASK, tools=CALC))["choices"][0]["message"]
        assert (len(one["tool_calls"]), len(two["tool_calls"])) == (1, 2)
        assert "parallel_tool_calls" not in r.asked("/v1/chat/completions/render")[0]


async def test_empty_output_is_an_empty_answer() -> None:
    """The engine refuses to derender nothing, so it is not asked."""
    async with rig() as r:
        r.engine.replies.append(Reply(""))
        await r.begin()
        answer = await r.chat(ASK)
        assert answer["choices"][0]["message"]["content"] == ""
        assert ids_from_bytes(r.calls()[0].sampled_ids).tolist() == [EOT]
        assert not r.asked("/v1/chat/completions/derender")


async def test_end_closes_the_attempt_and_can_be_asked_again() -> None:
    """calls_closed names every call; later calls get 410; a second /end answers alike and appends nothing."""
    async with rig() as r:
        r.engine.replies.extend([Reply("a"), Reply("b")])
        await r.begin()
        await r.begin()
        await r.chat(ASK)
        await r.chat(ASK)
        calls = await r.end()
        assert [(call["content"], call["outcome"], call["num_sampled"]) for call in calls] == [
            ("a", "delivered", 2), ("b", "delivered", 2),
        ]  # fmt: skip
        closed = r.records()[-1]
        assert isinstance(closed, CallsClosed)
        assert closed.outcomes == {call.call_id: CallOutcome.DELIVERED for call in r.calls()}
        assert await r.end() == calls
        assert len(r.records()) == 3
        status, answer = await r.chat_raw(ASK)
        assert status == 410 and answer["error"]["type"] == "invalid_request_error"


async def test_an_attempt_not_begun_here_gets_409() -> None:
    """By path, key, header, baggage or a trace id of this run; its /end too."""
    async with rig() as r:
        body = {"model": "m", "messages": ASK}
        assert (await r.chat_raw(ASK))[0] == 409
        for headers in (
            {"authorization": f"Bearer rt-{ROLLOUT}.{ATTEMPT}"},
            {"x-rollout-id": ROLLOUT, "x-attempt-id": ATTEMPT},
            {"x-rollout-id": ROLLOUT},
            {"baggage": f"rollout.id={ROLLOUT},attempt.id={ATTEMPT}"},
            {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"},
        ):
            assert (await r.post("/v1/chat/completions", body, **headers))[0] == 409, headers
        assert (await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[0] == 409
        assert not r.asked(GENERATE) and not r.records()


async def test_each_claim_alone_finds_the_attempt() -> None:
    """And the record keeps the claims as they came."""
    async with rig() as r:
        await r.begin()
        claims = [
            {"authorization": f"Bearer rt-{ROLLOUT}.{ATTEMPT}"},
            {"x-rollout-id": ROLLOUT, "x-attempt-id": ATTEMPT},
            {"x-rollout-id": ROLLOUT},
            {"baggage": f"a=b,rollout.id={ROLLOUT};p=1, attempt.id={ATTEMPT}"},
            {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"},
        ]
        for headers in claims:
            r.engine.replies.append(Reply("ok"))
            status, _ = await r.post("/v1/chat/completions", {"messages": ASK}, **headers)
            assert status == 200, headers
        assert {call.rollout_id for call in r.calls()} == {ROLLOUT}
        assert r.calls()[4].parent_span_id == "00f067aa0ba902b7"
        assert [len(r.records()), len(await r.end())] == [5, 5]


async def test_disagreeing_claims_are_quarantined() -> None:
    """400, and a dead letter that holds the claims but no content."""
    async with rig() as r:
        await r.begin()
        other = {"authorization": f"Bearer rt-{ROLLOUT}.ffff"}
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        status, answer = await r.post(path, {"messages": ASK}, **other)
        assert (status, answer["error"]["code"]) == (400, "identity_disagreement")
        (letter,) = r.log.records(TOPICS.name(Topic.DEAD_LETTERS))
        assert b"what is" not in (letter.value or b"") and b"ffff" in (letter.value or b"")
        assert ("tracegrad.reason", b"identity_disagreement") in letter.headers


async def test_a_captured_agent_is_keyed_by_its_trace() -> None:
    """Its own sampling is kept, any label is served, the same trace is one episode."""
    async with rig(ScriptedEngine(label="default")) as r:
        r.engine.replies.extend([Reply("one"), Reply("two"), Reply("three")])
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}
        body: dict[str, Any] = {"messages": ASK, "temperature": 0.3, "top_p": 0.9, "seed": 7}
        _, first = await r.post("/v1/chat/completions", body, **headers)
        messages = [*ASK, first["choices"][0]["message"], {"role": "user", "content": "go"}]
        await r.post("/v1/chat/completions", {"messages": messages, "logit_bias": {"1": 2}}, **headers)
        await r.post("/v1/chat/completions", {"messages": ASK}, authorization="Bearer sk-secret")
        one, two, three = r.calls()
        assert (one.rollout_id, one.purpose, one.versions) == (None, Purpose.UNKNOWN, ())
        assert one.trace_id == two.trace_id == "0af7651916cd43dd8448eb211c80319c"
        assert (one.sampling_used.temperature, one.sampling_used.seed) == (0.3, 7)
        assert two.splice.kind == "extended" and two.is_constrained
        assert three.trace_id not in (None, one.trace_id) and three.identity.api_key is None
        keys = {record.key for record in r.log.records(TOPICS.name(Topic.LLM_CALLS))}
        assert keys == {(one.trace_id or "").encode(), (three.trace_id or "").encode()}


async def test_content_leaves_only_after_the_record_is_acknowledged() -> None:
    """While Kafka holds the acknowledgement back, the client waits."""
    async with rig() as r:
        r.engine.replies.append(Reply("late"))
        await r.begin()
        r.log.hold()
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.log.records(TOPICS.name(Topic.LLM_CALLS)) or r.asked("/v1/chat/completions/derender"))
        done, _ = await asyncio.wait({call}, timeout=0.05)
        assert not done
        r.log.release()
        assert (await call)["choices"][0]["message"]["content"] == "late"


async def test_a_refused_record_is_a_503_and_no_call() -> None:
    """The agent's client tries again; /end does not name the lost one."""
    async with rig() as r:
        r.engine.replies.extend([Reply("lost"), Reply("kept")])
        await r.begin()
        r.log.fail_next(UnavailableError("away"))
        status, _ = await r.chat_raw(ASK)
        assert status == 503
        r.log.fail_next(OverloadedError("full", retry_after_s=3))
        await r.chat_raw(ASK)
        await r.chat(ASK)
        assert len(await r.end()) == 1


async def test_a_client_that_left_is_recorded_and_its_retry_supersedes() -> None:
    """The record is written all the same; the outcome is in calls_closed."""
    async with rig() as r:
        r.engine.delay_s = 0.1
        r.engine.replies.extend([Reply("unseen"), Reply("seen"), Reply("unseen too")])
        await r.begin()
        for messages in (ASK, None, [{"role": "user", "content": "other"}]):
            if messages is None:
                await r.chat(ASK)
                continue
            with pytest.raises(asyncio.TimeoutError):
                path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
                timeout = aiohttp.ClientTimeout(total=0.05)
                async with r.http.post(path, json={"messages": messages}, timeout=timeout):
                    pass
            await until(lambda: r.gateway.attempts.num_open() == 1)
        calls = await r.end()
        assert [call["outcome"] for call in calls] == ["superseded", "delivered", "client_disconnected"]
        assert len(r.calls()) == 3


async def test_end_waits_for_calls_in_flight() -> None:
    """The call that runs is finished, recorded and named."""
    async with rig() as r:
        r.engine.delay_s = 0.1
        r.engine.replies.append(Reply("slow"))
        await r.begin()
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        calls = await r.end()
        assert [c["content"] for c in calls] == ["slow"]
        assert (await call)["id"] == calls[0]["call_id"]


async def test_end_cancels_what_still_samples_past_its_wait() -> None:
    """A paused engine does not keep an attempt open: the call gets 410 and leaves no record."""
    async with rig(end_wait_s=0.05) as r:
        r.engine.running.clear()
        await r.begin()
        call = asyncio.create_task(r.chat_raw(ASK))
        await until(lambda: r.asked(GENERATE))
        assert await r.end() == []
        assert (await call)[0] == 410
        r.engine.running.set()
        assert not r.calls()


@pytest.mark.parametrize("label", ["default", "7-e1", "0-e9", "zero"])
async def test_an_answer_with_an_unknown_label_is_refused_and_sampled_again(label: str) -> None:
    """A restarted engine serves base weights as `default`: nothing of it is recorded."""
    async with rig() as r:
        r.engine.label = label
        r.engine.replies.extend([Reply("wrong weights"), Reply("right")])
        await r.begin()
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        await asyncio.sleep(0.01)
        r.engine.label = "0-e1"
        assert (await call)["choices"][0]["message"]["content"] == "right"
        assert len(r.calls()) == 1 and r.gateway.counters["generation_refused"] == 1


async def test_a_version_published_a_moment_ago_is_awaited() -> None:
    """The engine may serve it before the gateway has read of it."""
    async with rig(ScriptedEngine(label="1-e1"), lineage_lag_s=5.0) as r:
        r.engine.replies.append(Reply("new"))
        await r.begin()
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        r.publish(1)
        await call
        assert r.calls()[0].versions == (VersionSpan(start=0, version=1, epoch=1),)
        assert r.gateway.counters["generation_refused"] == 0


async def test_a_version_split_is_kept() -> None:
    """Weights that change while a call samples give two spans."""
    async with rig() as r:
        r.publish(1)
        r.engine.delay_s = 0.05
        r.engine.replies.append(Reply("abc"))
        await r.begin()
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        r.engine.label = "1-e1"
        await call
        assert r.calls()[0].versions == (
            VersionSpan(start=0, version=0, epoch=1), VersionSpan(start=2, version=1, epoch=1),
        )  # fmt: skip


async def test_an_engine_that_fails_is_tried_again() -> None:
    """503s are waited out."""
    async with rig() as r:
        r.engine.fail_next = 3
        r.engine.replies.append(Reply("ok"))
        await r.begin()
        await r.chat(ASK)
        assert r.gateway.counters["engine_unavailable"] == 3


async def test_an_engine_that_stays_away_is_a_503_with_retry_after() -> None:
    """Within the bounded wait; /health does not depend on the engine."""
    async with rig(engine_url="http://127.0.0.1:9", engine_wait_s=0.2) as r:
        await r.begin()
        path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        async with r.http.post(path, json={"messages": ASK}) as response:
            assert (response.status, response.headers["retry-after"]) == (503, "1")
        async with r.http.get(r.url + "/health") as response:
            assert response.status == 200
        assert await r.end() == []


async def test_a_second_engine_serves_when_the_first_is_away() -> None:
    """Engines are tried in turn."""
    engine = ScriptedEngine(label="0-e1")
    engine.replies.append(Reply("ok"))
    async with serve(engine.app) as url, rig(engine, engine_url="http://127.0.0.1:9") as r:
        from tracegrad.producers.llm_gateway.config import EngineRef

        r.gateway._calls._client._engines = (EngineRef(id="a", url="http://127.0.0.1:9"), EngineRef(id="b", url=url))
        await r.begin()
        await r.chat(ASK)
        assert r.calls()[0].engine_id == "b"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": [1]}, "messages"),
        ({"messages": ASK, "n": 2}, None),
        ({"messages": ASK, "max_tokens": -1}, None),
        ({"messages": ASK, "max_tokens": "many"}, None),
        ({"messages": ASK, "stop": [1]}, None),
        ({"messages": [{"role": "user", "content": "x" * 9000}]}, None),
    ],
)
async def test_a_bad_request_is_an_openai_shaped_400(body: Any, param: str | None) -> None:
    """Also what the engine refuses."""
    async with rig() as r:
        await r.begin()
        status, answer = await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions", body)
        assert status == 400 and set(answer["error"]) == {"message", "type", "param", "code"}
        assert answer["error"]["type"] == "invalid_request_error"
        assert param is None or answer["error"]["param"] == param


async def test_what_a_request_may_cost_is_bounded() -> None:
    """Body size and calls at once."""
    async with rig(max_body_bytes=1000, max_inflight=1) as r:
        await r.begin()
        assert (await r.chat_raw([{"role": "user", "content": "x" * 2000}]))[0] == 413
        r.engine.running.clear()
        r.engine.replies.append(Reply("ok"))
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        status, answer = await r.chat_raw(ASK)
        assert (status, answer["error"]["code"]) == (503, "overloaded")
        r.engine.running.set()
        await call


async def test_strict_is_dropped_and_a_grammar_is_marked() -> None:
    """`strict` never reaches the engine; response_format does, and the call leaves the loss."""
    async with rig() as r:
        r.engine.replies.extend([Reply("{}"), Reply("{}")])
        await r.begin()
        strict = [{"type": "function", "function": {"name": "calc", "strict": True}}]
        await r.chat(ASK, tools=strict)
        await r.chat(ASK, response_format={"type": "json_object"})
        assert "strict" not in r.asked("/v1/chat/completions/render")[0]["tools"][0]["function"]
        assert [call.is_constrained for call in r.calls()] == [False, True]
        assert r.asked(GENERATE)[1]["sampling_params"]["structured_outputs"] == {"json_object": True}


async def test_streaming_sends_the_finished_message_in_chunks() -> None:
    """Comments first, then role, content, tool calls, finish, usage, done."""
    async with rig() as r:
        r.engine.delay_s = 0.12
        r.engine.replies.append(Reply("so " + tool_call_text("calc", expr="1+1")))
        await r.begin()
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


async def test_a_streamed_failure_keeps_its_status_when_nothing_was_sent() -> None:
    """And is an event afterwards."""
    async with rig(engine_wait_s=0.2, keep_alive_s=0.05) as r:
        await r.begin()
        status, _ = await r.post(
            f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions", {"messages": ASK, "n": 2, "stream": True}
        )
        assert status == 400
        r.engine.fail_next = 100
        path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        async with r.http.post(path, json={"messages": ASK, "stream": True}) as response:
            events = (await response.text()).strip().split("\n\n")
        assert response.status == 200 and json.loads(events[-1][6:])["error"]["type"] == "server_error"


async def test_a_server_span_lies_under_the_callers_span() -> None:
    """With the response id, in the caller's trace."""
    async with rig() as r:
        r.engine.replies.append(Reply("ok"))
        await r.begin()
        headers = {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"}
        _, answer = await r.post("/v1/chat/completions", {"messages": ASK}, **headers)
        await asyncio.to_thread(r.gateway._tracer._provider.force_flush)  # type: ignore[union-attr]
        (span,) = r.spans.get_finished_spans()
        assert f"{span.context.trace_id:032x}" == EPISODE and span.parent is not None
        assert f"{span.parent.span_id:016x}" == "00f067aa0ba902b7"
        assert span.attributes is not None and span.attributes["gen_ai.response.id"] == answer["id"]
        assert span.resource.attributes["service.name"] == "tracegrad-llm-gateway"


async def test_begin_refuses_what_it_does_not_know() -> None:
    """Unknown policy, purpose, sampling field, id, or other settings for a running attempt."""
    async with rig() as r:
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/begin"
        for body in (
            {"policy": "other", "purpose": "train"},
            {"policy": "policy", "purpose": "fun"},
            {"policy": "policy"},
            {"policy": "policy", "purpose": "train", "sampling": {"logit_bias": {}}},
        ):
            assert (await r.post(path, body))[0] == 400, body
        assert (await r.post(f"/rollout/xyz/attempt/{ATTEMPT}/begin", {"policy": "policy", "purpose": "train"}))[
            0
        ] == 400
        await r.begin()
        assert (await r.post(path, {"policy": "policy", "purpose": "validation"}))[0] == 409


async def test_a_token_guards_all_but_health() -> None:
    """When one is set, and it must be set to bind elsewhere."""
    async with rig(token="s3cret") as r:
        body = {"policy": "policy", "purpose": "train"}
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/begin"
        assert (await r.post(path, body))[0] == 401
        assert (await r.post(path, body, authorization="Bearer s3cret"))[0] == 200
        assert (await r.post(path, body, **{"x-tracegrad-token": "s3cret"}))[0] == 200
        async with r.http.get(r.url + "/health") as response:
            assert response.status == 200


async def test_memory_is_bounded_and_the_forgotten_get_409() -> None:
    """Beyond `max_attempts` the least recently used one goes, counted."""
    async with rig(max_attempts=3) as r:
        for i in range(5):
            await r.begin(attempt=f"{i:04x}")
        assert (await r.chat_raw(ASK, attempt="0000"))[0] == 409
        assert r.gateway.counters["forgotten_open_full"] == 2
        assert r.gateway.config.run_hash == RUN_HASH
