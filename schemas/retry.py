"""Calls what may fail for a while, again and again with growing pauses: how to wait for broker, engine, gateway.

In: a call, the errors that another try may cure, how long to go on. Out: its answer. Invariant: pauses grow from
`first_s` to `max_s`, with a beat before each; `stop` ends them at once in a thread, within a pause in an event loop.
Failure: the last error, once patience is over or `stop` is set. `retry` costs 70 to 130 us beside what is called: not
for each record.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, Required, TypedDict, TypeVar, Unpack

import tenacity

from .beat import waiting
from .errors import UnavailableError

T = TypeVar("T")
Errors = type[Exception] | tuple[type[Exception], ...]

logger = logging.getLogger(__name__)
_AGAIN_S = 30.0
"""After it a failure that lasts is told once more."""
_QUIET_S = 1.0


class RetryOptions(TypedDict, total=False):
    """How a call is tried again."""

    doing: Required[str]
    """What is tried, for the log lines."""
    on: Errors
    """What another try may cure (UnavailableError, unless it says otherwise); other errors pass."""
    patience_s: float | None
    """No try begins after it; None: for ever."""
    stop: threading.Event | None
    """Ends the tries when set."""
    first_s: float
    """The first pause (0.2); each doubles."""
    max_s: float
    """The greatest pause (5)."""
    max_tries: int | None
    """No further one begins; None: as many as patience allows."""
    quiet_s: float
    """Failures within it (1) are told at DEBUG: what the next try cures soon is not worth a person's attention. So is
    one that was told, until another takes its place or half a minute has passed."""


def retry(call: Callable[[], T], **how: Unpack[RetryOptions]) -> T:
    """The call's answer. Blocks.

    Raises:
        Exception: the last try's error, one of `on`.
    """
    stop = how.get("stop")
    sleep = tenacity.sleep_using_event(stop) if stop is not None else tenacity.sleep
    return tenacity.Retrying(sleep=sleep, **_policy(**how))(call)


async def retry_async(call: Callable[[], Awaitable[T]], **how: Unpack[RetryOptions]) -> T:
    """`retry` in an event loop. A call that succeeds at once costs nothing besides."""
    began, failed = time.monotonic(), list[Exception]()
    try:
        return await call()
    except how.get("on", UnavailableError) as error:
        failed.append(error)

    async def again() -> T:
        if failed:
            raise failed.pop()
        return await call()

    # As if the first try were tenacity's own.
    spent_s, patience_s = time.monotonic() - began, how.get("patience_s")
    how["quiet_s"] = how.get("quiet_s", _QUIET_S) - spent_s
    if patience_s is not None:
        how["patience_s"] = patience_s - spent_s
    return await tenacity.AsyncRetrying(**_policy(**how))(again)


def _policy(
    doing: str,
    on: Errors = UnavailableError,
    patience_s: float | None = None,
    stop: threading.Event | None = None,
    first_s: float = 0.2,
    max_s: float = 5.0,
    max_tries: int | None = None,
    quiet_s: float = _QUIET_S,
) -> dict[str, Any]:
    ends: list[tenacity.stop.stop_base] = []
    if max_tries is not None:
        ends.append(tenacity.stop_after_attempt(max_tries))
    if patience_s is not None:
        ends.append(tenacity.stop_before_delay(patience_s))
    if stop is not None:
        ends.append(tenacity.stop_when_event_set(stop))

    told, told_s = "", 0.0

    def say(state: tenacity.RetryCallState) -> None:
        nonlocal told, told_s
        waiting(doing)
        error, passed_s = str(state.outcome.exception() if state.outcome else None), state.seconds_since_start or 0.0
        is_news = passed_s > quiet_s and (error != told or passed_s - told_s > _AGAIN_S)
        if is_news:
            told, told_s = error, passed_s
        logger.log(logging.WARNING if is_news else logging.DEBUG, "%s failed, trying again: %s", doing, error)

    return {
        "retry": tenacity.retry_if_exception_type(on),
        "wait": tenacity.wait_exponential(multiplier=first_s, max=max_s),
        "stop": tenacity.stop_any(*ends),
        "before_sleep": say,
        "reraise": True,
    }
