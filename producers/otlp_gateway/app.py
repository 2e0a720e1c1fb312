"""OTLP/HTTP receiver, and the process of both doors: items of any OpenTelemetry SDK or Collector become records.

In: POST /v1/traces and /v1/logs (also under /rollout/{rollout}/attempt/{attempt}, whose identity is written into the
resources), protobuf or JSON, plain or gzip; the same over gRPC (grpc_door.py). Out: see receive.py. Invariant: 200 is
answered only when the log has acknowledged every piece. A request over `max_body_bytes` gets 413, one whose body does
not come gets 408, one that would pass `max_inflight_bytes` in all gets 503 + Retry-After. Failure: the log is away ->
503 + Retry-After (the SDK sends again; duplicates are folded); malformed -> 400; not proved -> 403.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing, nullcontext
from functools import partial

from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.log.protocol import Log, LogWriter
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal
from tracegrad.schemas.topics import Topics

from ..asgi import serve
from ..budget import Share
from ..http_request import REFUSALS, headers_of_refusal, path_ids, read_body
from .config import OtlpConfig, OtlpHandles
from .decode import JSON, PROTOBUF, gunzip
from .grpc_door import GrpcDoor
from .receive import Receiver

_CODES = {400: 3, 401: 16, 403: 7, 408: 4, 413: 3, 415: 3, 500: 13, 503: 14}
"""google.rpc.Code of each HTTP status: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, DEADLINE_EXCEEDED,
INTERNAL, UNAVAILABLE."""
_PATHS = {"/v1/traces": TRACES, "/v1/logs": LOGS}

logger = logging.getLogger(__name__)


class OtlpGateway:
    """The ASGI application and its counters, and beside it, while that lives, the gRPC server."""

    def __init__(
        self, config: OtlpConfig, handles: OtlpHandles, *, topics: Topics, writer: LogWriter, metrics: Metrics
    ) -> None:
        self._receiver = Receiver(config, handles, topics=topics, writer=writer, metrics=metrics)
        self._grpc_port = handles.grpc_port
        routes = [
            Route(prefix + path, partial(self.export, signal), methods=["POST"])
            for prefix in ("", "/rollout/{rollout}/attempt/{attempt}")
            for path, signal in _PATHS.items()
        ]
        routes.append(Route("/health", self.health, methods=["GET"]))
        self.app = Starlette(routes=routes, lifespan=self._beside)

    @asynccontextmanager
    async def _beside(self, _app: Starlette) -> AsyncIterator[None]:
        port = self._grpc_port
        async with nullcontext() if port is None else GrpcDoor(self._receiver).serving(port):
            yield

    async def health(self, _request: Request) -> Response:
        """200 once the writer exists."""
        return JSONResponse({"status": "ok", "counters": self._receiver.metrics.snapshot()})

    async def export(self, signal: Signal, request: Request) -> Response:
        """One export request, acknowledged by the log before it is answered."""
        content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        receiver = self._receiver
        try:
            attempt = path_ids(request) if "rollout" in request.path_params else None
            sender = receiver.sender(request.headers, attempt)
            _check(request, content_type)
            with receiver.budget.share() as share:
                body = await self._read_body(request, share)
                answer = await receiver.receive(signal, sender, body, content_type, share)
        except REFUSALS as error:
            return self._refuse(error, content_type)
        return _message_response(answer, content_type)

    async def _read_body(self, request: Request, share: Share) -> bytes:
        limit = self._receiver.config.max_body_bytes
        body = await read_body(request, limit, share)
        if request.headers.get("content-encoding") != "gzip":
            return body
        unzipped, pieces = bytearray(), gunzip(body, limit=limit)
        while (piece := await self._receiver.beside(partial(next, pieces, None))) is not None:
            share.charge(len(piece))
            unzipped += piece
        return bytes(unzipped)

    def _refuse(self, error: Exception, content_type: str) -> Response:
        status, message = self._receiver.refuse(error)
        response = _message_response(Status(code=_CODES[status], message=message), content_type, status)
        response.headers.update(headers_of_refusal(status))
        return response


def _check(request: Request, content_type: str) -> None:
    if content_type not in (PROTOBUF, JSON):
        raise RequestError(f"expected content type {PROTOBUF} or {JSON}, got {content_type[:80]!r}", status=415)
    if request.headers.get("content-encoding", "identity") not in ("identity", "gzip"):
        raise RequestError("expected content encoding gzip or none", status=415)


def _message_response(message: Message, content_type: str, status: int = 200) -> Response:
    if content_type == JSON:
        text = json_format.MessageToJson(message, indent=None)
        return Response(text, status_code=status, media_type=JSON)
    return Response(message.SerializeToString(), status_code=status, media_type=PROTOBUF)


def run(
    config: OtlpConfig, handles: OtlpHandles, *, topics: Topics, log: Log, stop: threading.Event, metrics: Metrics
) -> None:
    """Serves until `stop` is set. Blocks. Raises UnavailableError: an address is taken, or no writer can be made."""
    with closing(log.writer()) as writer:
        gateway = OtlpGateway(config, handles, topics=topics, writer=writer, metrics=metrics)
        serve(gateway.app, host=config.host, port=handles.port, fd=handles.fd, stop=stop, name="otlp gateway")
        logger.info("otlp gateway stopped: %s", metrics.snapshot())
