"""OpenAI's chat completions: the body becomes a ChatRequest, events become a completion or its chunks. Pure.

In: a decoded body. Out: ChatRequest, or RequestError with the field at fault; then the wire form of its answer. A
`developer` is a `system`: few chat templates know another. Fields that would change the answer in a way that is not
the policy's are refused; what is left (stored completions, service tiers) is kept as unknown and reaches nobody.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import ToolCall

from .chat_request import ChatRequest, Message, NamedTool, OtherPart, TextPart, Tool, ToolUse, Wishes
from .events import Api, ChoiceBegins, ChoiceEnds, Event, Failed, Finished, Reasoning, Started, Text, ToolCalled
from .openai_error import write_error
from .reading import asked_of, check_arguments, content_of, read_as, refuse, rest_of

_REFUSED = {
    "functions": "they are OpenAI's older form; send them as tools",
    "function_call": "it is OpenAI's older form; send tool_choice",
    "web_search_options": "the policy runs no servers' tools",
    "chat_template": "the policy's own template renders its prompts",
    "continue_final_message": "the policy does not continue an answer that was begun for it",
    "truncate_prompt_tokens": "a prompt that is cut continues no other",
}
"""What nobody else would honour, with what to do instead."""
_ASKED = (
    "temperature", "top_p", "top_k", "min_p", "max_tokens", "max_completion_tokens", "stop", "seed", "n",
    "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "min_tokens", "ignore_eos",
    "bad_words", "allowed_token_ids", "stop_token_ids", "length_penalty", "use_beam_search", "tool_choice",
    "parallel_tool_calls", "response_format", "structured_outputs", "guided_json", "guided_regex",
    "guided_choice", "guided_grammar", "logprobs", "top_logprobs", "reasoning_effort",
)  # fmt: skip
"""Fields that are kept on the record as they were asked."""
_FILTERS = {
    "presence_penalty": 0,
    "frequency_penalty": 0,
    "repetition_penalty": 1,
    "logit_bias": None,
    "min_tokens": 0,
    "ignore_eos": False,
    "bad_words": None,
    "allowed_token_ids": None,
}
"""What changes the logits besides the parameters of the record, with the value that changes nothing."""


class _Arguments(msgspec.Struct):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(msgspec.Struct):
    function: _Arguments
    id: str | None = None
    type: Literal["function"] = "function"


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, Any] | str] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    refusal: str | None = None
    function_call: dict[str, Any] | None = None


class _Function(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    is_strict: bool | None = msgspec.field(name="strict", default=None)


class _Tool(msgspec.Struct):
    function: _Function
    type: Literal["function"] = "function"


class _Body(msgspec.Struct):
    messages: Annotated[list[_Message], Meta(min_length=1)]
    model: str | None = None
    tools: list[_Tool] | None = None
    tool_choice: ToolUse | _Call | None = None
    parallel_tool_calls: bool | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    stream: bool | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1)] | None = None
    logprobs: bool | None = None
    modalities: list[Literal["text"]] | None = None


def _read(body: dict[str, Any]) -> ChatRequest:
    for name, instead in _REFUSED.items():
        refuse(body, (name,), instead)
    read = read_as(body, _Body)
    choice = read.tool_choice
    if body.get("best_of") not in (None, 1, read.n):
        raise RequestError("best_of: expected none, for whoever trains chooses by rewards; ask for n", param="best_of")
    return ChatRequest(
        messages=tuple(_message(*pair) for pair in zip(read.messages, body["messages"], strict=True)),
        model=read.model,
        tools=None if read.tools is None else tuple(map(_tool, read.tools, body["tools"])),
        tool_choice=NamedTool(choice.function.name) if isinstance(choice, _Call) else choice,
        allows_parallel_calls=read.parallel_tool_calls is not False,
        wishes=_wishes(read, body),
        is_stream=bool(read.stream),
        num_choices=read.n or 1,
        sampling_asked=asked_of(body, _ASKED),
        extra=rest_of(body, _Body, Wishes),
    )


def _wishes(read: _Body, body: dict[str, Any]) -> Wishes:
    """The sampling fields of a body. Raises RequestError."""
    named = {name: body[name] for name in Wishes.__struct_fields__ if body.get(name) is not None}
    names: dict[str, str] = {}
    if read.max_completion_tokens is not None:
        named["max_tokens"], names["max_tokens"] = read.max_completion_tokens, "max_completion_tokens"
    if isinstance(named.get("stop"), str):
        named["stop"] = [named["stop"]]
    named["filters"] = {
        name: body[name] for name, neutral in _FILTERS.items() if body.get(name) not in (None, neutral, {}, [])
    }
    wishes = read_as(named, Wishes, names)
    return msgspec.structs.replace(wishes, top_logprobs=(wishes.top_logprobs or 0) if read.logprobs else None)


def _message(read: _Message, body: dict[str, Any]) -> Message:
    if read.role == "function" or read.function_call is not None:
        raise RequestError(
            "messages: expected tool_calls and messages of role tool, got OpenAI's older function_call or role "
            "function; send calls and results in the newer form",
            param="messages",
        )
    return Message(
        role="system" if read.role == "developer" else read.role,
        content=_content(read),
        tool_calls=tuple(map(_tool_call, read.tool_calls or ())),
        tool_call_id=read.tool_call_id,
        name=read.name,
        reasoning=read.reasoning_content if read.reasoning is None else read.reasoning,
        extra=rest_of(body, _Message),
    )


def _content(read: _Message) -> str | tuple[TextPart | OtherPart, ...] | None:
    """What an assistant said in pieces is one text, as it was sampled, if all are texts."""
    content = read.content or read.refusal or read.content
    if not isinstance(content, list):
        return content
    if read.role == "assistant":
        parts = [part if isinstance(part, dict) else {"type": "text", "text": part} for part in content]
        texts = [part.get("text" if part.get("type") == "text" else "refusal") for part in parts]
        said = [text for text in texts if isinstance(text, str)]
        if len(said) == len(content):
            return "".join(said)
    return content_of([*map(_part, content)])


def _part(part: dict[str, Any] | str) -> TextPart | OtherPart:
    """vLLM takes a bare string for a text too."""
    if isinstance(part, str):
        return TextPart(part)
    text = part.get("text")
    return TextPart(text) if part.get("type") == "text" and isinstance(text, str) else OtherPart(part)


def _tool_call(call: _Call) -> ToolCall:
    arguments = call.function.arguments
    if isinstance(arguments, str):
        check_arguments(arguments)
    elif arguments is not None:
        arguments = msgspec.json.encode(arguments).decode()
    return ToolCall(id=call.id or "", name=call.function.name, arguments=arguments or "")


def _tool(read: _Tool, body: dict[str, Any]) -> Tool:
    extra = {**rest_of(body, _Tool), **rest_of(body["function"], _Function)}
    return Tool(**msgspec.structs.asdict(read.function), extra=extra)


class _Writer:
    """A completion, or its chunks: role, reasoning, content, tool calls, finish, usage when asked, done."""

    def __init__(self, request: ChatRequest) -> None:
        self._includes_usage = _includes_usage(request)
        self._num_tool_calls = 0
        self._index = 0

    def whole(self, events: Iterable[Event]) -> bytes:
        """See Writer."""
        choices = [choice := _choice(0)]
        body: dict[str, Any] = {}
        for event in events:
            message = choice["message"]
            match event:
                case Started():
                    body = {**_head(event, "chat.completion"), "choices": choices}
                case ChoiceBegins(index) if index:
                    choices.append(choice := _choice(index))
                case ChoiceEnds(reason):
                    choice["finish_reason"] = reason
                case Reasoning(text):
                    message["reasoning"] = message["reasoning_content"] = message.get("reasoning", "") + text
                case Text(text, logprobs):
                    message["content"] = text if message["content"] is None else message["content"] + (text or "")
                    choice["logprobs"] = logprobs
                case ToolCalled(call):
                    message.setdefault("tool_calls", []).append(_call_form(call))
                case Finished():
                    choice["finish_reason"] = event.reason
                    body["usage"] = _usage(event)
        return msgspec.json.encode(body)

    def chunks(self, event: Event) -> Iterator[bytes]:
        """See Writer."""
        match event:
            case Started():
                self._head = _head(event, "chat.completion.chunk")
                yield self._delta({"role": "assistant", "content": ""})
            case ChoiceBegins(index) if index:
                self._index, self._num_tool_calls = index, 0
                yield self._delta({"role": "assistant", "content": ""})
            case ChoiceEnds(reason):
                yield self._delta({}, reason)
            case Reasoning(text) if text:
                yield self._delta({"reasoning": text, "reasoning_content": text})
            case Text(text, logprobs) if text:
                yield self._delta({"content": text}, logprobs=logprobs)
            case ToolCalled(call):
                yield self._delta({"tool_calls": [{"index": self._num_tool_calls, **_call_form(call)}]})
                self._num_tool_calls += 1
            case Finished():
                yield self._delta({}, event.reason)
                if self._includes_usage:
                    yield self._chunk([], _usage(event))
                yield b"data: [DONE]\n\n"
            case Failed(problem):
                yield b"data: " + write_error(problem) + b"\n\n"

    def _delta(self, fields: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": self._index, "delta": fields, "logprobs": logprobs, "finish_reason": finish_reason}
        return self._chunk([choice])

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body = {**self._head, "choices": choices, **({"usage": usage} if self._includes_usage else {})}
        return b"data: " + msgspec.json.encode(body) + b"\n\n"


def _head(started: Started, kind: str) -> dict[str, Any]:
    return {"id": started.call_id, "object": kind, "created": started.created_s, "model": started.model}


def _choice(index: int) -> dict[str, Any]:
    message = {"role": "assistant", "content": None, "refusal": None}
    return {"index": index, "message": message, "logprobs": None, "finish_reason": None}


def _call_form(call: ToolCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _includes_usage(request: ChatRequest) -> bool:
    """Whether a stream is to tell what it cost."""
    options = request.extra.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


def _usage(finished: Finished) -> dict[str, int]:
    """What an answer cost."""
    return {
        "prompt_tokens": finished.prompt_tokens,
        "completion_tokens": finished.sampled_tokens,
        "total_tokens": finished.prompt_tokens + finished.sampled_tokens,
    }


OPENAI_CHAT = Api(path="/v1/chat/completions", read=_read, write=_Writer, error=write_error)
"""Chat completions, as vLLM and OpenAI's own clients speak them."""
