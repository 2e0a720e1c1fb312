"""OTLP/gRPC receiver: what receive.py takes, by the services that SDKs and Collectors call on port 4317.

In: `Export` of the trace and the logs service, plain or gzip, the token or credential in the metadata, as in HTTP's
headers. Out: see receive.py. Invariants: an answer only when the log has acknowledged every piece; whoever may not ask
is told before its message is read; of messages that still come there are no more than fit into `max_inflight_bytes` at
their greatest size, and one that has not come when others wait gives way. Failure: INVALID_ARGUMENT (malformed),
UNAUTHENTICATED, PERMISSION_DENIED, RESOURCE_EXHAUSTED or UNAVAILABLE with RetryInfo (full, or the log is away: send
again), RESOURCE_EXHAUSTED without it (too large: never).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import grpc
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]

from tracegrad.schemas.errors import OverloadedError, RequestError, UnavailableError
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal

from ..http_request import REFUSALS, retry_after_s
from .decode import PROTOBUF
from .receive import Receiver

_SERVICES = {
    "opentelemetry.proto.collector.trace.v1.TraceService": TRACES,
    "opentelemetry.proto.collector.logs.v1.LogsService": LOGS,
}
_STATUS = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_MESSAGE_TIMEOUT_S = 10.0
"""As of a body over HTTP: a client that has not sent its message by then holds memory for nothing."""
_MAX_METADATA_BYTES = 16 * 1024
_GRACE_S = 5.0

logger = logging.getLogger(__name__)


class GrpcDoor:
    """The server, in the event loop of the HTTP application.

    Args:
        patience_s: how long a message waits for room before the one that is longest on its way gives way to it.
    """

    def __init__(self, receiver: Receiver, *, patience_s: float = 1.0) -> None:
        self._receiver = receiver
        self._patience_s = patience_s
        config = receiver.config
        # gRPC tells no size before a message is here, so each that comes is taken for the largest.
        self._room = asyncio.Semaphore(max(1, config.max_inflight_bytes // config.max_body_bytes))
        self._coming: dict[asyncio.Timeout, None] = {}
        """The patience with each message that comes, the oldest first."""

    @asynccontextmanager
    async def serving(self, port: int) -> AsyncIterator[int]:
        """Serves within the block; port 0 takes a free one, which it gives. Raises UnavailableError: it is taken."""
        host, limit = self._receiver.config.host, self._receiver.config.max_body_bytes
        options = [
            ("grpc.max_receive_message_length", limit),
            ("grpc.max_metadata_size", _MAX_METADATA_BYTES),
            # Else a second server on the port would silently take half of the connections.
            ("grpc.so_reuseport", 0),
        ]
        server = grpc.aio.server(options=options)
        for name, signal in _SERVICES.items():
            # Unary on the wire; as a stream the message is read when we ask for it, and not before.
            handler = grpc.stream_unary_rpc_method_handler(partial(self._export, signal))
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, {"Export": handler}),))
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            bound = server.add_insecure_port(address)
        except RuntimeError as error:
            raise UnavailableError(
                f"expected a free port at {address} for OTLP over gRPC, got {error}; end what holds it or set "
                "[otlp] grpc_port"
            ) from error
        await server.start()
        logger.info("otlp gateway: listening for gRPC on %s", f"{host}:{bound}")
        try:
            yield bound
        finally:
            await server.stop(_GRACE_S)

    async def _export(self, signal: Signal, messages: AsyncIterator[bytes], context: Any) -> bytes:
        """One export request, acknowledged by the log before it is answered."""
        receiver = self._receiver
        headers = {name: value for name, value in context.invocation_metadata() if isinstance(value, str)}
        try:
            sender = receiver.sender(headers)
            with receiver.budget.share() as share:
                body = await self._read(messages)
                share.charge(len(body))
                answer = await receiver.receive(signal, sender, body, PROTOBUF, share)
        except StopAsyncIteration:
            # gRPC itself refused it (too large, or gzip of nothing), or the client left.
            receiver.refuse(RequestError("a message over gRPC did not come whole", status=413))
            return b""
        except REFUSALS as error:
            await self._refuse(error, context)
        return bytes(answer.SerializeToString())

    async def _read(self, messages: AsyncIterator[bytes]) -> bytes:
        """The message, once there is room for it. Raises RequestError (408), OverloadedError, StopAsyncIteration."""
        async with self._one_of_few():
            try:
                async with asyncio.timeout(_MESSAGE_TIMEOUT_S) as patience:
                    self._coming[patience] = None
                    return await anext(messages)
            except TimeoutError:
                raise RequestError(
                    f"expected the message within {_MESSAGE_TIMEOUT_S:g} s, or {self._patience_s:g} s while others "
                    "wait, got a part",
                    status=408,
                ) from None
            finally:
                self._coming.pop(patience, None)

    @asynccontextmanager
    async def _one_of_few(self) -> AsyncIterator[None]:
        try:
            await asyncio.wait_for(self._room.acquire(), self._patience_s)
        except TimeoutError:
            if oldest := next(iter(self._coming), None):
                del self._coming[oldest]
                oldest.reschedule(0)
            try:
                await asyncio.wait_for(self._room.acquire(), self._patience_s)
            except TimeoutError:
                raise OverloadedError("too many messages are on their way; send again later") from None
        try:
            yield
        finally:
            self._room.release()

    async def _refuse(self, error: Exception, context: Any) -> None:
        status, message = self._receiver.refuse(error)
        # Of RESOURCE_EXHAUSTED clients send again only what comes with a RetryInfo.
        code = grpc.StatusCode.RESOURCE_EXHAUSTED if isinstance(error, OverloadedError) else _STATUS[status]
        told: tuple[tuple[str, bytes], ...] = ()
        if status == 503:
            details = Status(code=code.value[0], message=message)
            retry = RetryInfo()
            retry.retry_delay.FromSeconds(retry_after_s())
            details.details.add().Pack(retry)
            told = (("grpc-status-details-bin", details.SerializeToString()),)
        await context.abort(code, message, told)
