"""What the runner tells a gateway process that was started anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.producers.keys import HOST, KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, until
from tests.serving import serve
from tracegrad.producers.runner import gateway_client
from tracegrad.producers.runner.config import RunnerHandles
from tracegrad.producers.runner.gateway_client import GatewayClient
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import AGENT_REWARD, GroupRef, RolloutRequest

REQUEST = RolloutRequest(
    rollout_id=ROLLOUT,
    group=GroupRef(id=RUN_HASH + "0" * 16, size=1, member=0, index=0),
    task_id="0",
    input="?",
    policy="policy",
    purpose=Purpose.TRAIN,
    rewards_awaited=("reward",),
)


@dataclass
class Gateway:
    """Knows the attempts that it was told of; one that is restarted knows none."""

    name: str = "first"
    since: dict[str, int] | None = field(default_factory=lambda: {"0": 7})
    can_rebuild: bool = True
    refusals: int = 0
    """So many of /begin are refused first."""
    known: set[str] = field(default_factory=set)
    begun: list[Any] = field(default_factory=list)
    """Bodies of /begin."""

    def restart(self) -> None:
        """Another process."""
        self.name, self.known = "second", set()

    async def begin(self, request: Request) -> Response:
        """Of a process that is new, only with what the first one told."""
        body = await request.json()
        self.begun.append(body)
        if self.refusals:
            self.refusals -= 1
            return JSONResponse({}, 400)
        if self.name == "second" and not (self.can_rebuild and body.get("since") == self.since):
            return JSONResponse({}, 409)
        self.known.add(request.path_params["attempt"])
        return JSONResponse({"episode_id": ROLLOUT + ATTEMPT, "gateway": self.name, "since": self.since})

    async def end(self, request: Request) -> Response:
        """With one call."""
        is_known = request.path_params["attempt"] in self.known
        return JSONResponse({"calls": [{}]} if is_known else {}, 200 if is_known else 409)

    async def health(self, request: Request) -> Response:
        """Which process it is."""
        return JSONResponse({"gateway": self.name})


@contextlib.asynccontextmanager
async def client_of(gateway: Gateway) -> AsyncIterator[GatewayClient]:
    """A runner's, of this gateway."""
    path = "/rollout/{rollout}/attempt/{attempt}"
    routes = [
        Route(f"{path}/begin", gateway.begin, methods=["POST"]),
        Route(f"{path}/end", gateway.end, methods=["POST"]),
        Route("/health", gateway.health),
    ]
    async with serve(Starlette(routes=routes)) as url:
        client = GatewayClient(RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url=url, otlp_endpoint="", log_dir=""))
        try:
            yield client
        finally:
            await client.close()


async def test_open_attempts_are_told_again_when_another_process_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, as at the beginning, with where their records begin; those that have ended are not."""
    monkeypatch.setattr(gateway_client, "_WATCH_S", 0.01)
    gateway = Gateway()
    async with client_of(gateway) as client:
        await client.begin(REQUEST, ATTEMPT, HOST)
        await client.begin(REQUEST, "0bad", HOST)
        await client.end(ROLLOUT, "0bad")
        client.forget(ROLLOUT, "0bad")
        gateway.restart()
        await until(lambda: len(gateway.begun) == 3)
        assert gateway.begun[2] == {**gateway.begun[0], "since": {"0": 7}}
        await asyncio.sleep(0.05)
        assert len(gateway.begun) == 3 and gateway.known == {ATTEMPT}


async def test_an_attempt_that_could_not_be_told_is_told_again_until_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its next call would be refused though its records are there."""
    monkeypatch.setattr(gateway_client, "_WATCH_S", 0.01)
    gateway = Gateway()
    async with client_of(gateway) as client:
        await client.begin(REQUEST, ATTEMPT, HOST)
        gateway.restart()
        gateway.refusals = 2
        await until(lambda: gateway.known == {ATTEMPT})
        assert len(gateway.begun) == 4


@pytest.mark.parametrize("can_rebuild", [True, False])
async def test_an_end_that_comes_first_tells_of_its_attempt(can_rebuild: bool) -> None:
    """Else the attempt is aborted for a second of waiting; where it cannot be gone on with, it is."""
    gateway = Gateway(can_rebuild=can_rebuild)
    async with client_of(gateway) as client:
        await client.begin(REQUEST, ATTEMPT, HOST)
        gateway.restart()
        if can_rebuild:
            assert len((await client.end(ROLLOUT, ATTEMPT)).calls) == 1
        else:
            with pytest.raises(UnavailableError, match="restarted"):
                await client.end(ROLLOUT, ATTEMPT)


@pytest.mark.parametrize("why", ["agents_reward", "unknown_offsets"])
async def test_what_the_log_does_not_hold_is_not_told_again(why: str) -> None:
    """What an agent said of its own reward was known to the process that is gone alone."""
    gateway, request = Gateway(), REQUEST
    if why == "agents_reward":
        request = msgspec.structs.replace(request, rewards_awaited=("reward", AGENT_REWARD))
    else:
        gateway.since = None
    async with client_of(gateway) as client:
        await client.begin(request, ATTEMPT, HOST)
        gateway.restart()
        with pytest.raises(UnavailableError, match="restarted"):
            await client.end(ROLLOUT, ATTEMPT)
        assert len(gateway.begun) == 1
