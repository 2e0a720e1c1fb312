"""The runner's side of the LLM gateway: an attempt's begin and end.

In: rollout and attempt. Out: whether it began; the calls it made. Invariant: every wait is bounded; a gateway
that is away is asked again until then. Failure: UnavailableError, by which the attempt is aborted.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import msgspec

from tracegrad.schemas.errors import OverloadedError, UnavailableError
from tracegrad.schemas.records.rollouts import RolloutRequest
from tracegrad.schemas.retry import retry_async

__all__ = ["ClosedCalls", "GatewayClient"]

_FORGOTTEN = 409
_CONNECT_TIMEOUT_S = 5.0


class ClosedCalls(msgspec.Struct, frozen=True, kw_only=True):
    """What the gateway tells of an attempt that has ended."""

    calls: list[dict[str, Any]] = []
    fault: int | None = None
    """The status (5xx) by which the last call ended; None when it was answered, or the agent was to blame."""


class GatewayClient:
    """One per runner; many requests at once. Make it on the event loop that uses it."""

    def __init__(self, url: str, *, begin_timeout_s: float, end_timeout_s: float, token: str | None = None) -> None:
        self._url = url.rstrip("/")
        self._begin_timeout_s = begin_timeout_s
        self._end_timeout_s = end_timeout_s
        # Shorter than the gateway's keep-alive, so that it does not close a connection under a request.
        connector = aiohttp.TCPConnector(limit=256, keepalive_timeout=4.0)
        headers = {"authorization": f"Bearer {token}"} if token else {}
        self._session = aiohttp.ClientSession(connector=connector, headers=headers)

    async def begin(self, request: RolloutRequest, attempt: str) -> None:
        """Tells the gateway what the attempt is for. Raises UnavailableError."""
        body = {"policy": request.policy, "purpose": request.purpose.value}
        await self._post(f"{self._path(request.rollout_id, attempt)}/begin", body, self._begin_timeout_s)

    async def end(self, rollout: str, attempt: str) -> ClosedCalls | None:
        """Closes the attempt's calls and tells of them; None when the gateway does not know the attempt.

        Raises UnavailableError.
        """
        answer = await self._post(f"{self._path(rollout, attempt)}/end", {}, self._end_timeout_s)
        if answer is None:
            return None
        try:
            return msgspec.convert(answer, ClosedCalls)
        except msgspec.ValidationError as error:
            raise UnavailableError(f"expected the LLM gateway's list of calls, got another answer: {error}") from error

    def _path(self, rollout: str, attempt: str) -> str:
        return f"{self._url}/rollout/{rollout}/attempt/{attempt}"

    async def _post(self, url: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any] | None:
        """The answer; None for 409. Connection errors, 429 and 5xx are tried again."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        action = url.rpartition("/")[2]
        try:
            return await retry_async(
                lambda: self._post_once(url, body, deadline),
                doing=f"{action} at the LLM gateway",
                on=(aiohttp.ClientError, TimeoutError, ValueError, OverloadedError),
                patience_s=timeout_s,
                first_s=0.1,
                max_s=1.0,
            )
        except (aiohttp.ClientError, TimeoutError, ValueError, OverloadedError) as error:
            failure = str(error) if isinstance(error, OverloadedError) else type(error).__name__
            raise UnavailableError(f"the LLM gateway was away for {timeout_s:g} s ({failure})") from error

    async def _post_once(self, url: str, body: dict[str, Any], deadline: float) -> dict[str, Any] | None:
        left_s = max(deadline - asyncio.get_running_loop().time(), 0.001)
        timeout = aiohttp.ClientTimeout(total=left_s, sock_connect=_CONNECT_TIMEOUT_S)
        async with self._session.post(url, json=body, timeout=timeout) as response:
            data = await response.read()
        if response.status == _FORGOTTEN:
            return None
        if response.status < 300:
            answer: dict[str, Any] = json.loads(data)
            return answer
        if response.status < 500 and response.status != 429:
            raise UnavailableError(f"the LLM gateway refused {url.rpartition('/')[2]}: status {response.status}")
        raise OverloadedError(f"status {response.status}")

    async def close(self) -> None:
        """Releases the connections."""
        await self._session.close()
