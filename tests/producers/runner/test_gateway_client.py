"""What the runner makes of a gateway process that was started anew."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.producers.keys import HOST, KEY, RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT
from tests.serving import serve
from tracegrad.producers.runner.attempt import perform, records_of
from tracegrad.producers.runner.config import RunnerHandles
from tracegrad.producers.runner.gateway_client import GatewayClient
from tracegrad.producers.runner.grading import Grader
from tracegrad.producers.runner.outcome import Begin, Outcome
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.rollouts import GroupRef, RolloutRequest, RolloutState

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
    """Knows the attempts that began at it; one that is restarted knows none."""

    name: str = "first"
    known: set[str] = field(default_factory=set)

    def restart(self) -> None:
        """Another process."""
        self.name, self.known = "second", set()

    async def begin(self, request: Request) -> Response:
        """Of any attempt."""
        self.known.add(request.path_params["attempt"])
        return JSONResponse({"episode_id": ROLLOUT + ATTEMPT, "gateway": self.name})

    async def end(self, request: Request) -> Response:
        """With one call."""
        is_known = request.path_params["attempt"] in self.known
        return JSONResponse({"calls": [{}]} if is_known else {}, 200 if is_known else 409)

    async def health(self, request: Request) -> Response:
        """Which process it is."""
        return JSONResponse({"gateway": self.name})


@contextlib.asynccontextmanager
async def client_of(gateway: Gateway, watch_s: float = 60.0) -> AsyncIterator[GatewayClient]:
    """A runner's, of this gateway."""
    path = "/rollout/{rollout}/attempt/{attempt}"
    routes = [
        Route(f"{path}/begin", gateway.begin, methods=["POST"]),
        Route(f"{path}/end", gateway.end, methods=["POST"]),
        Route("/health", gateway.health),
    ]
    async with serve(Starlette(routes=routes)) as url:
        handles = RunnerHandles(run_hash=RUN_HASH, key=KEY, llm_url=url, otlp_endpoint="", log_dir="")
        client = GatewayClient(handles, watch_s=watch_s)
        try:
            yield client
        finally:
            await client.close()


async def test_open_attempts_learn_that_another_process_answers() -> None:
    """All that began at the one that is gone, and no other."""
    gateway = Gateway()
    async with client_of(gateway, watch_s=0.01) as client:
        first = [await client.begin(REQUEST, attempt, HOST) for attempt in (ATTEMPT, "0bad")]
        assert len((await client.end(ROLLOUT, ATTEMPT)).calls) == 1
        assert not any(replaced.is_set() for replaced in first)
        gateway.restart()
        async with asyncio.timeout(5):
            await asyncio.gather(*(replaced.wait() for replaced in first))
        assert not (await client.begin(REQUEST, "0c0c", HOST)).is_set()


@pytest.mark.parametrize("is_restarted", [True, False])
async def test_an_end_that_is_refused_tells_whether_another_process_answers(is_restarted: bool) -> None:
    """At once, whenever the gateway is asked next; one that only forgot the attempt is the same still."""
    gateway = Gateway()
    async with client_of(gateway) as client:
        replaced = await client.begin(REQUEST, ATTEMPT, HOST)
        gateway.restart() if is_restarted else gateway.known.clear()
        with pytest.raises(UnavailableError, match="restarted"):
            await client.end(ROLLOUT, ATTEMPT)
        assert replaced.is_set() is is_restarted


class NoGrader(Grader):
    """Is not asked."""

    def __init__(self) -> None:
        pass


async def test_an_agent_at_a_gateway_that_is_gone_is_stopped() -> None:
    """Its attempt is aborted, and says why, so that it is made again and not counted."""
    gateway, stopped = Gateway(), asyncio.Event()

    async def agent(request: RolloutRequest, attempt: str, begin: Begin) -> Outcome:
        await begin(HOST)
        gateway.restart()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        raise AssertionError

    async with client_of(gateway, watch_s=0.01) as client, asyncio.timeout(5):
        outcome = await perform(agent, REQUEST, ATTEMPT, client, NoGrader())
    assert stopped.is_set() and outcome.is_gateway_replaced and not outcome.calls_closed
    event, rewards = records_of(REQUEST, ATTEMPT, 0, outcome, is_final=False)
    assert (event.state, event.gateway_replaced, rewards) == (RolloutState.ABORTED, True, [])
    assert event.error is not None and "another process" in event.error


async def test_an_agent_that_fails_by_a_gateway_that_is_gone_is_not_to_blame() -> None:
    """It was refused before the runner looked."""
    gateway = Gateway()

    async def agent(request: RolloutRequest, attempt: str, begin: Begin) -> Outcome:
        await begin(HOST)
        gateway.restart()
        return Outcome(state=RolloutState.FAILED, error="status 409")

    async with client_of(gateway) as client:
        outcome = await perform(agent, REQUEST, ATTEMPT, client, NoGrader())
    assert (outcome.state, outcome.is_gateway_replaced) == (RolloutState.ABORTED, True)
