"""One request to a source, with its key, and the answer as a record.

In: a path, a query or a body. Out: the answer, of the type that the reader expects. Invariants: the key goes to the
settings' address alone, for no redirect is followed, and into no error; bytes, time and the number of requests of a
reading are bounded before they are spent. Failure: SourceError with a reason for the counter.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeVar

import aiohttp
import msgspec

from tracegrad.schemas.errors import SourceError

from ..config import SourceConfig
from .found import Query

__all__ = ["Asking"]

T = TypeVar("T")
MAX_REQUESTS = 300
"""Of one reading. What begins with the newest has these."""
MAX_BYTES = 16 * 1024 * 1024
"""Of one answer."""
_TIMEOUT = aiohttp.ClientTimeout(total=30.0, sock_connect=10.0)


class Asking:
    """The requests of one reading of one source."""

    def __init__(self, http: aiohttp.ClientSession, source: SourceConfig, key: str | None) -> None:
        self._http = http
        self._source = source
        self._headers = {"accept": "application/json", "accept-encoding": "identity"} | _shown(key)
        self._num_left = MAX_REQUESTS

    async def __call__(
        self, answer: type[T], path: str, *, query: Query = (), body: Mapping[str, Any] | None = None
    ) -> T:
        """The answer. Raises SourceError."""
        if self._num_left == 0:
            raise SourceError(f"has more than {MAX_REQUESTS} pages; make look_back_s shorter", reason="pages")
        self._num_left -= 1
        try:
            data = await self._bytes(path, query, body)
        except TimeoutError as error:
            raise SourceError("did not answer in time", reason="timeout") from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            if isinstance(error, SourceError):
                raise
            raise SourceError(f"gave {type(error).__name__}") from error
        try:
            return msgspec.json.decode(data, type=answer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise SourceError(f"expected JSON as {path.split('?')[0]} gives it, got another", reason="form") from error

    async def _bytes(self, path: str, query: Query, body: Mapping[str, Any] | None) -> bytes:
        url = self._source.url.rstrip("/") + path
        async with self._http.request(
            "GET" if body is None else "POST",
            url,
            params=list(query),
            json=body,
            headers=self._headers,
            timeout=_TIMEOUT,
            allow_redirects=False,
        ) as response:
            if response.status != 200:
                raise SourceError(f"answered {response.status}{_hint(response.status)}", reason=str(response.status))
            data = bytearray()
            async for piece in response.content.iter_any():
                data += piece
                if len(data) > MAX_BYTES:
                    raise SourceError(f"gave an answer of more than {MAX_BYTES >> 20} MiB", reason="too_large")
            return bytes(data)


def _shown(key: str | None) -> dict[str, str]:
    if not key:
        return {}
    if ":" in key:
        return {"authorization": f"Basic {base64.b64encode(key.encode()).decode()}"}
    return {"authorization": f"Bearer {key}"}


def _hint(status: int) -> str:
    if 300 <= status < 400:
        return "; no redirect is followed: set url to where it leads"
    hints = {401: "; see api_key_env", 403: "; see api_key_env", 404: "; see url and project", 429: "; see every_s"}
    return hints.get(status, "")
