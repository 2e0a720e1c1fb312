"""What the gateways read of an HTTP request: a body of bounded size and time, the attempt that its path names, and
whose credential it bears.

In: Starlette requests. Out: bytes, a JSON object, ids. Failure: RequestError, with the status that tells the client
what to do, or OverloadedError.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
from starlette.requests import ClientDisconnect, Request

from tracegrad.schemas.credentials import Holder, proved_holder
from tracegrad.schemas.errors import OverloadedError, RecordError, RequestError, UnavailableError
from tracegrad.schemas.ids import AttemptId, RolloutId, parse_attempt_id, parse_rollout_id

from .budget import Share, weigh_json

REFUSALS = (RequestError, RecordError, OverloadedError, UnavailableError, TimeoutError)
"""How a request that is to become records can fail; whoever asked is told."""
_UNREAD = (408, 413)
"""Answers given before the whole body was read; the connection ends with them, or the rest would go on coming."""
_BODY_TIMEOUT_S = 10.0
"""A client that has not sent its body by then holds memory for nothing."""

_DENSITY = 12
_DENSE_BYTES = 4 * 1024 * 1024
"""Bytes that JSON becomes for each of its own, and some more: of prompts it is one or two, of JSON within texts ten, of
brackets alone twenty and more, and every other request waits until they are decoded."""


def retry_after_s() -> int:
    """When one that was refused may ask again: whole seconds, by chance, or all would come back in one burst."""
    return random.randint(1, 4)


def status_of(error: Exception) -> int:
    """The HTTP status of one of REFUSALS."""
    if isinstance(error, RequestError):
        return error.status
    return 400 if isinstance(error, RecordError) else 503


def headers_of_refusal(status: int) -> dict[str, str]:
    """What tells a client when it may ask again, and that its connection ends."""
    headers = {"retry-after": str(retry_after_s())} if status == 503 else {}
    return headers | ({"connection": "close"} if status in _UNREAD else {})


def path_ids(request: Request) -> tuple[RolloutId, AttemptId]:
    """Rollout and attempt of `/rollout/{rollout}/attempt/{attempt}/...`. Raises RequestError (400)."""
    try:
        return parse_rollout_id(request.path_params["rollout"]), parse_attempt_id(request.path_params["attempt"])
    except ValueError as error:
        raise RequestError(str(error)) from error


def api_keys_of(headers: Mapping[str, str]) -> tuple[str, str]:
    """The keys as clients of either kind send them, Bearer and `x-api-key`; empty where there is none."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    return key.strip() if scheme.lower() == "bearer" else "", headers.get("x-api-key", "")


def holder_of(headers: Mapping[str, str], key: bytes) -> Holder | None:
    """Whose credential of the run with this key a request with these headers bears."""
    return next(filter(None, (proved_holder(key, text) for text in api_keys_of(headers))), None)


async def read_body(
    request: Request, limit: int, share: Share, *, weigh: Callable[[bytes], int] = lambda piece: 0
) -> bytes:
    """The body as it was sent, at most `limit` bytes, all taken from the request's share, with what it will become.

    Raises:
        RequestError: larger, or little but brackets (413), the client left meanwhile (400), or it was too slow (408).
        OverloadedError: there is no room.
    """
    too_large = RequestError(f"expected a body of at most {limit} bytes, got a larger one", status=413)
    if int(request.headers.get("content-length") or 0) > limit:
        raise too_large
    body, weight = bytearray(), 0
    try:
        async with asyncio.timeout(_BODY_TIMEOUT_S) as patience:
            with share.budget.coming(share, patience):
                async for piece in request.stream():
                    weight += (heavier := weigh(piece))
                    share.charge(len(piece) + heavier)
                    body += piece
                    if weight > _DENSE_BYTES + _DENSITY * len(body):
                        raise RequestError("expected a request of messages, got little but brackets", status=413)
                    if len(body) > limit:
                        raise too_large
    except ClientDisconnect:
        raise RequestError("the client went away while it sent the body") from None
    except TimeoutError:
        raise RequestError(f"expected the body within {_BODY_TIMEOUT_S:g} s, got a part", status=408) from None
    return bytes(body)


async def read_object(request: Request, limit: int, share: Share) -> dict[str, Any]:
    """The body, a JSON object of at most `limit` bytes. Raises as `read_body`, and RequestError (400, 415)."""
    return (await read_both(request, limit, share))[1]


async def read_both(request: Request, limit: int, share: Share) -> tuple[bytes, dict[str, Any]]:
    """As `read_object`: the body as it was sent, and the object that it says."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("content-encoding: expected identity, got another", status=415)
    data = await read_body(request, limit, share, weigh=weigh_json)
    try:
        body = msgspec.json.decode(data or b"{}", type=dict[str, Any])
        # Half a surrogate pair is refused before it costs anything: no token means it.
        msgspec.json.encode(body)
    except (ValueError, OverflowError, RecursionError):
        raise RequestError("expected a JSON object, got something else") from None
    return data, body
