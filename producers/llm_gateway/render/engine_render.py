"""Turns messages into ids and sampled ids into a message, by the engine's own template and parser over HTTP.

In: the chat request. Out: the ids of its messages; later the parsed message. The engine's render is asked for ids
only; its sampling parameters are dropped, except the grammar that it derives from `response_format`, `tool_choice`
and the like. Failure: EngineRefusal for a request that the template refuses.
"""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from tracegrad.schemas.errors import EngineRefusal, UnavailableError

from ..answer import ParsedMessage
from ..api.chat_request import ChatRequest, Message
from ..engines.client import DERENDER, DETOKENIZE, RENDER, EngineClient, Waits
from .chat_form import chat_form

__all__ = ["EngineRenderer", "Rendered", "Renderer"]

_PROBE = (Message(role="user", content="x"),)


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation."""

    ids: list[int]
    constraint: Any = None
    """The grammar that the request asks for; None when it asks for none."""


class Renderer(Protocol):
    """Template, tokenizer and parser of a policy."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], ids: list[int], waits: Waits, *, logprobs: Any = None
    ) -> ParsedMessage:
        """The message that sampled ids (not empty, no terminal token) say."""


class _Chosen(msgspec.Struct):
    structured_outputs: Any = None


class _RenderAnswer(msgspec.Struct):
    token_ids: list[int]
    sampling_params: _Chosen = msgspec.field(default_factory=_Chosen)


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct):
    message: _Message
    logprobs: Any = None


class _DerenderAnswer(msgspec.Struct):
    choices: list[_Choice]


class _DetokenizeAnswer(msgspec.Struct):
    prompt: str


_RENDER_ANSWER = msgspec.json.Decoder(_RenderAnswer)
_DETOKENIZE_ANSWER = msgspec.json.Decoder(_DetokenizeAnswer)
_DERENDER_ANSWER = msgspec.json.Decoder(_DerenderAnswer)


class EngineRenderer:
    """Renders and parses over the engines' HTTP API."""

    def __init__(self, client: EngineClient, *, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """See Renderer."""
        body = chat_form(request, with_grammar=to_generate)
        if not to_generate:
            body["add_generation_prompt"] = False
            if body.get("tool_choice") not in (None, "none"):
                body["tool_choice"] = "auto"
        answer = await self._post(RENDER, body, waits)
        try:
            rendered = _RENDER_ANSWER.decode(answer)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"expected the engine's render answer, got {error}") from error
        constraint = rendered.sampling_params.structured_outputs
        return Rendered(ids=rendered.token_ids, constraint=constraint)

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], ids: list[int], waits: Waits, *, logprobs: Any = None
    ) -> ParsedMessage:
        """See Renderer."""
        choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
        body = {
            # Parsers look at the prompt to see whether reasoning is still open; messages they do not read.
            "generate_response": {"request_id": "derender", "choices": [choice], "prompt_token_ids": prompt_ids},
            "chat_request": chat_form(msgspec.structs.replace(request, messages=_PROBE), with_grammar=False),
        }
        try:
            answer = await self._post(DERENDER, body, waits)
        except EngineRefusal:
            return await self._as_text(ids, waits)
        try:
            parsed = _DERENDER_ANSWER.decode(answer).choices[0]
        except (msgspec.MsgspecError, IndexError) as error:
            raise UnavailableError(f"expected the engine's derender answer, got {error}") from error
        message = parsed.message
        return ParsedMessage(
            content=message.content,
            reasoning=message.reasoning,
            tool_calls=tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ()),
            logprobs=parsed.logprobs,
        )

    async def _as_text(self, ids: list[int], waits: Waits) -> ParsedMessage:
        """Plain text, where the parser fails on what a model may well sample (half an escape in its JSON)."""
        answer = await self._post(DETOKENIZE, {"tokens": ids}, waits)
        try:
            return ParsedMessage(content=_DETOKENIZE_ANSWER.decode(answer).prompt)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"expected the engine's detokenize answer, got {error}") from error

    async def _post(self, path: str, body: Any, waits: Waits) -> bytes:
        answer, _ = await self._client.post(path, body, waits, timeout_s=self._timeout_s)
        return answer
