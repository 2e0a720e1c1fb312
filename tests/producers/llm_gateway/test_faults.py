"""Bad days: engines away or relabelled, Kafka slow or gone, clients that leave, attempts that end in mid-call."""

from __future__ import annotations

import asyncio
import itertools

import aiohttp
import pytest

from tests.fake_engine.scripted import EngineFault, Reply, ScriptedEngine
from tests.producers.keys import by_host
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, GENERATE, ROLLOUT, TOPICS, Rig, begun, rig, until
from tests.serving import serve
from tests.versions import OTHER_RUN, label, sampled_by
from tracegrad.producers.llm_gateway.config import EngineRef, Timings
from tracegrad.producers.llm_gateway.engines import generate
from tracegrad.producers.llm_gateway.engines.client import EngineClient, read_whole
from tracegrad.producers.llm_gateway.engines.engine import waits_until
from tracegrad.schemas.errors import DivergedError, EngineRefusal, OverloadedError, RecordError, UnavailableError
from tracegrad.schemas.metrics import (
    CALLS_FAILED,
    CALLS_TOO_LARGE,
    CALLS_UNACKNOWLEDGED,
    ENGINE_AWAY,
    GENERATIONS_REFUSED,
    LABELS_REFUSED,
    REQUESTS_REFUSED,
    Metrics,
)
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow


async def test_content_leaves_only_after_the_record_is_acknowledged(r: Rig) -> None:
    """While Kafka holds the acknowledgement back, the client waits."""
    r.engine.replies.append(Reply("late"))
    r.log.hold()
    call = asyncio.create_task(r.chat(ASK))
    await until(lambda: r.log.records(TOPICS.name(Topic.LLM_CALLS)) or r.asked("/v1/chat/completions/derender"))
    done, _ = await asyncio.wait({call}, timeout=0.05)
    assert not done
    r.log.release()
    assert (await call)["choices"][0]["message"]["content"] == "late"


async def test_a_refused_record_is_a_503_and_no_call(r: Rig) -> None:
    """The agent's client tries again; /end does not name the lost one."""
    r.engine.replies.extend([Reply("lost"), Reply("kept")])
    r.log.fail_next(UnavailableError("away"))
    status, _ = await r.chat_raw(ASK)
    assert status == 503
    r.log.fail_next(OverloadedError("full"))
    await r.chat_raw(ASK)
    await r.chat(ASK)
    assert len(await r.end()) == 1


async def test_a_client_that_leaves_within_its_request_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """A killed agent's half body is one refused request, not a traceback."""
    async with begun() as r:
        host, _, port = r.url.removeprefix("http://").partition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        path = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        head = f"POST {path} HTTP/1.1\r\nhost: {host}\r\nx-api-key: {by_host()['x-api-key']}\r\n"
        writer.write(f"{head}content-length: 100\r\n\r\n{{".encode())
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        await until(lambda: r.gateway.parts.metrics.value(REQUESTS_REFUSED, "400"))
        await r.chat(ASK)
        assert len(await r.end()) == 1
    assert "ClientDisconnect" not in caplog.text


async def test_a_client_that_left_is_recorded_and_its_retry_supersedes(r: Rig) -> None:
    """The record is written all the same; the outcome is in calls_closed."""
    r.engine.delay_s = 0.1
    r.engine.replies.extend([Reply("unseen"), Reply("seen"), Reply("unseen too")])
    for messages in (ASK, None, [{"role": "user", "content": "other"}]):
        if messages is None:
            await r.chat(ASK)
            continue
        with pytest.raises(asyncio.TimeoutError):
            path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
            timeout = aiohttp.ClientTimeout(total=0.05)
            async with r.http.post(path, json={"messages": messages}, timeout=timeout):
                pass
    calls = await r.end()
    assert [call["outcome"] for call in calls] == ["client_disconnected", "delivered", "client_disconnected"]
    assert len(r.calls()) == 3


async def test_end_waits_for_calls_in_flight(r: Rig) -> None:
    """The call that runs is finished, recorded and named."""
    r.engine.delay_s = 0.1
    r.engine.replies.append(Reply("slow"))
    call = asyncio.create_task(r.chat(ASK))
    await until(lambda: r.asked(GENERATE))
    calls = await r.end()
    assert [c["content"] for c in calls] == ["slow"]
    assert (await call)["id"] == calls[0]["call_id"]


async def test_end_tells_whether_the_last_call_failed_by_our_fault() -> None:
    """A 5xx that the agent ended by is no failure of the agent's; a later answer, or its own bad request, clears it;
    a body that broke off does not."""
    async with rig(engine_wait_s=0.1) as r:
        for attempt, asks, fault in (
            ("0001", ("away",), 503),
            ("0002", ("away", "answered"), None),
            ("0003", ("away", "bad"), None),
            ("0004", (), None),
            ("0005", ("away", "torn"), 503),
        ):
            await r.begin(attempt=attempt)
            for how in asks:
                r.engine.label = "default" if how == "away" else label(0)
                r.engine.replies.append(Reply("42"))
                fields = {"n": 0} if how == "bad" else {}
                if how == "torn":
                    path = f"{r.url}/rollout/{ROLLOUT}/attempt/{attempt}/v1/chat/completions"
                    async with r.http.post(path, data=b'{"messages": [') as response:
                        status = response.status
                else:
                    status, _ = await r.chat_raw(ASK, attempt=attempt, **fields)
                assert status == {"away": 503, "answered": 200, "bad": 400, "torn": 400}[how]
            assert (await r.post(f"/rollout/{ROLLOUT}/attempt/{attempt}/end"))[1]["fault"] == fault


async def test_an_answer_that_a_request_provokes_is_no_fault_of_ours() -> None:
    """The engine fails on this input again and again: 502, and whoever ends by it is not tried again for it."""

    def fail(*_: object) -> Reply:
        raise EngineFault(500)

    async with begun(ScriptedEngine(label=label(0), policy=fail)) as r:
        assert (await r.chat_raw(ASK))[0] == 502
        assert (await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[1]["fault"] is None


async def test_calls_of_no_attempt_refuse_none_of_an_attempt() -> None:
    """Or an agent that dislikes its answer would flood the gateway without a name, and be tried again for the 503."""
    async with begun(max_inflight=4, max_inflight_bytes=4_000) as r:
        r.engine.running.clear()
        r.engine.replies.extend([Reply("42")] * 9)
        body = {"messages": [{"role": "user", "content": "x" * 900}]}
        flood = [asyncio.create_task(r.http.post(f"{r.url}/v1/chat/completions", json=body)) for _ in range(8)]
        await until(lambda: sum(call.done() for call in flood) + len(r.asked(GENERATE)) == 8)
        num_let_in = len(r.asked(GENERATE))
        call = asyncio.create_task(r.chat_raw(ASK))
        await until(lambda: call.done() or len(r.asked(GENERATE)) > num_let_in)
        r.engine.running.set()
        assert (await call)[0] == 200
        assert 1 <= num_let_in <= 2, "how many bodies fit at once depends on how they come"
        assert sorted([(await call).status for call in flood]) == [200] * num_let_in + [503] * (8 - num_let_in)
        assert (await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[1]["fault"] is None


async def test_each_choice_takes_a_slot() -> None:
    """Or sixteen times the bound would be sampled at once."""
    async with begun(max_inflight=4) as r:
        r.engine.running.clear()
        r.engine.replies.extend([Reply("42")] * 7)
        first = asyncio.create_task(r.chat_raw(ASK, n=3))
        await until(lambda: len(r.asked(GENERATE)) == 3)
        assert (await r.chat_raw(ASK, n=2))[0] == 503
        r.engine.running.set()
        assert (await first)[0] == (await r.chat_raw(ASK, n=4))[0] == 200


@pytest.mark.parametrize("is_waiting", [True, False])
async def test_end_tells_whether_the_agent_waited_for_an_answer(r: Rig, is_waiting: bool) -> None:
    """Also when its call has ended meanwhile, with nobody to answer."""
    r.engine.delay_s = 0.2 if is_waiting else 0.0
    r.engine.replies.append(Reply("42"))
    call = asyncio.create_task(r.chat_raw(ASK))
    await (until(lambda: r.asked(GENERATE)) if is_waiting else call)
    told = (await r.post(f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/end"))[1]
    assert (told["was_waiting"], len(told["calls"])) == (is_waiting, 1)
    await call


async def test_end_cancels_what_still_samples_past_its_wait() -> None:
    """A paused engine does not keep an attempt open: the call gets 410 and leaves no record."""
    async with begun(end_wait_s=0.05) as r:
        r.engine.running.clear()
        call = asyncio.create_task(r.chat_raw(ASK))
        await until(lambda: r.asked(GENERATE))
        assert await r.end() == []
        assert (await call)[0] == 410
        r.engine.running.set()
        assert not r.calls()


@pytest.mark.parametrize("unknown", ["default", label(7), label(0, 9), label(0, run=OTHER_RUN), "zero"])
async def test_an_answer_with_an_unknown_label_is_refused_and_sampled_again(r: Rig, unknown: str) -> None:
    """A restarted engine serves base weights as `default`, one of another run others: nothing of it is recorded."""
    r.engine.label = unknown
    r.engine.replies.extend([Reply("wrong weights"), Reply("right")])
    call = asyncio.create_task(r.chat(ASK))
    await until(lambda: r.asked(GENERATE))
    await asyncio.sleep(0.01)
    r.engine.label = label(0)
    assert (await call)["choices"][0]["message"]["content"] == "right"
    metrics = r.gateway.parts.metrics
    assert len(r.calls()) == 1 and metrics.value(GENERATIONS_REFUSED) == metrics.value(LABELS_REFUSED) == 1


async def test_a_version_that_gives_nan_ends_the_run_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every rollout is aborted, every group excluded, and the run ends as a success that trained nothing."""
    monkeypatch.setattr(generate, "_MAX_NOT_FINITE", 3)
    async with begun(ScriptedEngine(label=label(0), has_nan_weights=True), engine_wait_s=3.0) as r:
        status, _ = await r.chat_raw(ASK)
        assert status == 503 and not r.calls()
        fatal = r.gateway.versions.fatal
        assert isinstance(fatal, DivergedError) and label(0) in str(fatal)


async def test_answers_with_numbers_between_raise_no_alarm(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four of six have none, never three in a row; of other weights than the policy's any number."""
    monkeypatch.setattr(generate, "_MAX_NOT_FINITE", 3)
    engine = ScriptedEngine(label=label(0))
    kinds = itertools.cycle([True, True, False])

    def sample(prompt: str, draw: int) -> Reply:
        engine.has_nan_weights = next(kinds)
        return Reply("42")

    engine.policy = sample
    async with begun(engine, engine_wait_s=3.0) as r:
        for _ in range(2):
            await r.chat(ASK)
        assert r.gateway.versions.fatal is None and r.gateway.parts.metrics.value(GENERATIONS_REFUSED) == 4
        engine.label, engine.policy, engine.has_nan_weights = "default", lambda *_: Reply("42"), True
        await asyncio.gather(*(r.chat_raw(ASK) for _ in range(4)))
        assert r.gateway.versions.fatal is None


async def test_a_version_published_a_moment_ago_is_awaited() -> None:
    """The engine may serve it before the gateway has read of it."""
    async with begun(ScriptedEngine(label=label(1)), lineage_lag_s=5.0) as r:
        r.engine.replies.append(Reply("new"))
        call = asyncio.create_task(r.chat(ASK))
        await until(lambda: r.asked(GENERATE))
        r.publish(1)
        await call
        assert r.calls()[0].versions == (sampled_by(1),)
        assert r.gateway.parts.metrics.value(GENERATIONS_REFUSED) == 0


async def test_a_version_split_is_kept(r: Rig) -> None:
    """Weights that change while a call samples give two spans."""
    r.publish(1)
    r.engine.delay_s = 0.05
    r.engine.replies.append(Reply("abc"))
    call = asyncio.create_task(r.chat(ASK))
    await until(lambda: r.asked(GENERATE))
    r.engine.label = label(1)
    await call
    assert r.calls()[0].versions == (
        sampled_by(0), sampled_by(1, start=2),
    )  # fmt: skip


async def test_an_engine_that_fails_is_tried_again(r: Rig) -> None:
    """503s are waited out."""
    r.engine.fail_next = 3
    r.engine.replies.append(Reply("ok"))
    await r.chat(ASK)
    assert r.gateway.parts.metrics.value(ENGINE_AWAY) == 3


async def test_a_500_is_asked_again_at_once_even_when_waiting_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """Sampling may outlast the wait for engines; its answer is not lost to one fault of derender. Nothing is logged:
    hundreds of calls may wait for one engine.
    """
    client = EngineClient((EngineRef(id="e0", url=""),), metrics=Metrics(), health_s=1.0)
    answers: list[Exception | bytes] = [EngineRefusal("template", status=502), b"parsed", UnavailableError("away")]

    async def post(*_: object) -> bytes:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    client._ask_once = post  # type: ignore[method-assign, assignment]
    waits = waits_until("", -1.0)
    assert (await client.ask("/derender", {}, waits, read_whole, timeout_s=1.0))[0] == b"parsed"
    with pytest.raises(UnavailableError, match="away"):
        await client.ask("/derender", {}, waits, read_whole, timeout_s=1.0)
    assert not caplog.records


async def test_an_engine_that_stays_away_is_a_503_with_retry_after() -> None:
    """Within the bounded wait; /health does not depend on the engine."""
    async with begun(engine_url="http://127.0.0.1:9", engine_wait_s=0.2) as r:
        path = f"{r.url}/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1/chat/completions"
        async with r.http.post(path, json={"messages": ASK}) as response:
            assert (response.status, response.headers["retry-after"] in "1234") == (503, True)
        async with r.http.get(r.url + "/health") as response:
            assert response.status == 200
        assert await r.end() == []


async def test_a_second_engine_serves_when_the_first_is_away() -> None:
    """Engines are tried in turn."""
    engine = ScriptedEngine(label=label(0))
    engine.replies.append(Reply("ok"))
    async with serve(engine.app) as url, rig(engine, engine_urls=("http://127.0.0.1:9", url)) as r:
        await r.begin()
        await r.chat(ASK)
        assert r.calls()[0].engine_id == "e1"


async def test_what_the_parser_cannot_read_is_plain_text(r: Rig) -> None:
    """A parser that fails on the model's output does not fail the call."""
    r.engine.replies.append(Reply("odd"))
    r.engine.broken_parser = True
    answer = await r.chat(ASK, tools=CALC)
    assert answer["choices"][0]["message"]["content"] == "odd"
    assert len(r.asked("/v1/chat/completions/derender")) == 3


async def test_a_record_that_kafka_does_not_take_is_counted_by_why() -> None:
    """Not acknowledged in time, and larger than any record may be; the agent gets an error either way."""
    async with begun(timings=Timings(append_timeout_s=0.01)) as r:
        r.log.hold()
        assert (await r.chat_raw(ASK))[0] == 503
        assert r.gateway.parts.metrics.value(CALLS_UNACKNOWLEDGED) == 1
        r.log.release()
        r.log.fail_next(RecordError("expected fewer bytes, got more", reason="too_large"))
        assert (await r.chat_raw(ASK))[0] >= 400
        assert r.gateway.parts.metrics.value(CALLS_TOO_LARGE) == 1
        assert r.gateway.parts.metrics.value(CALLS_FAILED) == 2
