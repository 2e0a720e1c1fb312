"""A scripted answer as vLLM streams it: a chunk for each token, the finish reason and the labels in the last one."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any


class EngineFault(Exception):
    """Raised by a policy: the engine answers this generation with that status."""

    def __init__(self, status: int) -> None:
        super().__init__(status)
        self.status = status


async def stream_of(
    choice: dict[str, Any], before_token: Callable[[int], Awaitable[None]] | None
) -> AsyncIterator[str]:
    """The server-sent events."""
    last = len(choice["token_ids"]) - 1
    for i, (token, entry) in enumerate(zip(choice["token_ids"], choice["logprobs"]["content"], strict=True)):
        try:
            if before_token is not None:
                await before_token(i)
        except EngineFault as fault:
            if fault.status:
                error = {"message": "scripted fault", "type": "BadRequestError", "param": None, "code": fault.status}
                yield f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n\n"
            return
        ending = ("finish_reason", "stop_reason", "weight_versions")
        part = {"index": 0, "token_ids": [token], "logprobs": {"content": [entry]}}
        part |= {name: choice[name] if i == last else None for name in ending}
        yield f"data: {json.dumps({'request_id': '', 'choices': [part], 'usage': None})}\n\n"
    yield "data: [DONE]\n\n"
