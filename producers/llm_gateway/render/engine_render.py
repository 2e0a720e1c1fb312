"""Turns messages into ids and sampled ids into a message, by the engine's own template and parser over HTTP.

In: the chat request. Out: the prompt's ids, with the stored ids spliced in; later the parsed message. The engine's
render is asked for ids only; its sampling parameters are dropped, except the grammar that it derives from
`response_format`, `tool_choice` and the like. Failure: EngineRefusal for a request that the template refuses.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tracegrad.schemas.errors import EngineRefusal, UnavailableError

from ..api.answer import ParsedMessage
from ..engines.client import DERENDER, DETOKENIZE, RENDER, EngineClient
from ..splice import Prompt, SpliceHistory, end_of_turn, splice, whole

__all__ = [
    "EndOfTurn",
    "EngineRenderer",
    "Rendered",
    "Renderer",
    "Waits",
    "build_prompt",
    "chat_fields",
    "splice_context",
    "waits_until",
]

_TEMPLATE_FIELDS = ("tools", "tool_choice", "chat_template_kwargs", "documents", "reasoning_effort")
_GRAMMAR_FIELDS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip
_PROBE = {"role": "user", "content": "x"}


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation."""

    ids: list[int]
    constraint: Any = None
    """The grammar that the request asks for; None when it asks for none."""


class Waits(msgspec.Struct, frozen=True, kw_only=True):
    """Where to send a call's requests, and for how long."""

    sticky: int
    deadline: float
    """By `time.monotonic()`."""


class Renderer(Protocol):
    """Template, tokenizer and parser of a policy."""

    async def ids(
        self, fields: dict[str, Any], messages: Sequence[Any], waits: Waits, *, to_generate: bool = True
    ) -> Rendered:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""

    async def parse(
        self, fields: dict[str, Any], prompt_ids: list[int], ids: list[int], waits: Waits, *, logprobs: Any = None
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

    async def ids(
        self, fields: dict[str, Any], messages: Sequence[Any], waits: Waits, *, to_generate: bool = True
    ) -> Rendered:
        """See Renderer."""
        body = {**fields, "messages": messages}
        if not to_generate:
            body = {name: value for name, value in body.items() if name not in _GRAMMAR_FIELDS}
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
        self, fields: dict[str, Any], prompt_ids: list[int], ids: list[int], waits: Waits, *, logprobs: Any = None
    ) -> ParsedMessage:
        """See Renderer."""
        choice = {"index": 0, "token_ids": ids, "logprobs": logprobs, "finish_reason": "stop"}
        chat = {name: value for name, value in fields.items() if name not in _GRAMMAR_FIELDS}
        body = {
            # Parsers look at the prompt to see whether reasoning is still open; messages they do not read.
            "generate_response": {"request_id": "derender", "choices": [choice], "prompt_token_ids": prompt_ids},
            "chat_request": {**chat, "messages": [_PROBE]},
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
        answer, _ = await self._client.post(
            path, body, sticky=waits.sticky, deadline=waits.deadline, timeout_s=self._timeout_s
        )
        return answer


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
            answers = [{"role": "assistant", "content": content} for content in ("a", "b")]
            try:
                one, other = await asyncio.gather(
                    *(renderer.ids({}, [_PROBE, answer], waits, to_generate=False) for answer in answers)
                )
                self._token = end_of_turn(one.ids, other.ids, self.terminals)
            except EngineRefusal:
                # A template that refuses the probe; what has ended an answer so far is the best knowledge.
                return self.terminals[-1] if self.terminals else None
            self._is_found = True
        return self._token


async def build_prompt(
    renderer: Renderer, ends: EndOfTurn, history: SpliceHistory, request: dict[str, Any], waits: Waits
) -> tuple[Prompt, Any]:
    """The prompt of a request with the stored ids spliced in, and the grammar it asks for."""
    fields, messages = chat_fields(request), request["messages"]
    match = history.match(splice_context(fields), messages)
    if match.turn is None:
        rendered = await renderer.ids(fields, messages, waits)
        return whole(rendered.ids, kind=match.kind, reason=match.reason), rendered.constraint
    token = await ends.find(renderer, waits)
    full, up_to = await asyncio.gather(
        renderer.ids(fields, messages, waits),
        renderer.ids(fields, messages[: match.position + 1], waits, to_generate=False),
    )
    return splice(match, up_to.ids, full.ids, token), full.constraint


def chat_fields(request: dict[str, Any]) -> dict[str, Any]:
    """What of a request the template and the parser see, besides the messages."""
    return {name: request[name] for name in (*_TEMPLATE_FIELDS, *_GRAMMAR_FIELDS) if request.get(name) is not None}


def splice_context(fields: dict[str, Any]) -> dict[str, Any]:
    """What of the fields decides the rendered prompt; a grammar or a forced tool does not."""
    context = {name: fields[name] for name in _TEMPLATE_FIELDS if name in fields and name != "tool_choice"}
    if fields.get("tool_choice") == "none":
        context["tool_choice"] = "none"
    return context


def waits_until(sticky: int, wait_s: float) -> Waits:
    """Waits of a call that begins now."""
    return Waits(sticky=sticky, deadline=time.monotonic() + wait_s)
