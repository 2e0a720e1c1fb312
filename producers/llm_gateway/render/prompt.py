"""The ids to sample from: a request's messages rendered, with the ids that were sampled before spliced in.

In: a ChatRequest, the episode's SpliceHistory, a Renderer. Out: a Prompt and the grammar that the request asks for.
Failure: the renderer's.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from tracegrad.schemas.errors import EngineRefusal

from ..api.chat_request import ChatRequest, Message
from ..engines.client import Waits
from ..splice import Prompt, SpliceHistory, end_of_turn, splice, whole
from .chat_form import splice_context
from .engine_render import Renderer

__all__ = ["EndOfTurn", "build_prompt"]

_ASK = Message(role="user", content="x")


class EndOfTurn:
    """The template's end-of-turn token, found once by rendering two answers that differ."""

    def __init__(self) -> None:
        self._token: int | None = None
        self._is_found = False
        self.terminals: list[int] = []
        """Tokens that ended sampled answers, the last few."""

    def saw(self, terminal: int) -> None:
        """Notes a token that ended a sampled answer."""
        if terminal not in self.terminals:
            self.terminals = [*self.terminals[-7:], terminal]

    async def find(self, renderer: Renderer, waits: Waits) -> int | None:
        """The token, or None for a template that ends an assistant's turn by nothing."""
        if not self._is_found:
            answers = [Message(role="assistant", content=content) for content in ("a", "b")]
            probes = [ChatRequest(messages=(_ASK, answer)) for answer in answers]
            try:
                one, other = await asyncio.gather(*(renderer.ids(probe, waits, to_generate=False) for probe in probes))
                self._token = end_of_turn(one.ids, other.ids, self.terminals)
            except EngineRefusal:
                # A template that refuses the probe; what has ended an answer so far is the best knowledge.
                return self.terminals[-1] if self.terminals else None
            self._is_found = True
        return self._token


async def build_prompt(
    renderer: Renderer, ends: EndOfTurn, history: SpliceHistory, request: ChatRequest, waits: Waits
) -> tuple[Prompt, Any]:
    """The prompt of a request with the stored ids spliced in, and the grammar it asks for."""
    match = history.match(splice_context(request), request.messages)
    if match.turn is None:
        rendered = await renderer.ids(request, waits)
        return whole(rendered.ids, kind=match.kind, reason=match.reason), rendered.constraint
    token = await ends.find(renderer, waits)
    turn = msgspec.structs.replace(request, messages=request.messages[: match.position + 1])
    full, up_to = await asyncio.gather(renderer.ids(request, waits), renderer.ids(turn, waits, to_generate=False))
    return splice(match, up_to.ids, full.ids, token), full.constraint
