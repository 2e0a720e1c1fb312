"""Feedback from the program in which people rate: three lines, and nothing but the standard library.

    from tracegrad.producers.client.feedback import send_feedback
    send_feedback(response_id=answer.id, value=1)

In: TRACEGRAD_REWARDS_URL and TRACEGRAD_REWARD_TOKEN, as `tracegrad env --feedback` prints them, or both as arguments.
Out: the idempotency key, under which the same piece can be revised. Invariant: it returns when the gateway has the
piece on its log; what is sent again counts once. Failure: a refusal is a ValueError at once, for want of the token a
PermissionError; a gateway that is away a ConnectionError after `patience_s`.
"""

from __future__ import annotations

import http.client
import json
import os
import secrets
import time
import urllib.error
import urllib.request
from typing import Any

REWARDS_URL = "TRACEGRAD_REWARDS_URL"
REWARD_TOKEN = "TRACEGRAD_REWARD_TOKEN"
_AGAIN = (408, 429, 502, 503, 504)
_TIMEOUT_S = 5.0
_PAUSE_S = 0.2
_MAX_PAUSE_S = 2.0
_MAX_ANSWER_BYTES = 1024 * 1024
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))
"""The token is not for a proxy; the gateway is near."""


def send_feedback(
    *,
    value: float,
    response_id: str | None = None,
    tool_call_id: str | None = None,
    conversation_id: str | None = None,
    trace_id: str | None = None,
    name: str = "reward",
    reason: str | None = None,
    idempotency_key: str | None = None,
    url: str | None = None,
    token: str | None = None,
    patience_s: float = 20.0,
) -> str:
    """Says what one thing that an agent did was worth. Blocking; call it from a thread where an event loop runs.

    Args:
        value: in the range that the run declares for the name ([feedback.names]).
        response_id: the id of an answer as the agent got it; exactly one of the four is given.
        name: what is rated.
        idempotency_key: the same again revises; None: drawn, and returned.
        patience_s: how long a gateway that is away is asked again, in seconds.
    Raises:
        ValueError: it was refused; the message names the field at fault.
        PermissionError: the token is missing, or not the run's.
        ConnectionError: nobody took it in time; whether it counts is not known, and it may be sent again.
    """
    url, token = url or os.environ.get(REWARDS_URL), token or os.environ.get(REWARD_TOKEN)
    if not url or not token:
        raise PermissionError(f"expected {REWARDS_URL} and {REWARD_TOKEN} (tracegrad env --feedback), got none")
    key = idempotency_key or secrets.token_hex(16)
    said: dict[str, Any] = {"value": value, "name": name, "reason": reason, "idempotency_key": key}
    said |= {"response_id": response_id, "tool_call_id": tool_call_id}
    said |= {"conversation_id": conversation_id, "trace_id": trace_id}
    # NaN is no JSON: the gateway could not say what is wrong.
    body = json.dumps({field: given for field, given in said.items() if given is not None}, allow_nan=False).encode()
    headers = {"content-type": "application/json", "authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"{url.rstrip('/')}/v1/rewards", body, headers, method="POST")
    until, pause_s = time.monotonic() + patience_s, _PAUSE_S
    while (why := _refusal(request)) is not None:
        if time.monotonic() + pause_s > until:
            raise ConnectionError(why)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _MAX_PAUSE_S)
    return key


def _refusal(request: urllib.request.Request) -> str | None:
    """Why it is to be sent again; None: it was taken. Raises as send_feedback where that would change nothing."""
    try:
        with _DIRECT.open(request, timeout=_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        with error:
            told = _told(error.read(_MAX_ANSWER_BYTES))
        if error.code in _AGAIN:
            return told
        raise (PermissionError if error.code == 401 else ValueError)(told) from None
    except (OSError, http.client.HTTPException) as error:
        return f"expected the rewards gateway at {request.full_url}, got {error}"


def _told(answer: bytes) -> str:
    """What the gateway said is wrong."""
    try:
        said = json.loads(answer)
        return str((said.get("error") or said["results"][0]["error"])["message"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return "the gateway refused it"
