"""Trying again."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

import pytest

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.retry import retry, retry_async


def failing(times: int, error: Exception) -> Callable[[], int]:
    """A call that fails so often, and then tells how often it was called."""
    calls = iter(range(times + 1))

    def call() -> int:
        number = next(calls)
        if number < times:
            raise error
        return number + 1

    return call


def test_what_another_try_may_cure_is_tried_again() -> None:
    """Any of the errors named; its answer is the call's."""
    assert retry(failing(3, UnavailableError("away")), doing="it", first_s=0.001) == 4

    async def call() -> int:
        answer = failing(2, OverloadedError("full"))

        async def once() -> int:
            return answer()

        return await retry_async(once, doing="it", on=(UnavailableError, OverloadedError), first_s=0.001)

    assert asyncio.run(call()) == 3


def test_a_call_that_only_returns_a_coroutine_is_awaited_and_tried_again() -> None:
    """A lambda, as the runner's gateway client hands in: its errors come when it is awaited."""
    answer = failing(2, OverloadedError("full"))

    async def once() -> int:
        return answer()

    assert asyncio.run(retry_async(lambda: once(), doing="it", on=OverloadedError, first_s=0.001)) == 3


def test_other_errors_pass_at_once() -> None:
    """They are not for this call to cure."""
    with pytest.raises(ValueError, match="wrong"):
        retry(failing(1, ValueError("wrong")), doing="it")


def test_so_many_tries_and_no_more() -> None:
    """The last one's error is the call's."""
    assert retry(failing(2, UnavailableError("away")), doing="it", first_s=0.001, max_tries=3) == 3
    with pytest.raises(UnavailableError, match="away"):
        retry(failing(3, UnavailableError("away")), doing="it", first_s=0.001, max_tries=3)


def test_patience_and_stop_end_the_tries_with_the_last_error() -> None:
    """No pause begins that would end after the patience; a stop ends the pause itself."""
    with pytest.raises(UnavailableError, match="away"):
        retry(failing(9, UnavailableError("away")), doing="it", patience_s=1.0, first_s=5.0)
    stop = threading.Event()
    threading.Timer(0.02, stop.set).start()
    with pytest.raises(UnavailableError, match="away"):
        retry(failing(9, UnavailableError("away")), doing="it", stop=stop, first_s=5.0)


def test_the_same_failure_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """And the next one that differs."""
    errors = iter(["away", "away", "away", "full", "full"])

    def call() -> int:
        text = next(errors, None)
        if text is not None:
            raise UnavailableError(text)
        return 1

    caplog.set_level(logging.DEBUG, "tracegrad.schemas.retry")
    assert retry(call, doing="it", first_s=0.001, quiet_s=-1.0) == 1
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert told == ["it failed, trying again: away", "it failed, trying again: full"]
    assert len(caplog.records) == 5


def test_patience_counts_from_the_first_try_in_an_event_loop_too() -> None:
    """What a slow first try used up is not there for a second one."""
    num_tries = 0

    async def slow() -> None:
        nonlocal num_tries
        num_tries += 1
        await asyncio.sleep(0.02)
        raise UnavailableError("away")

    async def call() -> None:
        await retry_async(slow, doing="it", patience_s=0.02, first_s=0.001)

    with pytest.raises(UnavailableError, match="away"):
        asyncio.run(call())
    assert num_tries == 1
