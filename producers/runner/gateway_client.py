"""The runner's side of the LLM gateway: an attempt's begin and end.

In: rollout and attempt. Out: whether it began; the calls it made; that another process of the gateway answers, which
knows none of the attempts that are open. Invariant: every wait is bounded; a gateway that is away is asked again until
then; each request bears the runner's credential, which no agent has. Failure: UnavailableError, by which the attempt is
aborted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any, TypeVar

import aiohttp
import msgspec

from tracegrad.schemas.credentials import Holder, bearer, credential, runner_holder
from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.records.rollouts import RolloutRequest
from tracegrad.schemas.retry import retry_async

from .config import RunnerHandles

_FORGOTTEN = (409, 410)
_CONNECT_TIMEOUT_S = 5.0
_BEGIN_TIMEOUT_S = 120.0
"""How long an attempt waits for a gateway that is away before it is aborted."""
_END_TIMEOUT_S = 150.0
"""How long the end of an attempt waits for the gateway, calls in flight included."""
_PASSING = (aiohttp.ClientError, TimeoutError, OverloadedError)

T = TypeVar("T")

logger = logging.getLogger(__name__)


class _Process(msgspec.Struct, frozen=True, kw_only=True):
    """What `/begin` and `/health` tell."""

    gateway: str = ""
    """Which process answers."""


class ClosedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway tells of an attempt that has ended."""

    calls: list[dict[str, Any]] = []
    fault: int | None = None
    """The status (503) by which the last call ended; None when it was answered, or the agent was to blame."""
    was_waiting: bool = False
    """Its last call had no answer yet when the end came."""


class GatewayClient:
    """One per runner; many requests at once. Make it on the event loop that uses it.

    Args:
        watch_s: how often the gateway is asked which process it is.
    """

    def __init__(self, handles: RunnerHandles, *, watch_s: float = 1.0) -> None:
        self._handles = handles
        self._watch_s = watch_s
        # Shorter than the gateway's keep-alive, so that it does not close a connection under a request.
        connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=4.0)
        headers = bearer(credential(handles.key, runner_holder(handles.run_hash)))
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)
        self._replaced: dict[str, asyncio.Event] = {}
        """A process of the gateway at which attempts began -> set once another one answers."""
        self._watching = asyncio.create_task(self._watch())

    async def begin(self, request: RolloutRequest, attempt: str, host: Holder | None) -> asyncio.Event:
        """Tells the gateway what the attempt is for, and in which agent host it runs; None: in a command of its own.

        Returns what is set once another process of the gateway answers, which does not know the attempt. Raises
        UnavailableError.
        """
        body: dict[str, Any] = {"policy": request.policy, "purpose": request.purpose.value, "host": host}
        answer = await self._post("begin", request.rollout_id, attempt, body, _BEGIN_TIMEOUT_S)
        return self._replaced.setdefault(_decode(answer, _Process).gateway, asyncio.Event())

    async def end(self, rollout: str, attempt: str) -> ClosedCalls:
        """Closes the attempt's calls and tells of them. Raises UnavailableError, also when the gateway forgot it."""
        answer = await self._post("end", rollout, attempt, {}, _END_TIMEOUT_S)
        if answer is None:
            await self._look()
        return _decode(answer, ClosedCalls)

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self._watch_s)
            await self._look()

    async def _look(self) -> None:
        """Asks which process answers; the attempts that began at another one learn that it is gone."""
        with contextlib.suppress(*_PASSING, msgspec.MsgspecError):
            async with asyncio.timeout(_CONNECT_TIMEOUT_S), self._session.get(self._url("/health")) as response:
                now = msgspec.json.decode(await response.read(), type=_Process).gateway
            for gone in self._replaced.keys() - {now}:
                logger.info("another LLM gateway process answers: the open attempts are aborted and made again")
                self._replaced.pop(gone).set()

    def _url(self, path: str) -> str:
        return self._handles.llm_url.rstrip("/") + path

    async def _post(
        self, action: str, rollout: str, attempt: str, body: dict[str, Any], timeout_s: float
    ) -> bytes | None:
        """The answer; None: it does not know the attempt, or not any more. Connection errors, 429 and 5xx are tried
        again."""
        url = self._url(f"/rollout/{rollout}/attempt/{attempt}/{action}")

        async def once() -> bytes | None:
            async with self._session.post(url, json=body) as response:
                data = await response.read()
            if response.status < 300:
                return data
            if response.status in _FORGOTTEN:
                return None
            if response.status < 500 and response.status != 429:
                raise UnavailableError(f"the LLM gateway refused {action}: status {response.status}")
            raise OverloadedError(f"status {response.status}")

        try:
            async with asyncio.timeout(timeout_s):
                return await retry_async(
                    once,
                    doing=f"{action} at the LLM gateway",
                    on=_PASSING,
                    patience_s=timeout_s,
                    first_s=0.1,
                    max_s=1.0,
                )
        except _PASSING as error:
            failure = str(error) if isinstance(error, OverloadedError) else type(error).__name__
            raise UnavailableError(f"the LLM gateway was away for {timeout_s:g} s ({failure})") from error

    async def close(self) -> None:
        """Releases the connections."""
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self._session.close()


def _decode(answer: bytes | None, type_: type[T]) -> T:
    """Raises UnavailableError."""
    if answer is None:
        raise UnavailableError("the LLM gateway does not know this attempt (was it restarted?)")
    try:
        return msgspec.json.decode(answer, type=type_)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"expected the LLM gateway's answer, got another: {error}") from error
