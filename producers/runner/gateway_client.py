"""The runner's side of the LLM gateway: an attempt's begin and end.

In: rollout and attempt. Out: whether it began; the calls it made. Invariant: every wait is bounded; a gateway
that is away is asked again until then; each request bears the runner's credential, which no agent has. Failure:
UnavailableError, by which the attempt is aborted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import msgspec

from tracegrad.schemas.credentials import Holder, bearer, credential, runner_holder
from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.records.rollouts import RolloutRequest
from tracegrad.schemas.retry import retry_async

from .config import RunnerHandles

__all__ = ["ClosedCalls", "GatewayClient"]

_FORGOTTEN = 409
_CONNECT_TIMEOUT_S = 5.0
_BEGIN_TIMEOUT_S = 120.0
"""How long an attempt waits for a gateway that is away before it is aborted."""
_END_TIMEOUT_S = 150.0
"""How long the end of an attempt waits for the gateway, calls in flight included."""
_PASSING = (aiohttp.ClientError, TimeoutError, OverloadedError)


class ClosedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway tells of an attempt that has ended."""

    calls: list[dict[str, Any]] = []
    fault: int | None = None
    """The status (503) by which the last call ended; None when it was answered, or the agent was to blame."""
    was_waiting: bool = False
    """Its last call had no answer yet when the end came."""


class GatewayClient:
    """One per runner; many requests at once. Make it on the event loop that uses it."""

    def __init__(self, handles: RunnerHandles) -> None:
        self._handles = handles
        # Shorter than the gateway's keep-alive, so that it does not close a connection under a request.
        connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=4.0)
        headers = bearer(credential(handles.key, runner_holder(handles.run_hash)))
        timeout = aiohttp.ClientTimeout(sock_connect=_CONNECT_TIMEOUT_S)
        self._session = aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout)

    async def begin(self, request: RolloutRequest, attempt: str, host: Holder | None) -> None:
        """Tells the gateway what the attempt is for, and in which agent host it runs; None: in a command of its own.

        Raises UnavailableError.
        """
        body = {"policy": request.policy, "purpose": request.purpose.value, "host": host}
        await self._post("begin", request.rollout_id, attempt, body, _BEGIN_TIMEOUT_S)

    async def end(self, rollout: str, attempt: str) -> ClosedCalls:
        """Closes the attempt's calls and tells of them. Raises UnavailableError, also when the gateway forgot it."""
        answer = await self._post("end", rollout, attempt, {}, _END_TIMEOUT_S)
        try:
            return msgspec.json.decode(answer, type=ClosedCalls)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"expected the LLM gateway's list of calls, got another answer: {error}") from error

    async def _post(
        self, action: str, rollout: str, attempt: str, body: dict[str, str | None], timeout_s: float
    ) -> bytes:
        """The answer. Connection errors, 429 and 5xx are tried again."""
        url = f"{self._handles.llm_url.rstrip('/')}/rollout/{rollout}/attempt/{attempt}/{action}"

        async def once() -> bytes:
            async with self._session.post(url, json=body) as response:
                data = await response.read()
            if response.status < 300:
                return data
            if response.status == _FORGOTTEN:
                raise UnavailableError("the LLM gateway does not know this attempt; it was restarted")
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
        await self._session.close()
