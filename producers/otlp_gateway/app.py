"""OTLP/HTTP receiver: spans of any OpenTelemetry SDK or Collector become records on `otlp_spans`.

In: POST /v1/traces (also under /rollout/{rollout}/attempt/{attempt}, whose identity is written into the
resources), protobuf or JSON, plain or gzip. Out: one record a trace and size, keyed by trace id in hex.
Invariant: 200 is answered only when the log has acknowledged every piece. Memory is bounded: a request over
`max_body_bytes` gets 413, one whose body does not come gets 408, one that would pass `max_inflight_bytes` in all gets
503 + Retry-After. What names a rollout of this run bears its agent's credential (proof.py), or is refused (403, or
`partial_success` when there is more in the request) and counted. Failure: the log is away -> 503 + Retry-After (the SDK
sends again; duplicates are folded); malformed -> 400; a span that no record can hold -> a dead letter by reference and
`partial_success`.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tracegrad.schemas.credentials import Holder, masked, may_claim
from tracegrad.schemas.errors import OverloadedError, ProofError, RecordError, RequestError, UnavailableError
from tracegrad.schemas.ids import run_hash_of
from tracegrad.schemas.log.protocol import Log, LogWriter, Position, Record
from tracegrad.schemas.metrics import (
    DEAD_LETTERS,
    REQUESTS,
    REQUESTS_REFUSED,
    REQUESTS_UNPROVED,
    SPANS,
    Metrics,
)
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics, original_key, trace_key

from ..asgi import serve
from ..budget import Budget, Share, weigh_json
from ..http_request import UNREAD, api_keys_of, holder_of, path_ids, read_body, retry_after_s
from .config import OtlpConfig, OtlpHandles
from .decode import JSON, PROTOBUF, decode_traces, gunzip
from .proof import keep_proved, may_name
from .split import Piece, Rejected, add_identity, split
from .weigh import weigh_protobuf

__all__ = ["OtlpGateway", "run"]

_OFF_LOOP_BYTES = 64 * 1024
"""Larger bodies are decoded in a thread, one at a time, so that they do not hold up every other request."""
_RECORD_TARGET_BYTES = 1_000_000
"""Pieces of a trace are closed at this size, which every Kafka cluster accepts."""
_CODES = {400: 3, 401: 16, 403: 7, 408: 4, 413: 3, 415: 3, 500: 13, 503: 14}
"""google.rpc.Code of each HTTP status: INVALID_ARGUMENT, UNAUTHENTICATED, PERMISSION_DENIED, DEADLINE_EXCEEDED,
INTERNAL, UNAVAILABLE."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


class _Sender(NamedTuple):
    """Whose spans they are."""

    holder: Holder | None
    """Whose credential of this run the request bears."""
    attempt: tuple[str, str] | None
    """What its path names."""


class _Split(NamedTuple):
    """What becomes of a request's spans."""

    pieces: list[Piece]
    rejected: list[Rejected]
    num_unproved: int
    unproved: ProofError | None
    """Why these were taken out."""


class OtlpGateway:
    """The ASGI application and its counters. One event loop; the writer is shared by all requests."""

    def __init__(
        self, config: OtlpConfig, handles: OtlpHandles, *, topics: Topics, writer: LogWriter, metrics: Metrics
    ) -> None:
        self._config = config
        self._handles = handles
        self._topics = topics
        self._writer = writer
        self._budget = Budget(config.max_inflight_bytes)
        self._metrics = metrics
        paths = ("/v1/traces", "/rollout/{rollout}/attempt/{attempt}/v1/traces")
        routes = [Route(path, self.traces, methods=["POST"]) for path in paths]
        # One thread: the loop waits behind each that wants the interpreter.
        self._aside = ThreadPoolExecutor(1, "large-bodies")
        self.app = Starlette(routes=[*routes, Route("/health", self.health, methods=["GET"])])

    async def health(self, _request: Request) -> Response:
        """200 once the writer exists."""
        return JSONResponse({"status": "ok", "counters": self._metrics.snapshot()})

    async def traces(self, request: Request) -> Response:
        """One export request, acknowledged by the log before it is answered."""
        content_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
        try:
            self._check(request, content_type)
            sender = self._sender(request)
            with self._budget.share() as share:
                body = await self._read_body(request, share)
                for key in api_keys_of(request.headers):
                    # What an agent quotes of its credential, as in the headers of an HTTP span, is not for the log.
                    body = masked(body, key)
                found = await self._decode(sender, body, content_type, share)
                await asyncio.wait_for(self._append(found.pieces, found.rejected), self._handles.ack_timeout_s)
        except (RequestError, RecordError) as error:
            if isinstance(error, ProofError):
                self._metrics.add(REQUESTS_UNPROVED, error.reason)
            return self._refuse(error.status if isinstance(error, RequestError) else 400, str(error), content_type)
        except (OverloadedError, UnavailableError, TimeoutError) as error:
            return self._refuse(503, str(error) or "the log did not acknowledge in time", content_type)
        self._metrics.add(REQUESTS)
        self._metrics.add(SPANS, num=sum(piece.num_spans for piece in found.pieces))
        return _message_response(_answer(found), content_type)

    def _check(self, request: Request, content_type: str) -> None:
        token = self._config.token
        given = request.headers.get("authorization", "")
        is_known = not token or hmac.compare_digest(given.encode(), f"Bearer {token}".encode())
        if not is_known and holder_of(request, self._handles.key) is None:
            raise RequestError("expected Authorization: Bearer <the gateway's token>", status=401)
        if content_type not in (PROTOBUF, JSON):
            raise RequestError(f"expected content type {PROTOBUF} or {JSON}, got {content_type[:80]!r}", status=415)
        if request.headers.get("content-encoding", "identity") not in ("identity", "gzip"):
            raise RequestError("expected content encoding gzip or none", status=415)

    async def _beside(self, compute: Callable[[], T]) -> T:
        """What would hold up the loop; one at a time."""
        return await asyncio.get_running_loop().run_in_executor(self._aside, compute)

    async def _read_body(self, request: Request, share: Share) -> bytes:
        limit = self._config.max_body_bytes
        body = await read_body(request, limit, share)
        if request.headers.get("content-encoding") != "gzip":
            return body
        unzipped, pieces = bytearray(), gunzip(body, limit=limit)
        while (piece := await self._beside(partial(next, pieces, None))) is not None:
            share.take(len(piece))
            unzipped += piece
        return bytes(unzipped)

    async def _decode(self, sender: _Sender, body: bytes, content_type: str, share: Share) -> _Split:
        is_large = len(body) > _OFF_LOOP_BYTES
        weigh = partial(weigh_json if content_type == JSON else weigh_protobuf, body)
        share.take_computed(await self._beside(weigh) if is_large else weigh(), once="decoded")
        decode = partial(self._decode_now, sender, body, content_type)
        found = await self._beside(decode) if is_large else decode()
        if found.unproved is not None:
            if not found.pieces and not found.rejected:
                raise found.unproved
            self._metrics.add(REQUESTS_UNPROVED, found.unproved.reason)
        share.take_computed(sum(piece.num_bytes for piece in found.pieces), once="split by trace")
        return found

    def _sender(self, request: Request) -> _Sender:
        """Raises ProofError when the path names an attempt of this run that is not the sender's."""
        holder = holder_of(request, self._handles.key)
        attempt = path_ids(request) if "rollout" in request.path_params else None
        if attempt and run_hash_of(attempt[0]) == self._handles.run_hash and not may_claim(holder, *attempt):
            raise _unproved(holder, "the path names")
        return _Sender(holder, attempt)

    def _decode_now(self, sender: _Sender, body: bytes, content_type: str) -> _Split:
        message = decode_traces(body, content_type)
        rejected = add_identity(message, *sender.attempt) if sender.attempt else []
        run = self._handles.run_hash
        is_named = content_type != PROTOBUF or sender.attempt is not None or may_name(body, run)
        num_unproved = keep_proved(message, sender.holder, run, is_named=is_named)
        limit_bytes = self._topics.value_bytes(Topic.OTLP_SPANS)
        pieces, unfit = split(message, target_bytes=_RECORD_TARGET_BYTES, item_limit_bytes=limit_bytes)
        unproved = _unproved(sender.holder, f"{num_unproved} spans name") if num_unproved else None
        return _Split(pieces, [*rejected, *unfit], num_unproved, unproved)

    async def _append(self, pieces: list[Piece], rejected: list[Rejected]) -> None:
        topic, futures = self._topics.name(Topic.OTLP_SPANS), []
        for piece in pieces:
            is_large = piece.num_bytes > _OFF_LOOP_BYTES
            value = await self._beside(piece.value) if is_large else piece.value()
            futures.append(self._writer.append(topic, key=trace_key(piece.trace_id), value=value))
        futures += [self._dead_letter(item) for item in rejected]
        for future in futures:
            await asyncio.wrap_future(future)

    def _dead_letter(self, item: Rejected) -> Future[Position]:
        self._metrics.add(DEAD_LETTERS, item.reason)
        spans, dead = self._topics.name(Topic.OTLP_SPANS), self._topics.name(Topic.DEAD_LETTERS)
        origin = Record(topic=spans, partition=-1, offset=-1, key=trace_key(item.trace_id), value=None)
        detail = f"a span of {item.num_bytes} bytes, kept by reference only"
        headers = dead_letter_headers(origin, stage="otlp_gateway", reason=item.reason, detail=detail)
        return self._writer.append(dead, key=original_key(origin), value=msgspec.json.encode(item), headers=headers)

    def _refuse(self, status: int, message: str, content_type: str) -> Response:
        self._metrics.add(REQUESTS_REFUSED, str(status))
        num_refused = self._metrics.value(REQUESTS_REFUSED, str(status))
        level = logging.WARNING if num_refused == 1 else logging.DEBUG
        logger.log(level, "otlp: answered %d (%d so far): %s", status, num_refused, message)
        response = _message_response(Status(code=_CODES[status], message=message), content_type, status)
        if status == 503:
            response.headers["retry-after"] = str(retry_after_s())
        if status in UNREAD:
            response.headers["connection"] = "close"
        return response


def _unproved(holder: Holder | None, what: str) -> ProofError:
    return ProofError(
        f"{what} a rollout of a runner: expected its credential, which its agent finds in OTEL_EXPORTER_OTLP_HEADERS, "
        f"got {f'that of {holder}' if holder else 'another or none'}; export with that variable",
        reason="other_attempt" if holder else "no_credential",
    )


def _answer(found: _Split) -> ExportTraceServiceResponse:
    response, words = ExportTraceServiceResponse(), []
    if found.rejected:
        reasons = ", ".join(sorted({item.reason for item in found.rejected}))
        words.append(f"spans kept as dead letters by reference: {reasons}")
    if found.unproved:
        words.append(str(found.unproved))
    if words:
        response.partial_success.rejected_spans = len(found.rejected) + found.num_unproved
        response.partial_success.error_message = "; ".join(words)
    return response


def _message_response(message: Message, content_type: str, status: int = 200) -> Response:
    if content_type == JSON:
        text = json_format.MessageToJson(message, indent=None)
        return Response(text, status_code=status, media_type=JSON)
    return Response(message.SerializeToString(), status_code=status, media_type=PROTOBUF)


def run(
    config: OtlpConfig, handles: OtlpHandles, *, topics: Topics, log: Log, stop: threading.Event, metrics: Metrics
) -> None:
    """Serves until `stop` is set. Blocks. Raises UnavailableError: the address is taken, or no writer can be made."""
    writer = log.writer()
    try:
        gateway = OtlpGateway(config, handles, topics=topics, writer=writer, metrics=metrics)
        serve(gateway.app, host=config.host, port=handles.port, stop=stop, name="otlp gateway")
        logger.info("otlp gateway stopped: %s", metrics.snapshot())
    finally:
        writer.close()
