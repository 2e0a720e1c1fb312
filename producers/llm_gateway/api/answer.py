"""What the agent gets: finish reason, stop strings, tool calls, minted ids, OpenAI's shapes. Pure.

In: what the engine sampled and the message that it parses to. Out: an Answer, and from it the body of a chat
completion, or the chunks of a streamed one cut from the finished message. The engine's derender leaves all of this
to its caller; a contract test compares each case with the engine's own chat endpoint.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Any

import msgspec

from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import ToolCall

__all__ = ["Answer", "ParsedMessage", "chunks", "completion", "error_body", "finish", "message_of", "mint_call_id"]


class ParsedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What sampled ids say, by the model's template and tool parser."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)."""
    logprobs: Any = None
    """OpenAI's shape, when they were asked for."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One finished answer."""

    call_id: CallId
    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    is_truncated: bool
    """The end was not the policy's: a token limit or a stop string."""
    is_cut: bool
    """The agent sees less than was sampled."""
    prompt_tokens: int
    sampled_tokens: int
    logprobs: Any = None


def mint_call_id() -> CallId:
    """A new response id."""
    return CallId(f"chatcmpl-{secrets.token_hex(16)}")


def finish(
    parsed: ParsedMessage,
    *,
    call_id: CallId,
    engine_finish: str,
    stop: str | None,
    request: dict[str, Any],
    num_tokens: tuple[int, int],
) -> Answer:
    """The answer as the agent sees it.

    Args:
        engine_finish: `stop` or `length`.
        stop: the stop string that ended it, if one did.
        num_tokens: of the prompt and of what was sampled.
    """
    content, was_stopped = parsed.content, False
    if stop is not None and content is not None and stop in content:
        content, was_stopped = content[: content.index(stop)], True
    calls = parsed.tool_calls
    if request.get("parallel_tool_calls") is False:
        calls = calls[:1]
    choice = request.get("tool_choice")
    named = isinstance(choice, dict)
    if calls and not named and (choice != "required" or engine_finish == "stop"):
        finish_reason = "tool_calls"
    else:
        finish_reason = engine_finish
    if not calls or named or choice == "required":
        content = content or ""
    return Answer(
        call_id=call_id,
        content=content,
        reasoning=parsed.reasoning,
        tool_calls=tuple(
            ToolCall(id=f"call_{secrets.token_hex(12)}", name=name, arguments=arguments) for name, arguments in calls
        ),
        finish_reason=finish_reason,
        is_truncated=engine_finish == "length" or stop is not None,
        is_cut=was_stopped or len(calls) < len(parsed.tool_calls),
        prompt_tokens=num_tokens[0],
        sampled_tokens=num_tokens[1],
        logprobs=parsed.logprobs,
    )


def message_of(answer: Answer) -> dict[str, Any]:
    """The assistant message."""
    message: dict[str, Any] = {"role": "assistant", "content": answer.content, "refusal": None}
    if answer.reasoning is not None:
        message["reasoning"] = message["reasoning_content"] = answer.reasoning
    if answer.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in answer.tool_calls
        ]
    return message


def _usage(answer: Answer) -> dict[str, int]:
    return {
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.sampled_tokens,
        "total_tokens": answer.prompt_tokens + answer.sampled_tokens,
    }


def completion(answer: Answer, model: str) -> bytes:
    """The body of a chat completion."""
    choice = {
        "index": 0,
        "message": message_of(answer),
        "logprobs": answer.logprobs,
        "finish_reason": answer.finish_reason,
    }
    return msgspec.json.encode(
        {
            "id": answer.call_id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": model,
            "choices": [choice],
            "usage": _usage(answer),
        }
    )


def chunks(answer: Answer, model: str, *, include_usage: bool) -> Iterator[bytes]:
    """The server-sent events of a streamed answer: role, content, tool calls, finish, usage when asked, done."""
    created = int(time.time())

    def event(choices: list[dict[str, Any]], usage: dict[str, int] | None = None) -> bytes:
        body: dict[str, Any] = {
            "id": answer.call_id,
            "object": "chat.completion.chunk",
            "created": created,
            "model": model,
            "choices": choices,
        }
        if include_usage:
            body["usage"] = usage
        return b"data: " + msgspec.json.encode(body) + b"\n\n"

    def delta(fields: dict[str, Any], finish_reason: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": fields, "logprobs": logprobs, "finish_reason": finish_reason}
        return event([choice])

    message = message_of(answer)
    yield delta({"role": "assistant", "content": ""})
    if answer.reasoning:
        yield delta({"reasoning": answer.reasoning, "reasoning_content": answer.reasoning})
    if answer.content:
        yield delta({"content": answer.content}, logprobs=answer.logprobs)
    for index, call in enumerate(message.get("tool_calls", ())):
        yield delta({"tool_calls": [{"index": index, **call}]})
    yield delta({}, answer.finish_reason)
    if include_usage:
        yield event([], _usage(answer))
    yield b"data: [DONE]\n\n"


def error_body(message: str, *, status: int, param: str | None = None, code: str | None = None) -> bytes:
    """An error as OpenAI's clients expect it."""
    kinds = {400: "invalid_request_error", 401: "authentication_error", 429: "rate_limit_error"}
    kind = kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})
