"""The door of the gateway: who is let in, how large a body may be, and how an error goes out.

In: HTTP requests. Out: decoded bodies and ids for the endpoints; errors in the words of the API that was asked.
Claims that disagree are quarantined as a dead letter that holds no content. Invariant: what is decoded here fits the
log's wire.
"""

from __future__ import annotations

import contextlib
import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.types import ASGIApp

from tracegrad.schemas.errors import (
    IdentityError,
    OverloadedError,
    RecordError,
    RequestError,
    TracegradError,
    UnavailableError,
)
from tracegrad.schemas.keys import original_key
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import REQUESTS_QUARANTINED, REQUESTS_REFUSED
from tracegrad.schemas.records.calls import Identity
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic

from ..http_request import read_body
from .api.events import Api
from .identity import api_key_of, collect
from .parts import Parts
from .respond import problem_of, problem_response

__all__ = ["Endpoint", "claims_of", "guard", "read_object"]

Endpoint = Callable[[Request], Awaitable[ASGIApp]]
_STAGE = "llm_gateway"


def guard(endpoint: Endpoint, api: Api, parts: Parts) -> Endpoint:
    """The endpoint behind the token, its errors counted and in the API's words."""

    async def guarded(request: Request) -> ASGIApp:
        try:
            _authorize(request, parts.config.token)
            return await endpoint(request)
        except IdentityError as error:
            parts.metrics.add(REQUESTS_QUARANTINED, error.reason)
            await _quarantine(request, error, parts)
            answer: TracegradError = RequestError(str(error), code=error.reason)
        except TracegradError as error:
            answer = error
        problem = problem_of(answer)
        parts.metrics.add(REQUESTS_REFUSED, str(problem.status))
        return problem_response(problem, api)

    return guarded


def _authorize(request: Request, token: str | None) -> None:
    if token is None or request.url.path == "/health":
        return
    for given in (request.headers.get("x-tracegrad-token", ""), api_key_of(request.headers)):
        if hmac.compare_digest(given.encode(), token.encode()):
            return
    raise RequestError("expected the gateway's token as API key or in x-tracegrad-token", status=401)


async def _quarantine(request: Request, error: IdentityError, parts: Parts) -> None:
    """A dead letter by reference: the claims, no content."""
    origin = Record(topic="http", partition=0, offset=0, key=None, value=None)
    headers = dead_letter_headers(origin, stage=_STAGE, reason=error.reason, detail=str(error))
    value = msgspec.json.encode(claims_of(request))
    with contextlib.suppress(UnavailableError, OverloadedError, RecordError):
        await parts.append(Topic.DEAD_LETTERS, key=original_key(origin), value=value, headers=headers)


def claims_of(request: Request) -> Identity:
    """Who the request says it comes from."""
    names = request.path_params
    return collect((names["rollout"], names["attempt"]) if "rollout" in names else None, request.headers)


async def read_object(request: Request, limit: int) -> dict[str, Any]:
    """The body, a JSON object of at most `limit` bytes. Raises RequestError (400, 413, 415)."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise RequestError("content-encoding: expected identity, got another", status=415)
    data = await read_body(request, limit)
    try:
        body = msgspec.json.decode(data or b"{}")
        # What the log's wire cannot hold (huge numbers, lone surrogates) is refused before it costs anything.
        msgspec.msgpack.encode(body)
    except (ValueError, OverflowError, RecursionError):
        raise RequestError("expected a JSON body, got something else") from None
    if not isinstance(body, dict):
        raise RequestError("expected a JSON object, got another value")
    return body
