"""Turns messages into ids and sampled ids into a message, by the engine's own template and parser over HTTP.

In: the chat request. Out: the ids of its messages; later the parsed message. The engine's render is asked for ids
only; its sampling parameters are dropped, except the grammar that it derives from `response_format`, `tool_choice`
and the like. Failure: EngineRefusal for a request that the template refuses.
"""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import EngineRefusal, UnavailableError

from ..answer import ParsedMessage
from ..api.chat_request import ChatRequest, Message
from ..engines.client import DERENDER, DETOKENIZE, RENDER, EngineClient, Waits
from .chat_form import chat_form

__all__ = ["RENDER_TIMEOUT_S", "EngineRenderer", "Rendered", "Renderer", "Sampled"]

T = TypeVar("T")
RENDER_TIMEOUT_S = 30.0
_PROBE = (Message(role="user", content="x"),)


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation."""

    ids: list[int]
    constraint: Any = None
    """The grammar that the request asks for; None when it asks for none."""


class Sampled(NamedTuple):
    """What an engine sampled, as far as it is said to the agent."""

    prompt_ids: list[int]
    ids: list[int]
    """Without the terminal token; not empty."""
    logprobs: list[float] | None = None
    """None: the agent wants none."""


class Renderer(Protocol):
    """Template, tokenizer and parser of a policy."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""

    async def parse(self, request: ChatRequest, sampled: Sampled, waits: Waits) -> ParsedMessage:
        """The message that sampled ids say, and their logprobs in its words."""


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
    choices: Annotated[list[_Choice], Meta(min_length=1)]


class _DetokenizeAnswer(msgspec.Struct):
    prompt: str


_RENDER_ANSWER = msgspec.json.Decoder(_RenderAnswer)
_DETOKENIZE_ANSWER = msgspec.json.Decoder(_DetokenizeAnswer)
_DERENDER_ANSWER = msgspec.json.Decoder(_DerenderAnswer)


class EngineRenderer:
    """Renders and parses over the engines' HTTP API."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """See Renderer."""
        body = chat_form(request, with_grammar=to_generate)
        if not to_generate:
            body["add_generation_prompt"] = False
            if body.get("tool_choice") not in (None, "none"):
                body["tool_choice"] = "auto"
        rendered = await self._ask(RENDER, body, waits, _RENDER_ANSWER)
        constraint = rendered.sampling_params.structured_outputs
        return Rendered(ids=rendered.token_ids, constraint=constraint)

    async def parse(self, request: ChatRequest, sampled: Sampled, waits: Waits) -> ParsedMessage:
        """See Renderer."""
        said = None
        if sampled.logprobs is not None:
            pairs = zip(sampled.ids, sampled.logprobs, strict=True)
            said = {"content": [{"token_id": token, "logprob": value} for token, value in pairs]}
        choice = {"index": 0, "token_ids": sampled.ids, "logprobs": said, "finish_reason": "stop"}
        body = {
            # Parsers look at the prompt to see whether reasoning is still open; messages they do not read.
            "generate_response": {
                "request_id": "derender",
                "choices": [choice],
                "prompt_token_ids": sampled.prompt_ids,
            },
            "chat_request": chat_form(msgspec.structs.replace(request, messages=_PROBE), with_grammar=False),
        }
        try:
            parsed = (await self._ask(DERENDER, body, waits, _DERENDER_ANSWER)).choices[0]
        except EngineRefusal:
            # A parser may fail on what a model may well sample (half an escape in its JSON): it is plain text then.
            text = await self._ask(DETOKENIZE, {"tokens": sampled.ids}, waits, _DETOKENIZE_ANSWER)
            return ParsedMessage(content=text.prompt)
        message = parsed.message
        return ParsedMessage(
            content=message.content,
            reasoning=message.reasoning,
            tool_calls=tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ()),
            logprobs=parsed.logprobs,
        )

    async def _ask(self, path: str, body: Any, waits: Waits, decoder: msgspec.json.Decoder[T]) -> T:
        answer, engine = await self._client.post(path, body, waits, timeout_s=RENDER_TIMEOUT_S)
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"engine {engine.id}: {path} gave an answer of another shape: {error}") from error
