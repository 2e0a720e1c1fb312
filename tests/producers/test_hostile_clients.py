"""What one client can cost the others at either gateway: bodies that never end, bodies of any content."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.producers import hostile
from tests.producers.hostile import CHAT, TARGETS, half_sent, llm, percentile_99_s
from tests.producers.keys import by_runner
from tests.producers.llm_gateway.harness import ATTEMPT
from tests.producers.mutants import mutants
from tests.producers.otlp_gateway.bodies import TRACE, request_of
from tracegrad.producers import http_request

pytestmark = pytest.mark.slow
BOTH = pytest.mark.parametrize("name", ["otlp", "llm"])


@pytest.mark.parametrize(
    ("name", "bounds"), [("otlp", {"max_inflight_bytes": 4_000_000}), ("llm", {"max_inflight": 512})]
)
async def test_slow_clients_hold_no_budget(name: str, bounds: dict[str, int]) -> None:
    """540 half-sent bodies, more than may be in flight: nobody else is refused (benchmarks/hostile_clients.py: or waits
    long)."""
    async with TARGETS[name](**bounds) as target, half_sent(target, 540, 10_000):
        await percentile_99_s(target, 200)


@BOTH
async def test_a_body_that_does_not_come_is_given_up(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client hears 408, and its connection ends, though it goes on dripping."""
    monkeypatch.setattr(http_request, "_BODY_TIMEOUT_S", 0.2)
    async with TARGETS[name]() as target, half_sent(target, 1, 10) as [reader]:
        answer = asyncio.create_task(reader.read())
        await asyncio.wait({answer}, timeout=2)
        assert answer.done(), "the gateway still waits"
        assert answer.result().startswith(b"HTTP/1.1 408 ")


@BOTH
async def test_those_refused_come_back_at_different_times(name: str) -> None:
    """Or the next burst would be as large as the one that was refused."""
    async with TARGETS[name](max_inflight_bytes=2_000) as target:
        waits = []
        for _ in range(40):
            headers = {"content-type": "application/x-protobuf"}
            async with target.http.post(target.url + target.path, data=bytes(4_000), headers=headers) as response:
                assert response.status == 503
                waits.append(int(response.headers["retry-after"]))
    assert set(waits) <= {1, 2, 3, 4}
    assert len(set(waits)) > 1


@pytest.mark.parametrize("inner", ["[]", "{}", '"ab"'], ids=["lists", "objects", "texts"])
async def test_what_json_becomes_is_accounted_for_before_it_does(inner: str) -> None:
    """Each list or object of two characters takes sixty bytes and more; `[llm]` has room for hundreds of bodies."""
    async with llm(max_inflight_bytes=30_000_000) as target:
        body = json.dumps(CHAT | {"extra": 0}).replace("0}", f"[{','.join([inner] * 1_000_000)}]}}").encode()
        tracemalloc.start()
        async with target.http.post(target.url + target.path, data=io.BytesIO(body)) as response:
            status = response.status
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (status in (413, 503), peak < 5 * len(body)) == (True, True), (status, peak)
        assert await target.send() == 200


async def test_a_body_of_brackets_is_refused_while_it_comes() -> None:
    """Whatever room there is: others would wait until it is decoded."""
    async with llm() as target:
        body = b'{"model": [' + b"[]," * 300_000 + b"[]]}"
        async with target.http.post(target.url + target.path, data=body) as response:
            assert response.status == 413


async def test_a_long_prompt_of_json_and_code_is_none_of_it() -> None:
    """Brackets and quotes within a text are counted too, and are taken."""
    text = json.dumps([{"name": "a", "values": [1, 2, {}], "code": "f(x)[0] = {'a': []}\n"}] * 10_000)
    async with llm() as target:
        body = json.dumps({**CHAT, "messages": [{"role": "user", "content": text}]}).encode()
        async with target.http.post(target.url + target.path, data=io.BytesIO(body)) as response:
            assert len(body) > 500_000
            assert "context length" in await response.text(), "it did not reach the engine"


_CALL = {"id": "call_0", "type": "function", "function": {"name": "calc", "arguments": "{}"}}
_CHAT = {
    "model": "policy",
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "call_0", "content": "4"},
    ],
    "tools": [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}, "strict": True}}],
    "tool_choice": "auto",
    "stream": False,
    "stream_options": {"include_usage": True},
    "stop": ["x"],
    "logprobs": True,
    "response_format": {"type": "text"},
}
_BEGIN = {"policy": "policy", "purpose": "train", "sampling": {}}
_SPAN = {
    "traceId": TRACE.hex(),
    "spanId": "00000000000000ff",
    "name": "tool",
    "kind": 3,
    "startTimeUnixNano": "1700000000000000000",
    "attributes": [{"key": "a", "value": {"arrayValue": {"values": [{"intValue": "1"}]}}}],
    "links": [{"traceId": TRACE.hex(), "spanId": "0000000000000001"}],
    "status": {"code": 2, "message": "no"},
}
_TRACES = {"resourceSpans": [{"resource": {"attributes": []}, "scopeSpans": [{"scope": {}, "spans": [_SPAN]}]}]}


@st.composite
def _exports(draw: st.DrawFn) -> tuple[bytes, dict[str, str]]:
    """What an exporter could send, in either form, plain or as gzip, and its headers."""
    form = draw(st.sampled_from(["json", "x-protobuf"]))
    if form == "json":
        body = draw(mutants(_TRACES))
    else:
        changed = bytearray(request_of([(TRACE, 1), (TRACE, 2)], payload="x").SerializeToString())
        for at in draw(st.lists(st.integers(0, len(changed) - 1), max_size=6)):
            changed[at] = draw(st.integers(0, 255))
        body = bytes(changed[: draw(st.integers(0, len(changed)))] if draw(st.integers(0, 9)) == 0 else changed)
    headers = {"content-type": f"application/{form}"}
    if draw(st.integers(0, 4)) == 0:
        body, headers = gzip.compress(body, 1), headers | {"content-encoding": "gzip"}
    return body, headers


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all examples."""
    with asyncio.Runner() as running:
        yield running


@pytest.fixture(scope="module", params=["otlp", "llm"])
def attacked(request: pytest.FixtureRequest, runner: asyncio.Runner) -> Iterator[tuple[str, hostile.Target]]:
    """A gateway that serves all examples."""
    stack = contextlib.AsyncExitStack()
    yield request.param, runner.run(stack.enter_async_context(TARGETS[request.param]()))
    runner.run(stack.aclose())


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_no_body_is_the_gateways_fault(
    attacked: tuple[str, hostile.Target], runner: asyncio.Runner, data: st.DataObject
) -> None:
    """Whatever a body holds, the answer is below 500; and it is the body that is judged."""
    name, target = attacked
    path = target.path
    if name == "otlp":
        body, headers = data.draw(_exports())
    else:
        # Of another attempt, or the one that is attacked would be no longer its agent's.
        begin = target.path.replace("/v1/chat/completions", "/begin").replace(ATTEMPT, "0bad")
        good: Any
        path, good = data.draw(
            st.sampled_from([(target.path, _CHAT), (begin, _BEGIN), ("/v1/chat/completions", _CHAT)])
        )
        body = data.draw(mutants(good))
        headers = {"content-type": "application/json"} | (by_runner() if path == begin else {})

    async def ask() -> int:
        async with target.http.post(target.url + path, data=body, headers=headers) as response:
            return response.status

    status = runner.run(ask())
    assert status < 500 and status != 403, body
