"""The rewards gateway: feedback becomes records of `rewards`.

    POST /v1/rewards          {..one..} or {"rewards": [..]}  ->  202 {"results": [{"idempotency_key": ..}, ..]}
    GET  /v1/rewards/{key}    ->  200 {"idempotency_key": .., "pieces": [{"state": "joined", ..}]}    (receipts.py)

In: requests that bear the run's reward token, which no agent and no browser has. Out: one record for each piece of
feedback, keyed as its episode's calls are. Invariant: 202 is answered when the log has acknowledged every accepted
piece; each piece is judged by itself, and what is refused is told at its place. Failure: 400 when nothing of a request
was accepted, 401 without the token, 413, 408, 503 + Retry-After as the other gateways: send it again, under the same
idempotency keys, and it counts once. Receipts lag behind the log by what is read of it; where that ends for good, the
process does.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Lifespan

from tracegrad.schemas.credentials import feedback_holder
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.log.protocol import Log, LogWriter
from tracegrad.schemas.metrics import FEEDBACK, FEEDBACK_REFUSED, REQUESTS_REFUSED, Metrics
from tracegrad.schemas.records.rollouts import Reward, piece_id
from tracegrad.schemas.topics import Topic, Topics

from ..asgi import serve
from ..budget import Budget
from ..http_request import REFUSALS, headers_of_refusal, holder_of, read_object, status_of
from ..read_feedback import fault_of, read_feedback, reward_record
from .config import FeedbackConfig, FeedbackHandles
from .receipt_reader import ReceiptReader
from .receipts import Receipts

_MAX_AT_ONCE = 1_000
"""Pieces of one request."""
_ACK_TIMEOUT_S = 20.0

logger = logging.getLogger(__name__)


class RewardsGateway:
    """The ASGI application; `beside` is what lives as long as it does."""

    def __init__(
        self,
        config: FeedbackConfig,
        handles: FeedbackHandles,
        *,
        topics: Topics,
        writer: LogWriter,
        metrics: Metrics,
        receipts: Receipts,
        beside: Lifespan[Starlette] | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._config = config
        self._handles = handles
        self._topics = topics
        self._writer = writer
        self._metrics = metrics
        self._now_ms = now_ms
        self._budget = Budget(config.max_inflight_bytes)
        self._receipts = receipts
        routes = [
            Route("/v1/rewards", self.post, methods=["POST"]),
            Route("/v1/rewards/{key:path}", self.get, methods=["GET"]),
            Route("/health", self.health, methods=["GET"]),
        ]
        self.app = Starlette(routes=routes, lifespan=beside)

    async def health(self, _request: Request) -> Response:
        """200 once the writer exists."""
        return JSONResponse({"status": "ok", "counters": self._metrics.snapshot()})

    async def post(self, request: Request) -> Response:
        """One piece of feedback or many, acknowledged by the log before it is answered."""
        try:
            self._check(request)
            with self._budget.share() as share:
                body = await read_object(request, self._config.max_body_bytes, share)
                return await self._take(body)
        except REFUSALS as error:
            return self._refuse(error)

    async def get(self, request: Request) -> Response:
        """What became of what was said under an idempotency key."""
        key = request.path_params["key"]
        try:
            self._check(request)
            pieces = self._receipts.of(key)
            if not pieces:
                raise RequestError(
                    "expected an idempotency key under which this run has feedback, got another, or one that was "
                    "forgotten",
                    status=404,
                )
        except RequestError as error:
            return self._refuse(error)
        return JSONResponse({"idempotency_key": key, "pieces": pieces})

    def _check(self, request: Request) -> None:
        if holder_of(request.headers, self._handles.key) != feedback_holder(self._handles.run_hash):
            raise RequestError(
                "expected Authorization: Bearer <the run's reward token> (tracegrad env --feedback), got another or "
                "none",
                status=401,
            )

    async def _take(self, body: dict[str, Any]) -> Response:
        """Answers when the log has acknowledged all that is accepted. Raises as the log does, and TimeoutError."""
        given = body.get("rewards", [body])
        if not isinstance(given, list) or not 0 < len(given) <= _MAX_AT_ONCE or ("rewards" in body and len(body) > 1):
            raise RequestError(f'expected one piece of feedback, or {{"rewards": [1 to {_MAX_AT_ONCE} of them]}}')
        results: list[dict[str, Any]] = []
        accepted: list[Reward] = []
        said_ms: dict[str, int] = {}
        for item in given:
            try:
                reward = read_feedback(item, self._config.names, self._handles.run_hash, at_ms=self._now_ms())
            except RequestError as error:
                self._metrics.add(FEEDBACK_REFUSED, fault_of(error))
                results.append({"error": {"message": str(error), "param": error.param, "status": error.status}})
            else:
                # What is said again is said later, also where the clock does not tell them apart.
                at_ms = max(reward.at_ms, said_ms.get(piece_id(reward), 0) + 1)
                said_ms[piece_id(reward)] = at_ms
                accepted.append(msgspec.structs.replace(reward, at_ms=at_ms))
                results.append({"idempotency_key": reward.idempotency_key})
        if not accepted:
            return JSONResponse({"results": results}, results[0]["error"]["status"] if len(results) == 1 else 400)
        async with asyncio.timeout(_ACK_TIMEOUT_S):
            await asyncio.gather(*(asyncio.wrap_future(self._append(reward)) for reward in accepted))
        for reward in accepted:
            self._metrics.add(FEEDBACK, reward.name)
            self._receipts.accept(reward)
        return JSONResponse({"results": results}, 202)

    def _append(self, reward: Reward) -> Any:
        key, value = reward_record(reward)
        return self._writer.append(self._topics.name(Topic.REWARDS), key=key, value=value)

    def _refuse(self, error: Exception) -> Response:
        status = status_of(error)
        self._metrics.add(REQUESTS_REFUSED, str(status))
        message = str(error) or "the log did not acknowledge in time; send it again under the same idempotency keys"
        return JSONResponse({"error": {"message": message, "status": status}}, status, headers_of_refusal(status))


def run(
    config: FeedbackConfig,
    handles: FeedbackHandles,
    *,
    topics: Topics,
    log: Log,
    stop: threading.Event,
    metrics: Metrics,
) -> None:
    """Serves until `stop` is set. Blocks. Raises UnavailableError: the address is taken, or no writer can be made."""
    with closing(log.writer()) as writer:
        receipts = Receipts(trains=handles.trains, wait_s=config.wait_s)
        reading = ReceiptReader(receipts, handles, topics=topics, log=log, metrics=metrics)
        gateway = RewardsGateway(
            config, handles, topics=topics, writer=writer, metrics=metrics, receipts=receipts, beside=reading.beside
        )
        serve(
            gateway.app,
            host=config.host,
            port=handles.port,
            fd=handles.fd,
            stop=stop,
            name="rewards gateway",
            fatal=lambda: reading.fatal,
        )
        logger.info("rewards gateway stopped: %s", metrics.snapshot())
