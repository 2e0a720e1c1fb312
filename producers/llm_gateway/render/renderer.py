"""What renders prompts and reads answers for a policy: its engine, or what may stand before it (local_render.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..api.chat_request import ChatRequest
from ..engines.engine import ParsedMessage, RenderedIds, SampledIds, Waits
from .live import LiveText


class Renderer(Protocol):
    """Template, tokenizer and parser of a policy; an Engine is one."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """The ids of a conversation, with a generation prompt, however many; also more than the engine would take."""

    async def parse(self, request: ChatRequest, sampled: SampledIds, waits: Waits) -> ParsedMessage:
        """The message that sampled ids say, and their logprobs in its words."""

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText | None:
        """What reads an answer while it is sampled, as `parse` will; None: only the whole can be read."""
