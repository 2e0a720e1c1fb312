"""Reads an answer that an engine streams, and tells of its ids as they come.

In: vLLM's server-sent events of a generate request: chunks with the ids sampled since the last one and their logprobs,
in the last one the finish reason and the labels. Out: one choice, equal to that of an answer that is not streamed.
Failure: UnavailableError for a stream that ends or is worded otherwise, and for what the engine says has failed within
it; EngineRefusal for what it says is the request's fault.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import aiohttp
import msgspec

from tracegrad.schemas.errors import UnavailableError

from ..config import EngineRef
from .client import fault
from .engine import Choice, Hearer, Logprobs

GENERATE = "/inference/v1/generate"

_DONE = b"[DONE]"


class _Fault(msgspec.Struct):
    code: int = 500


class _Chunk(msgspec.Struct):
    choices: list[Choice] = []
    error: _Fault | None = None


_CHUNK: msgspec.json.Decoder[_Chunk] = msgspec.json.Decoder(_Chunk)


async def read_stream(engine: EngineRef, response: aiohttp.ClientResponse, hearer: Hearer | None) -> Choice:
    """The whole answer, once it is here."""
    whole = Choice(token_ids=[], logprobs=Logprobs(content=[]))
    if hearer is not None:
        hearer.restart()
    async for data in _events(response):
        part = _part(engine, data)
        whole.token_ids += part.token_ids
        whole.logprobs.content += part.logprobs.content
        if part.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
            whole.weight_versions = part.weight_versions
            return whole
        if hearer is not None:
            hearer.hear(part.token_ids)
    raise UnavailableError(f"engine {engine.id}: the answer broke off after {len(whole.token_ids)} tokens")


def _part(engine: EngineRef, data: bytes) -> Choice:
    try:
        chunk = _CHUNK.decode(data)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"engine {engine.id}: a stream of another shape: {error}") from error
    if chunk.error is not None:
        raise fault(engine, GENERATE, chunk.error.code, data)
    if len(chunk.choices) != 1:
        raise UnavailableError(f"engine {engine.id}: expected one choice in each chunk, got {len(chunk.choices)}")
    return chunk.choices[0]


async def _events(response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The data of each event. Not by lines, which aiohttp bounds: a chunk may hold all that a slow reader missed."""
    rest = b""
    async for piece in response.content.iter_any():
        *whole, rest = (rest + piece).split(b"\n\n")
        for event in whole:
            data = event.removeprefix(b"data: ")
            if data != _DONE:
                yield data
