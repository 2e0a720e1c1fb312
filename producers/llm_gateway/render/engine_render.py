"""Turns messages into ids and sampled ids into a message, by the engine's own template and parser over HTTP.

In: the chat request. Out: the ids of its messages; later the parsed message. This is the one place that writes messages
and tools as chat templates read them; the shape is OpenAI's, by convention. What of a request may reach the engine is
listed here: its sampling parameters, and whatever else it says, never do. Of the render's answer only the ids count,
and the grammar that the engine derives from `response_format`, `tool_choice` and the like. Failure: EngineRefusal for
a request that the template refuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import EngineRefusal, UnavailableError

from ..api.chat_request import ChatRequest, Message, NamedTool, TextPart, Tool, ToolUse
from ..engines.client import DERENDER, DETOKENIZE, RENDER, TOKENIZE, EngineClient, Waits
from ..engines.stream import LogprobEntry
from .live import LiveText

__all__ = [
    "RENDER_TIMEOUT_S",
    "EngineRenderer",
    "ParsedMessage",
    "Rendered",
    "Renderer",
    "Sampled",
    "asks_grammar",
    "chat_form",
    "engine_fields",
    "message_form",
]

T = TypeVar("T")
RENDER_TIMEOUT_S = 30.0
_PROBE = (Message(role="user", content="x"),)
_TEMPLATE_FIELDS = ("chat_template_kwargs", "documents", "reasoning_effort")
_GRAMMAR_FIELDS = (
    "response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar",
)  # fmt: skip


class Rendered(msgspec.Struct, frozen=True, kw_only=True):
    """A rendered conversation."""

    ids: list[int]
    grammar: Any = None
    """The grammar that the request asks for; None when it asks for none."""


class Sampled(NamedTuple):
    """What an engine sampled, as far as it is said to the agent."""

    prompt_ids: list[int]
    ids: list[int]
    """Without the terminal token; not empty."""
    logprobs: list[LogprobEntry] | None = None
    """None: the agent wants none."""


class ParsedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What sampled ids say, by the model's template and tool parser."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)."""
    logprobs: Any = None
    """As the engine words them, when they were asked for."""


class Renderer(Protocol):
    """Template, tokenizer and parser of a policy."""

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> Rendered:
        """The ids of a conversation; `to_generate` adds the generation prompt and derives the grammar."""

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """The ids of a conversation, with a generation prompt, however many; also more than the engine would take."""

    async def parse(self, request: ChatRequest, sampled: Sampled, waits: Waits) -> ParsedMessage:
        """The message that sampled ids say, and their logprobs in its words."""

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText | None:
        """What reads an answer while it is sampled, as `parse` will; None: only the whole can be read."""


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


class _TokenizeAnswer(msgspec.Struct):
    tokens: list[int]


class _DetokenizeAnswer(msgspec.Struct):
    prompt: str


_RENDER_ANSWER = msgspec.json.Decoder(_RenderAnswer)
_DETOKENIZE_ANSWER = msgspec.json.Decoder(_DetokenizeAnswer)
_DERENDER_ANSWER = msgspec.json.Decoder(_DerenderAnswer)
_TOKENIZE_ANSWER = msgspec.json.Decoder(_TokenizeAnswer)


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
        return Rendered(ids=rendered.token_ids, grammar=rendered.sampling_params.structured_outputs)

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """See Renderer."""
        body = {**chat_form(request, with_grammar=False), "add_generation_prompt": True}
        return len((await self._ask(TOKENIZE, body, waits, _TOKENIZE_ANSWER)).tokens)

    async def parse(self, request: ChatRequest, sampled: Sampled, waits: Waits) -> ParsedMessage:
        """See Renderer."""
        said = None
        if sampled.logprobs is not None:
            # The engine names one alternative even where none is asked for.
            replaced: dict[str, Any] = {} if request.wishes.top_logprobs else {"top_logprobs": []}
            said = {"content": [msgspec.structs.replace(entry, **replaced) for entry in sampled.logprobs]}
        choice = {"index": 0, "token_ids": sampled.ids, "logprobs": said, "finish_reason": "stop"}
        # Parsers look at the prompt to see whether reasoning is still open; messages they do not read.
        answer = {"request_id": "derender", "choices": [choice], "prompt_token_ids": sampled.prompt_ids}
        try:
            form = chat_form(msgspec.structs.replace(request, messages=_PROBE), with_grammar=False)
            body = {"generate_response": answer, "chat_request": form}
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

    def live(self, request: ChatRequest, prompt_ids: Sequence[int]) -> LiveText | None:
        """See Renderer: the engine parses whole answers."""
        return None

    async def _ask(self, path: str, body: Any, waits: Waits, decoder: msgspec.json.Decoder[T]) -> T:
        answer, engine = await self._client.post(path, body, waits, timeout_s=RENDER_TIMEOUT_S)
        try:
            return decoder.decode(answer)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"engine {engine.id}: {path} gave an answer of another shape: {error}") from error


def chat_form(request: ChatRequest, *, with_grammar: bool) -> dict[str, Any]:
    """A chat request for the engine's template and parser: the messages, and what else of the request they see.

    Args:
        with_grammar: also the fields from which the engine derives a grammar.
    """
    form: dict[str, Any] = engine_fields(request, with_grammar=with_grammar)
    form["messages"] = [message_form(message) for message in request.messages]
    if request.tools is not None:
        form["tools"] = [tool_form(tool) for tool in request.tools]
    choice = request.tool_choice
    if isinstance(choice, NamedTool):
        form["tool_choice"] = {"type": "function", "function": {"name": choice.name}}
    elif choice is not None and (request.tools is not None or choice is not ToolUse.AUTO):
        # The engine refuses the word where there are no tools, which is how OpenAI's and Anthropic's clients send it.
        form["tool_choice"] = choice.value
    return form


def engine_fields(request: ChatRequest, *, with_grammar: bool = True) -> dict[str, Any]:
    """The unknown fields that the engine's template or grammar reads, as they came."""
    names = (*_TEMPLATE_FIELDS, *_GRAMMAR_FIELDS) if with_grammar else _TEMPLATE_FIELDS
    return {name: request.extra[name] for name in names if name in request.extra}


def asks_grammar(request: ChatRequest) -> bool:
    """Whether the request itself asks for a grammar; GLM-4.7's parser derives one from tools alone."""
    if isinstance(request.tool_choice, NamedTool) or request.tool_choice is ToolUse.REQUIRED:
        return True
    fields = {name: request.extra[name] for name in _GRAMMAR_FIELDS if name in request.extra}
    is_strict = request.tool_choice is not ToolUse.NONE and any(tool.is_strict for tool in request.tools or ())
    return is_strict or bool(fields and fields != {"response_format": {"type": "text"}})


def message_form(message: Message) -> dict[str, Any]:
    """One message."""
    form: dict[str, Any] = {**message.extra, "role": message.role}
    if isinstance(message.content, tuple):
        form["content"] = [
            {"type": "text", "text": part.text} if isinstance(part, TextPart) else part.fields
            for part in message.content
        ]
    elif message.content is not None or message.role == "assistant":
        form["content"] = message.content
    if message.tool_calls:
        form["tool_calls"] = [
            {
                **({"id": call.id} if call.id else {}),
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    optional = {"tool_call_id": message.tool_call_id, "name": message.name, "reasoning": message.reasoning}
    return form | {name: value for name, value in optional.items() if value is not None}


def tool_form(tool: Tool) -> dict[str, Any]:
    """One tool."""
    optional = {"description": tool.description, "parameters": tool.parameters, "strict": tool.is_strict}
    said = {name: value for name, value in optional.items() if value is not None}
    return {"type": "function", "function": {**tool.extra, "name": tool.name, **said}}
