"""vLLM as an Engine: its template, tool parser and sampler over HTTP.

In and out: see Engine. Of the render's answer only the ids count, and the grammar that vLLM derives from
`response_format`, `tool_choice` and the like. A streamed sample comes as server-sent events: chunks with the ids since
the last one and their logprobs, in the last one the finish reason and the labels; it is equal to one that is not
streamed. Failure: EngineRefusal for what vLLM says is the request's fault, as one that the template refuses;
UnavailableError for a stream that ends or is worded otherwise, and for what vLLM says has failed within it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Annotated, Any, TypeVar

import aiohttp
import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import EngineRefusal, UnavailableError

from ..api.chat_request import ChatRequest, Message
from ..config import EngineRef
from .chat_form import chat_form
from .client import EngineClient, fault, read_whole
from .engine import (
    RENDER_TIMEOUT_S,
    Generation,
    Hearer,
    LabelSpan,
    LogprobEntry,
    ParsedMessage,
    RenderedIds,
    Sampling,
    Waits,
)

T = TypeVar("T")
_RENDER = "/v1/chat/completions/render"
_DERENDER = "/v1/chat/completions/derender"
_TOKENIZE = "/tokenize"
_DETOKENIZE = "/detokenize"
_GENERATE = "/inference/v1/generate"
_DONE = b"[DONE]"
_PROBE = (Message(role="user", content="x"),)


class _RenderAnswer(msgspec.Struct):
    token_ids: list[int]
    sampling_params: dict[str, Any] = {}


class _Function(msgspec.Struct):
    name: str
    arguments: str


class _Call(msgspec.Struct):
    function: _Function


class _Message(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    tool_calls: list[_Call] | None = None


class _ParsedChoice(msgspec.Struct):
    message: _Message
    logprobs: Any = None


class _DerenderAnswer(msgspec.Struct):
    choices: Annotated[list[_ParsedChoice], Meta(min_length=1)]


class _TokenizeAnswer(msgspec.Struct):
    tokens: list[int]


class _DetokenizeAnswer(msgspec.Struct):
    prompt: str


class _Logprobs(msgspec.Struct):
    content: list[LogprobEntry]


class _SampledChoice(msgspec.Struct):
    """Whole, or as a piece of a stream."""

    token_ids: list[int]
    logprobs: _Logprobs
    finish_reason: str | None = None
    stop_reason: int | str | None = None
    weight_versions: tuple[LabelSpan, ...] | None = None

    def generation(self) -> Generation:
        """As Engine has it."""
        return Generation(
            ids=self.token_ids,
            entries=self.logprobs.content,
            finish_reason=self.finish_reason or "",
            stop=self.stop_reason if isinstance(self.stop_reason, str) else None,
            labels=self.weight_versions or (),
        )


class _Fault(msgspec.Struct):
    code: int = 500


class _GenerateAnswer(msgspec.Struct):
    """Whole, or an event of a stream."""

    choices: list[_SampledChoice] = []
    error: _Fault | None = None


_GENERATE_ANSWER = msgspec.json.Decoder(_GenerateAnswer)


class VllmEngine:
    """vLLM over HTTP."""

    def __init__(self, client: EngineClient) -> None:
        self.num_engines = len(client.engines)
        self._client = client

    async def ids(self, request: ChatRequest, waits: Waits, *, to_generate: bool = True) -> RenderedIds:
        """See Renderer."""
        body = chat_form(request, with_grammar=to_generate)
        if not to_generate:
            body["add_generation_prompt"] = False
            if body.get("tool_choice") not in (None, "none"):
                body["tool_choice"] = "auto"
        rendered = await self._ask(_RENDER, body, waits, _RenderAnswer)
        return RenderedIds(ids=rendered.token_ids, grammar=rendered.sampling_params.get("structured_outputs"))

    async def count(self, request: ChatRequest, waits: Waits) -> int:
        """See Renderer."""
        body = {**chat_form(request, with_grammar=False), "add_generation_prompt": True}
        return len((await self._ask(_TOKENIZE, body, waits, _TokenizeAnswer)).tokens)

    async def parse(
        self, request: ChatRequest, prompt_ids: list[int], sampled: Sequence[LogprobEntry], waits: Waits
    ) -> ParsedMessage:
        """See Renderer."""
        ids, said = [entry.token_id for entry in sampled], None
        if request.wishes.top_logprobs is not None:
            # The engine names one alternative even where none is asked for.
            replaced: dict[str, Any] = {} if request.wishes.top_logprobs else {"top_logprobs": []}
            said = {"content": [msgspec.structs.replace(entry, **replaced) for entry in sampled]}
        choice = {"index": 0, "token_ids": ids, "logprobs": said, "finish_reason": "stop"}
        # Parsers look at the prompt to see whether reasoning is still open; messages they do not read.
        answer = {"request_id": "derender", "choices": [choice], "prompt_token_ids": prompt_ids}
        try:
            form = chat_form(msgspec.structs.replace(request, messages=_PROBE), with_grammar=False)
            body = {"generate_response": answer, "chat_request": form}
            parsed = (await self._ask(_DERENDER, body, waits, _DerenderAnswer)).choices[0]
        except EngineRefusal:
            # A parser may fail on what a model may well sample (half an escape in its JSON): it is plain text then.
            text = await self._ask(_DETOKENIZE, {"tokens": ids}, waits, _DetokenizeAnswer)
            return ParsedMessage(content=text.prompt)
        message = parsed.message
        return ParsedMessage(
            content=message.content,
            reasoning=message.reasoning,
            tool_calls=tuple((call.function.name, call.function.arguments) for call in message.tool_calls or ()),
            logprobs=parsed.logprobs,
        )

    async def generate(
        self,
        ids: list[int],
        sampling: Sampling,
        waits: Waits,
        *,
        timeout_s: float,
        may_hear: Callable[[EngineRef], Awaitable[bool]],
        hearer: Hearer | None = None,
        avoid: Collection[str] = (),
    ) -> tuple[Generation | Exception, EngineRef]:
        """See Engine."""

        async def read(engine: EngineRef, response: aiohttp.ClientResponse) -> Generation | Exception:
            # An error is a result where another try at once, which `ask` makes of what is raised, helps nobody.
            try:
                if hearer is None:
                    return _GENERATE_ANSWER.decode(await response.read()).choices[0].generation()
                is_told = await may_hear(engine)
            except (msgspec.MsgspecError, IndexError, UnavailableError) as error:
                return error
            return await _read_stream(engine, response, hearer if is_told else None)

        body = {"token_ids": ids, "sampling_params": _parameters(sampling), "stream": hearer is not None}
        is_last = hearer.begun if hearer is not None else None
        return await self._client.ask(_GENERATE, body, waits, read, timeout_s=timeout_s, avoid=avoid, is_last=is_last)

    async def label(self, engine: EngineRef) -> str | None:
        """See Engine; without its development routes it does not tell."""
        answer = await self._client.get(engine, "/weight_info")
        return str(answer["weight_version"]) if isinstance(answer, dict) and "weight_version" in answer else None

    async def context_length(self) -> int | None:
        """See Engine."""
        lengths: list[int] = []
        for engine in self._client.engines:
            answer = await self._client.get(engine, "/v1/models")
            try:
                lengths.append(int(answer["data"][0]["max_model_len"]))
            except (KeyError, IndexError, TypeError, ValueError):
                return None
        return min(lengths)

    async def _ask(self, path: str, body: Any, waits: Waits, kind: type[T]) -> T:
        answer, engine = await self._client.ask(path, body, waits, read_whole, timeout_s=RENDER_TIMEOUT_S)
        try:
            return msgspec.json.decode(answer, type=kind)
        except msgspec.MsgspecError as error:
            raise UnavailableError(f"engine {engine.id}: {path} gave an answer of another shape: {error}") from error


def _parameters(sampling: Sampling) -> dict[str, Any]:
    """`sampling_params` of the engine's generate request; every field is written, so no default applies."""
    used = msgspec.structs.asdict(sampling.used)
    parameters = {name: value for name, value in used.items() if value is not None and value != ()}
    # Only a search for stop strings needs text, and text costs the engine time.
    parameters |= {"n": 1, "logprobs": sampling.top_logprobs or 0, "detokenize": "stop" in parameters}
    parameters |= sampling.filters
    if sampling.grammar is not None:
        parameters["structured_outputs"] = sampling.grammar
    return parameters


async def _read_stream(engine: EngineRef, response: aiohttp.ClientResponse, hearer: Hearer | None) -> Generation:
    """The whole answer, once it is here."""
    whole = _SampledChoice(token_ids=[], logprobs=_Logprobs(content=[]))
    if hearer is not None:
        hearer.restart()
    async for data in _events(response):
        part = _part(engine, data)
        whole.token_ids += part.token_ids
        whole.logprobs.content += part.logprobs.content
        if part.finish_reason is not None:
            whole.finish_reason, whole.stop_reason = part.finish_reason, part.stop_reason
            whole.weight_versions = part.weight_versions
            return whole.generation()
        if hearer is not None:
            hearer.hear(part.token_ids)
    raise UnavailableError(f"engine {engine.id}: the answer broke off after {len(whole.token_ids)} tokens")


def _part(engine: EngineRef, data: bytes) -> _SampledChoice:
    try:
        chunk = _GENERATE_ANSWER.decode(data)
    except msgspec.MsgspecError as error:
        raise UnavailableError(f"engine {engine.id}: a stream of another shape: {error}") from error
    if chunk.error is not None:
        raise fault(engine, _GENERATE, chunk.error.code, data)
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
