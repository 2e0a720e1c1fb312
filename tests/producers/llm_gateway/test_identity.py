"""Who calls: attempts, claims, captured agents, tokens."""

from __future__ import annotations

from typing import Any

from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.producers.keys import KEY, RUN_HASH, bearer
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, EPISODE, GENERATE, ROLLOUT, TOPICS, Rig, rig
from tests.streams.make import Streams, agent_span, config, event, otlp, reward, span
from tracegrad.schemas.credentials import attempt_holder, credential
from tracegrad.schemas.ids import key_in
from tracegrad.schemas.metrics import ATTEMPTS_BEGUN_ELSEWHERE, DEAD_LETTERS, REQUESTS_QUARANTINED, SESSIONS_FORGOTTEN
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic


async def test_an_attempt_not_begun_here_gets_409() -> None:
    """By path, key, header, baggage or a trace id of this run; its /end too."""
    async with rig() as r:
        body = {"model": "policy", "messages": ASK}
        assert (await r.chat_raw(ASK))[0] == 409
        for headers in (
            bearer(attempt_holder(ROLLOUT, ATTEMPT)),
            {"x-rollout-id": ROLLOUT, "x-attempt-id": ATTEMPT},
            {"x-rollout-id": ROLLOUT},
            {"baggage": f"rollout.id={ROLLOUT},attempt.id={ATTEMPT}"},
            {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"},
        ):
            assert (await r.post("/v1/chat/completions", body, **headers))[0] == 409, headers
        assert (await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[0] == 409
        assert not r.asked(GENERATE) and not r.records()
        assert r.gateway.parts.metrics.value(ATTEMPTS_BEGUN_ELSEWHERE) == 6


async def test_each_claim_alone_finds_the_attempt(r: Rig) -> None:
    """And the record keeps the claims as they came."""
    claims = [
        bearer(attempt_holder(ROLLOUT, ATTEMPT)),
        {"x-api-key": credential(KEY, attempt_holder(ROLLOUT, ATTEMPT))},
        {"x-rollout-id": ROLLOUT, "x-attempt-id": ATTEMPT},
        {"x-rollout-id": ROLLOUT},
        {"baggage": f"a=b,rollout.id={ROLLOUT};p=1, attempt.id={ATTEMPT}"},
        {"traceparent": f"00-{EPISODE}-00f067aa0ba902b7-01"},
    ]
    for headers in claims:
        r.engine.replies.append(Reply("ok"))
        status, _ = await r.post("/v1/chat/completions", {"messages": ASK}, **headers)
        assert status == 200, headers
    assert {(call.rollout_id, call.attempt_id) for call in r.calls()} == {(ROLLOUT, ATTEMPT)}
    assert {call.claims.api_key for call in r.calls()} == {None, f"rt-{ROLLOUT}.{ATTEMPT}"}
    assert r.calls()[5].parent_span_id == "00f067aa0ba902b7"
    assert [len(r.records()), len(await r.end())] == [6, 6]


async def test_minted_ids_carry_the_key_of_their_record(r: Rig) -> None:
    """Of an attempt its rollout, of a captured agent its trace: whatever repeats them is routed alike."""
    r.engine.replies.extend(Reply(tool_call_text("calc", a=1)) for _ in range(2))
    headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"}
    await r.chat(ASK, tools=CALC)
    await r.post("/v1/chat/completions", {"messages": ASK, "tools": CALC}, **headers)
    keys = [ROLLOUT, "0af7651916cd43dd8448eb211c80319c"]
    records = r.log.records(TOPICS.name(Topic.LLM_CALLS))
    assert {(record.key or b"").decode() for record in records} == set(keys)
    assert [key_in(call.call_id) for call in r.calls()] == keys
    assert [key_in(tool.id) for call in r.calls() for tool in call.tool_calls] == keys


async def test_disagreeing_claims_are_quarantined(r: Rig) -> None:
    """400, and a dead letter that holds the claims but no content."""
    other = {"authorization": f"Bearer rt-{ROLLOUT}.ffff"}  # beside the host's own key, which proves both
    path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
    status, answer = await r.post(path, {"messages": ASK}, **other)
    assert (status, answer["error"]["code"]) == (400, "identity_disagreement")
    (letter,) = r.log.records(TOPICS.name(Topic.DEAD_LETTERS))
    assert b"what is" not in (letter.value or b"") and b"ffff" in (letter.value or b"")
    assert ("tracegrad.reason", b"identity_disagreement") in letter.headers
    for counter in (DEAD_LETTERS, REQUESTS_QUARANTINED):
        assert r.gateway.parts.metrics.value(counter, "identity_disagreement") == 1


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
        assert three.trace_id not in (None, one.trace_id) and three.claims.api_key is None
        keys = {record.key for record in r.log.records(TOPICS.name(Topic.LLM_CALLS))}
        assert keys == {(one.trace_id or "").encode(), (three.trace_id or "").encode()}


async def test_a_call_bears_its_callers_span_by_which_it_finds_its_agent(r: Rig) -> None:
    """The traceparent alone joins it to the spans above: no span of ours is in between, none is exported."""
    r.engine.replies.append(Reply("ok"))
    headers = {"traceparent": f"00-{EPISODE}-{7:016x}-01"}
    await r.post("/v1/chat/completions", {"messages": ASK}, **headers)
    await r.end()
    (call,) = r.calls()
    assert (call.trace_id, call.parent_span_id) == (EPISODE, f"{7:016x}")
    streams = Streams(config(run_hash=RUN_HASH))
    spans = otlp(agent_span(EPISODE, 1, "planner"), span(EPISODE, 7, "POST", parent=1), is_counted=True)
    streams.feed(spans, *r.records())
    streams.feed(reward(ROLLOUT, attempt_id=ATTEMPT))
    streams.feed(event(ROLLOUT, attempt_id=ATTEMPT, spans_exported=2, spans_marked=True))
    (episode,) = [EPISODES.decode(value) for value in streams.values(Topic.EPISODES)]
    assert [(joined.agent, joined.joined_by) for joined in episode.calls] == [("planner", "traceparent")]
    assert not r.log.records(TOPICS.name(Topic.OTLP_SPANS))


async def test_begin_refuses_what_it_does_not_know() -> None:
    """Unknown policy, purpose, id, or other settings for a running attempt."""
    async with rig() as r:
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/begin"
        for body in (
            {"policy": "other", "purpose": "train"},
            {"policy": "policy", "purpose": "fun"},
            {"policy": "policy"},
        ):
            assert (await r.post(path, body))[0] == 400, body
        assert (await r.post(f"/rollout/xyz/attempt/{ATTEMPT}/begin", {"policy": "policy", "purpose": "train"}))[
            0
        ] == 400
        await r.begin()
        assert (await r.post(path, {"policy": "policy", "purpose": "validation"}))[0] == 409


async def test_a_token_guards_all_but_health() -> None:
    """When one is set, and it must be set to bind elsewhere; the runner and its agents have credentials instead."""
    async with rig(token="s3cret") as r:
        r.engine.replies.extend(Reply("ok") for _ in range(4))
        path, body, none = "/v1/chat/completions", {"messages": ASK}, {"x-api-key": "none"}
        assert (await r.post(path, body, **none))[0] == 401
        assert (await r.post(path, body, **none, authorization="Bearer s3cret"))[0] == 200
        assert (await r.post(path, body, **none, **{"x-tracegrad-token": "s3cret"}))[0] == 200
        assert (await r.post(path, body, **{"x-api-key": "s3cret"}))[0] == 200
        assert (await r.post(path, body, **none, authorization="s3cret"))[0] == 401
        assert (await r.post(path, body))[0] == 200, "a credential lets in as well"
        async with r.http.get(r.url + "/health") as response:
            assert response.status == 200


async def test_memory_is_bounded_and_the_forgotten_get_409() -> None:
    """Beyond `max_attempts` the least recently used one goes, counted."""
    async with rig(max_attempts=3) as r:
        for i in range(5):
            await r.begin(attempt=f"{i:04x}")
        assert (await r.chat_raw(ASK, attempt="0000"))[0] == 409
        assert r.gateway.parts.metrics.value(SESSIONS_FORGOTTEN, "open", "full") == 2
        assert r.gateway.parts.handles.run_hash == RUN_HASH
