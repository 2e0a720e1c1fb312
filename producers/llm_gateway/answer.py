"""What the agent gets: finish reason, stop strings, tool calls, minted ids. Pure.

In: what the engine sampled and the message that it parses to. Out: an Answer, the assistant message that the agent
will repeat, and the events from which its API's writer makes the wire form. The engine's derender leaves all of this
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

from .api.chat_request import ChatRequest, Message, NamedTool, ToolUse
from .api.events import Event, Finished, Reasoning, Started, Text, ToolCalled
from .engines.generate import Generation

__all__ = ["Answer", "ParsedMessage", "events_of", "finish", "message_of"]


class ParsedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """What sampled ids say, by the model's template and tool parser."""

    content: str | None = None
    reasoning: str | None = None
    tool_calls: tuple[tuple[str, str], ...] = ()
    """(name, arguments)."""
    logprobs: Any = None
    """As the engine words them, when they were asked for."""


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


def finish(parsed: ParsedMessage, generation: Generation, request: ChatRequest, *, num_prompt_tokens: int) -> Answer:
    """The answer as the agent sees it, with its minted ids."""
    stop, engine_finish = generation.stop, generation.finish_reason
    content, was_stopped = parsed.content, False
    if stop is not None and content is not None and stop in content:
        content, was_stopped = content[: content.index(stop)], True
    calls = parsed.tool_calls if request.allows_parallel_calls else parsed.tool_calls[:1]
    named, required = isinstance(request.tool_choice, NamedTool), request.tool_choice is ToolUse.REQUIRED
    has_called = calls and not named and (not required or engine_finish == "stop")
    if not calls or named or required:
        content = content or ""
    return Answer(
        call_id=CallId(f"chatcmpl-{secrets.token_hex(16)}"),
        content=content,
        reasoning=parsed.reasoning,
        tool_calls=tuple(
            ToolCall(id=f"call_{secrets.token_hex(12)}", name=name, arguments=arguments) for name, arguments in calls
        ),
        finish_reason="tool_calls" if has_called else engine_finish,
        is_truncated=engine_finish == "length" or stop is not None,
        is_cut=was_stopped or len(calls) < len(parsed.tool_calls),
        prompt_tokens=num_prompt_tokens,
        sampled_tokens=len(generation.ids),
        logprobs=parsed.logprobs,
    )


def message_of(answer: Answer) -> Message:
    """The assistant message, as the agent's next request will hold it."""
    return Message(role="assistant", content=answer.content, tool_calls=answer.tool_calls, reasoning=answer.reasoning)


def events_of(answer: Answer, model: str) -> Iterator[Event]:
    """The answer, cut into the events of a stream."""
    yield Started(call_id=answer.call_id, model=model, created_s=int(time.time()))
    if answer.reasoning is not None:
        yield Reasoning(answer.reasoning)
    if answer.content is not None or answer.logprobs is not None:
        yield Text(answer.content, answer.logprobs)
    for call in answer.tool_calls:
        yield ToolCalled(call)
    yield Finished(
        reason=answer.finish_reason, prompt_tokens=answer.prompt_tokens, sampled_tokens=answer.sampled_tokens
    )
