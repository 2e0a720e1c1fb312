"""OpenAI's completions: prompts that the agent wrote itself become a ChatRequest, events a completion. Pure.

In: a decoded body, whose `prompt` is a text, token ids, or a list of either. Out: ChatRequest, or RequestError with the
field at fault; then the wire form of its answers, which are choices, in the order of their prompts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import WirePrefix, wire_id

from .chat_request import ChatRequest, Wishes
from .events import Api, ChoiceBegins, ChoiceEnds, Event, Failed, Finished, Started, Text
from .openai_error import write_error
from .openai_sampling import ASKED, check_best_of, includes_usage, usage, wishes_of
from .reading import asked_of, read_as, refuse, rest_of

__all__ = ["OPENAI_COMPLETIONS"]

_MAX_TOKENS = 16
"""As OpenAI's API has it for a request that does not say."""
_MAX_PROMPTS = 64
_REFUSED = (
    "echo", "suffix", "prompt_embeds", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar",
)  # fmt: skip
_Id = Annotated[int, Meta(ge=0, lt=2**31)]


class _Body(msgspec.Struct):
    prompt: str | Annotated[list[str | _Id | Annotated[list[_Id], Meta(min_length=1)]], Meta(min_length=1)]
    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None


def _read(body: dict[str, Any]) -> ChatRequest:
    refuse(body, _REFUSED, "chat completions know grammars; nobody here the rest")
    read = read_as(body, _Body)
    check_best_of(body, read.n)
    said = {name: value for name, value in body.items() if value is not None}
    wishes = wishes_of({"max_tokens": _MAX_TOKENS, **said}, {})
    return ChatRequest(
        messages=(),
        prompts=_prompts(read.prompt),
        model=read.model,
        wishes=msgspec.structs.replace(wishes, top_logprobs=read.logprobs),
        is_stream=bool(read.stream),
        num_choices=read.n or 1,
        sampling_asked=asked_of(body, ASKED),
        extra=rest_of(body, _Body, Wishes),
    )


def _prompts(given: str | list[str | int | list[int]]) -> tuple[str | tuple[int, ...], ...]:
    if isinstance(given, str):
        return (given,)
    ids = tuple(one for one in given if isinstance(one, int))
    if len(ids) == len(given):
        return (ids,)
    if ids or len(given) > _MAX_PROMPTS:
        raise RequestError(f"prompt: expected a prompt, or up to {_MAX_PROMPTS}, got a mixture or more", param="prompt")
    return tuple(one if isinstance(one, str) else tuple(one) for one in given if not isinstance(one, int))


class _Writer:
    """A completion, or its chunks: text, finish, usage when asked, done."""

    def __init__(self, request: ChatRequest) -> None:
        self._includes_usage = includes_usage(request)
        self._index = 0

    def whole(self, events: Iterable[Event]) -> bytes:
        """See Writer."""
        choices = [_choice(0)]
        body: dict[str, Any] = {}
        for event in events:
            match event:
                case Started():
                    body = {**_head(event), "choices": choices}
                case ChoiceBegins(index) if index:
                    choices.append(_choice(index))
                case ChoiceEnds(reason):
                    choices[-1]["finish_reason"] = reason
                case Text(text, logprobs):
                    choices[-1] |= {"text": choices[-1]["text"] + (text or ""), "logprobs": _logprobs(logprobs)}
                case Finished():
                    choices[-1]["finish_reason"] = event.reason
                    body["usage"] = usage(event)
        return msgspec.json.encode(body)

    def chunks(self, event: Event) -> Iterator[bytes]:
        """See Writer."""
        match event:
            case Started():
                self._head = _head(event)
            case ChoiceBegins(index):
                self._index = index
            case Text(text, logprobs) if text or logprobs:
                yield self._chunk({"text": text or "", "logprobs": _logprobs(logprobs)})
            case ChoiceEnds(reason):
                yield self._chunk({"finish_reason": reason})
            case Finished():
                yield self._chunk({"finish_reason": event.reason})
                if self._includes_usage:
                    yield self._data({"choices": [], "usage": usage(event)})
                yield b"data: [DONE]\n\n"
            case Failed(problem):
                yield b"data: " + write_error(problem) + b"\n\n"

    def _chunk(self, fields: dict[str, Any]) -> bytes:
        asked = {"usage": None} if self._includes_usage else {}
        return self._data({"choices": [_choice(self._index) | fields], **asked})

    def _data(self, fields: dict[str, Any]) -> bytes:
        return b"data: " + msgspec.json.encode({**self._head, **fields}) + b"\n\n"


def _head(started: Started) -> dict[str, Any]:
    id_ = wire_id(started.call_id, WirePrefix.COMPLETION)
    return {"id": id_, "object": "text_completion", "created": started.created_s, "model": started.model}


def _choice(index: int) -> dict[str, Any]:
    return {"index": index, "text": "", "logprobs": None, "finish_reason": None}


def _logprobs(said: Any) -> Any:
    """As the engine words them, but for alternatives that nobody asked for: it has a null for each token."""
    return said and said | {"top_logprobs": None if None in said["top_logprobs"] else said["top_logprobs"]}


OPENAI_COMPLETIONS = Api(path="/v1/completions", read=_read, write=_Writer, error=write_error)
"""Completions, as vLLM and OpenAI's own clients speak them."""
