"""Scores that people give on the page, handed to the run's own rewards gateway as any other program's.

In: a run with `[feedback]`, a rating. Out: POST /v1/rewards with the run's reward token, which the browser never sees,
and what the gateway says became of it. Invariants: no proxy is used; every wait is bounded. Failure: RequestError for
what the gateway refused, UnavailableError where it is away.
"""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.consumers.page.board import Rater, Rating
from tracegrad.producers.client.feedback import send_feedback
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.schemas.errors import RequestError, UnavailableError
from tracegrad.schemas.text import decode_json

from ..run.wiring import Wiring

_TIMEOUT_S = 3.0
_MAX_ANSWER_BYTES = 1024 * 1024
_EXPECTED = "expected what became of it from the rewards gateway"
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def rater_of(wiring: Wiring) -> Rater | None:
    """None: the run takes no feedback."""
    config, url = wiring.settings.feedback, wiring.endpoints.feedback_url
    if config is None or not url:
        return None
    return rater_at(url, wiring.feedback_token, config, is_trained_on=wiring.settings.select.train)


def rater_at(url: str, token: str, config: FeedbackConfig, *, is_trained_on: bool, patience_s: float = 5.0) -> Rater:
    """By the gateway at `url`, which may be away for `patience_s`; `token` is the run's reward token."""

    def send(rating: Rating) -> None:
        try:
            send_feedback(
                **rating.target,
                value=rating.value,
                name=rating.name,
                reason=rating.reason or None,
                idempotency_key=rating.key,
                url=url,
                token=token,
                patience_s=patience_s,
            )
        except (ValueError, PermissionError) as error:
            raise RequestError(str(error), status=400) from error
        except ConnectionError as error:
            raise UnavailableError(f"the rewards gateway did not take it in time, send it again: {error}") from error

    return Rater(
        names={name: (one.low, one.high) for name, one in config.names.items()},
        is_trained_on=is_trained_on,
        wait_s=config.wait_s,
        send=send,
        receipts=lambda key: _receipts(url, token, key),
    )


def _receipts(url: str, token: str, key: str) -> Sequence[Mapping[str, Any]]:
    request = urllib.request.Request(f"{url}/v1/rewards/{key}", headers={"authorization": f"Bearer {token}"})
    try:
        with _DIRECT.open(request, timeout=_TIMEOUT_S) as answer:
            found = decode_json(answer.read(_MAX_ANSWER_BYTES).decode())
    except urllib.error.HTTPError as error:
        error.close()  # it holds the connection
        if error.code == 404:
            return []
        raise UnavailableError(f"{_EXPECTED}, got {error}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(f"{_EXPECTED}, got {error}") from error
    pieces = found.get("pieces") if isinstance(found, dict) else None
    return [one for one in pieces if isinstance(one, dict)] if isinstance(pieces, list) else []
