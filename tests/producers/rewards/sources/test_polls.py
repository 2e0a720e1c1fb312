"""The reading of sources beside the rewards gateway: what is written once, again, anew, and what bad answers cost."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any

import aiohttp
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

from tests.producers.keys import KEY, RUN_HASH
from tests.producers.rewards.sources.replay import ANSWER, SESSION, TRACE, Replay, load
from tests.serving import serve
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.rewards.config import FeedbackConfig, FeedbackHandles, SourceConfig, SourceKind
from tracegrad.producers.rewards.sources import asking
from tracegrad.producers.rewards.sources.polls import Polls
from tracegrad.schemas.errors import SourceError, UnavailableError
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.metrics import SCORES, SOURCES_AWAY, SOURCES_FAILED, Metrics
from tracegrad.schemas.records.rollouts import REWARDS, Reward

NAMES = {name: RangeConfig(low=0.0, high=5.0) for name in ("thumb", "stars", "tone")}
RECORDED_AT_S = datetime(2026, 11, 24, 10, tzinfo=UTC).timestamp()
SECRET = "pk-1:sk-very-secret"


class Written:
    """A log, and the polls that write to it."""

    def __init__(self, *sources: SourceConfig, keys: dict[str, str] | None = None) -> None:
        self.rewards: list[Reward] = []
        self.metrics = Metrics()
        self.is_away = False
        self.sources = sources
        config = FeedbackConfig(names=NAMES, sources=sources)
        handles = FeedbackHandles(port=0, run_hash=RUN_HASH, key=KEY, source_keys=keys or {})
        self.polls = Polls(
            config,
            handles,
            accept=self._accept,
            metrics=self.metrics,
            first_pause_s=0.01,
            # As when the recordings were made, whose sessions would else be too long ago.
            now_s=lambda: RECORDED_AT_S,
        )

    async def _accept(self, rewards: Sequence[Reward]) -> None:
        if self.is_away:
            raise UnavailableError("no broker")
        self.rewards += rewards

    async def read(self) -> list[Reward]:
        """What one reading of each source has written."""
        before = len(self.rewards)
        async with aiohttp.ClientSession() as http:
            for source in self.sources:
                await self.polls.read(http, source)
        return self.rewards[before:]


def source(kind: str, url: str, **more: Any) -> SourceConfig:
    """One, whose kind of tone is worth something."""
    return SourceConfig(kind=SourceKind(kind), url=url, labels={"kind": 1.0}, every_s=0.01, **more)


class Langfuse:
    """A server that has these scores, unless it is told to answer otherwise."""

    def __init__(self, *scores: dict[str, Any]) -> None:
        self.scores = list(scores)
        self.num_asked = 0
        self.headers: list[str | None] = []
        self.instead: Callable[[Request], Response] | None = None
        self.app = Starlette(routes=[Mount("/", self)])

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Two on a page."""
        request = Request(scope, receive)
        self.num_asked += 1
        self.headers.append(request.headers.get("authorization"))
        at = int(request.query_params.get("cursor", "0"))
        meta = {"limit": 2} | ({"cursor": str(at + 2)} if at + 2 < len(self.scores) else {})
        answer: ASGIApp = JSONResponse({"data": self.scores[at : at + 2], "meta": meta})
        await (self.instead(request) if self.instead else answer)(scope, receive, send)


def score(number: int, value: Any = 1, **more: Any) -> dict[str, Any]:
    """A thumb on a trace."""
    subject = {"kind": "trace", "id": f"{number:032x}"}
    found = {"id": f"s-{number}", "name": "thumb", "value": value, "updatedAt": "2026-11-24T09:00:00Z"}
    return found | {"subject": subject} | more


@pytest.mark.parametrize("kind", ["langfuse", "mlflow", "phoenix"])
async def test_each_score_is_written_once_under_its_own_id_and_time(kind: str) -> None:
    """Read again it is not; a gateway that was started again writes the same bytes; a change revises."""
    replay = Replay(load(kind))
    async with serve(replay.app) as url:
        written = Written(source(kind, url))
        first = await written.read()
        assert {(one.name, one.value) for one in first} == {("thumb", 1.0), ("stars", 4.0), ("tone", 1.0)}
        about = {one.name: (one.conversation_key, one.target) for one in first}
        assert about["thumb"] == (TRACE, ANSWER)
        assert (about["stars"], about["tone"]) == ((TRACE, None), (conversation_key(SESSION), None))
        assert all(one.idempotency_key.startswith(f"{kind}/") for one in first)
        assert await written.read() == []
        restarted = Written(source(kind, url))
        assert list(map(REWARDS.encode, await restarted.read())) == list(map(REWARDS.encode, first))
        replay.round = 1
        (thumb,) = (one for one in await written.read() if one.name == "thumb")
    (before,) = (one for one in first if one.name == "thumb")
    assert (thumb.idempotency_key, thumb.value, thumb.reason) == (before.idempotency_key, 0.0, "good")
    assert thumb.at_ms > before.at_ms
    assert written.metrics.value(SOURCES_AWAY) == written.metrics.value(SOURCES_FAILED) == 0


async def test_a_change_within_one_tick_of_the_vendors_clock_is_later() -> None:
    """Else either of both could be the last word."""
    vendor = Langfuse(score(1))
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url))
        (first,) = await written.read()
        vendor.scores = [score(1, 0)]
        (second,) = await written.read()
    assert (first.value, second.value, second.at_ms - first.at_ms) == (1.0, 0.0, 1)


def bad(answer: Callable[[], Response]) -> Callable[[Request], Response]:
    """Whatever was asked."""
    return lambda _request: answer()


async def endless() -> AsyncIterator[bytes]:
    """A body that is longer than any that is read."""
    for _ in range(64):
        yield b"[" * 65_536
        await asyncio.sleep(0)


async def never() -> AsyncIterator[bytes]:
    """A body that does not come."""
    await asyncio.sleep(60)
    yield b""


async def breaking() -> AsyncIterator[bytes]:
    """A body that breaks off."""
    yield b'{"data": ['
    raise RuntimeError("broken on purpose")


BAD: dict[str, tuple[str, Callable[[Request], Response]]] = {
    **{status: (status, bad(partial(Response, "no", int(status)))) for status in ("401", "403", "404", "429")},
    "500": ("500", bad(lambda: HTMLResponse("<h1>oops</h1>", 500))),
    "redirect": ("302", bad(lambda: RedirectResponse("http://127.0.0.1:1/elsewhere", 302))),
    "HTML": ("form", bad(lambda: HTMLResponse("<html>sign in</html>"))),
    "nothing": ("form", bad(lambda: Response(b""))),
    "no object": ("form", bad(lambda: JSONResponse([1]))),
    "another schema": ("form", bad(lambda: JSONResponse({"scores": [], "next": 1}))),
    "NaN": ("form", bad(lambda: Response(b'{"data": [NaN], "meta": {}}'))),
    "deep": ("form", bad(lambda: Response(b"[" * 100_000))),
    "no UTF-8": ("form", bad(lambda: Response(b'{"data": [], "meta": {"cursor": "\xff"}}'))),
    "huge": ("too_large", bad(lambda: StreamingResponse(endless()))),
    "slow": ("timeout", bad(lambda: StreamingResponse(never()))),
    "broken off": ("unreachable", bad(lambda: StreamingResponse(breaking()))),
    "pages without end": ("pages", bad(lambda: JSONResponse({"data": [], "meta": {"cursor": "1"}}))),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_bad_answer_is_counted_and_costs_nothing_that_comes_later(
    name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The other source is read meanwhile, and the bad one when it is good again; its key stands in no line."""
    monkeypatch.setattr(asking, "_TIMEOUT", aiohttp.ClientTimeout(total=1.0))
    monkeypatch.setattr(asking, "MAX_BYTES", 1024 * 1024)
    caplog.set_level(logging.DEBUG, "tracegrad")
    vendor, other = Langfuse(score(1)), Langfuse(score(2))
    reason, vendor.instead = BAD[name]
    async with serve(vendor.app) as url, serve(other.app) as other_url:
        sources = source("langfuse", url), source("langfuse", other_url, name="other")
        written = Written(*sources, keys={"langfuse": SECRET})
        async with written.polls.beside(None):
            await until(lambda: written.metrics.value(SOURCES_FAILED, "langfuse", reason) > 1)
            await until(lambda: len(written.rewards) == 1)
            assert written.metrics.value(SOURCES_AWAY) == 1
            vendor.instead = None
            await until(lambda: len(written.rewards) == 2)
            await until(lambda: written.metrics.value(SOURCES_AWAY) == 0)
    assert [one.idempotency_key for one in written.rewards] == ["other/s-2", "langfuse/s-1"]
    assert "reading the scores of langfuse failed" in caplog.text
    assert "secret" not in caplog.text and base64.b64encode(SECRET.encode()).decode() not in caplog.text


async def until(claim: Callable[[], bool], timeout_s: float = 20.0) -> None:
    """Waits for it."""
    async with asyncio.timeout(timeout_s):
        while not claim():
            await asyncio.sleep(0.01)


async def test_a_redirect_takes_the_key_nowhere() -> None:
    """Not even to another port of the same host."""
    other = Langfuse()
    async with serve(other.app) as elsewhere:
        vendor = Langfuse()
        vendor.instead = lambda _request: RedirectResponse(elsewhere, 307)
        async with serve(vendor.app) as url:
            with pytest.raises(SourceError, match="no redirect is followed"):
                await Written(source("langfuse", url), keys={"langfuse": SECRET}).read()
    assert (vendor.num_asked, other.num_asked) == (1, 0)


@pytest.mark.parametrize(
    ("key", "shown"),
    [(SECRET, "Basic " + base64.b64encode(SECRET.encode()).decode()), ("token", "Bearer token"), (None, None)],
)
async def test_a_key_is_a_pair_or_a_token(key: str | None, shown: str | None) -> None:
    """As Langfuse and MLflow, or Phoenix and hosted MLflow want it."""
    vendor = Langfuse()
    async with serve(vendor.app) as url:
        await Written(source("langfuse", url), keys={"langfuse": key} if key else {}).read()
    assert vendor.headers == [shown]


async def test_nobody_there_is_a_failure_like_another(unused_tcp_port: int) -> None:
    """A port where nobody listens."""
    written = Written(source("mlflow", f"http://127.0.0.1:{unused_tcp_port}"))
    with pytest.raises(SourceError):
        await written.read()
    assert written.metrics.value(SOURCES_FAILED, "mlflow", "unreachable") == 1


async def test_what_the_log_did_not_take_is_read_again() -> None:
    """And was not counted as taken."""
    vendor = Langfuse(score(1))
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url))
        written.is_away = True
        with pytest.raises(UnavailableError):
            await written.read()
        assert written.metrics.value(SCORES) == 0
        assert written.metrics.value(SOURCES_FAILED, "langfuse", "log") == 1
        written.is_away = False
        assert len(await written.read()) == 1


async def test_what_cannot_be_taken_is_counted_once_and_its_neighbours_are_taken() -> None:
    """By the field at fault; a name that nobody maps is not looked at."""
    vendor = Langfuse(
        score(1, 9),
        score(2, "so so"),
        score(3, None),
        score(4, subject={"kind": "trace", "id": "my-trace"}),
        score(5) | {"id": "x" * 300},
        score(6, name="judge"),
        {"id": 7},
        score(8, True, comment="y" * 5_000),
    )
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url, name="lf"))
        (taken,) = await written.read()
        assert await written.read() == []
    assert (taken.idempotency_key, taken.value, len(taken.reason)) == ("lf/s-8", 1.0, 2_000)
    outcomes = {"value": 3, "trace_id": 1, "idempotency_key": 1, "form": 1, "taken": 1}
    assert {key: written.metrics.value(SCORES, "lf", key) for key in outcomes} == outcomes
    assert written.metrics.value(SCORES) == sum(outcomes.values())


async def test_only_mapped_names_are_read_where_some_are_mapped() -> None:
    """Theirs to ours."""
    vendor = Langfuse(score(1, name="User Rating"), score(2, name="thumb"))
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url, names={"User Rating": "stars"}))
        assert [(one.name, one.idempotency_key) for one in await written.read()] == [("stars", "langfuse/s-1")]


async def test_of_one_score_told_twice_on_a_page_the_last_word_counts() -> None:
    """And is not written with each reading."""
    vendor = Langfuse(score(1, 0, updatedAt="2026-11-24T09:00:01Z"), score(1, 1))
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url))
        assert [one.value for one in await written.read()] == [0.0]
        assert await written.read() == []


async def test_a_gateway_that_ends_waits_for_no_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether one is asked or waited for."""
    vendor = Langfuse(score(1))
    vendor.instead = bad(lambda: StreamingResponse(never()))
    async with serve(vendor.app) as url, asyncio.timeout(5):
        written = Written(source("langfuse", url), source("phoenix", "http://127.0.0.1:1"))
        async with written.polls.beside(None):
            await until(lambda: vendor.num_asked == 1 and written.metrics.value(SOURCES_AWAY, "phoenix") == 1)


async def test_a_fault_of_ours_ends_one_source_and_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The gateway and the others go on."""
    vendor = Langfuse(score(1))
    async with serve(vendor.app) as url:
        written = Written(source("langfuse", url), source("phoenix", url))
        with contextlib.ExitStack() as faults:
            patched = faults.enter_context(pytest.MonkeyPatch.context())
            patched.setattr("tracegrad.producers.rewards.sources.phoenix.quote", lambda *_, **__: 1 / 0)
            async with written.polls.beside(None):
                await until(lambda: len(written.rewards) == 1 and "is read no more" in caplog.text)
