"""What the agent gets of what was sampled: its answer, and the events in which that is told. Pure.

In: a generation and the message that it says. Out: the answer, cut at its stop string, with its minted ids; then its
events, those left out that were told while it was sampled.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import CallId, new_tool_call, next_tool_call
from tracegrad.schemas.records.calls import CallOutcome, ToolCall

from ..api.chat_request import ChatRequest, NamedTool, ToolUse
from ..api.events import ChoiceBegins, ChoiceEnds, Event, Finished, Reasoning, Started, Text, ToolCalled
from ..engines.engine import Generation, ParsedMessage

_CALL = re.compile(r'<tool_call>|"name"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"\s*:')
"""As nearly all templates ask for one."""


class Answer(msgspec.Struct, kw_only=True):
    """One finished answer as the agent gets it, and as `/end` tells of it."""

    call_id: CallId
    outcome: CallOutcome = CallOutcome.CLIENT_DISCONNECTED
    content: str | None
    reasoning: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    sampled_tokens: int
    is_cut: bool
    """The agent sees less than was sampled (a stop string, dropped tool calls)."""
    stop_text: str = ""
    """As CallRecord.stop_text."""


class ServedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A call whose record is acknowledged."""

    answers: tuple[Answer, ...]
    """One, or several that were asked for; their outcomes are to be settled once they were sent, or could not be."""
    events: tuple[Event, ...]
    """Of all of them, for their API's writer."""

    def delivered(self) -> None:
        """The client has it all."""
        for answer in self.answers:
            answer.outcome = CallOutcome.DELIVERED


def finish(parsed: ParsedMessage, generation: Generation, request: ChatRequest, call_id: CallId, key: str) -> Answer:
    """The answer as the agent sees it, with its minted ids, which carry the key."""
    stop, engine_finish = generation.stop, generation.finish_reason
    content, stop_text, was_stopped = parsed.content, stop or "", False
    if stop is not None and content is not None and stop in content:
        at = content.index(stop)
        content, stop_text, was_stopped = content[:at], content[at:], True
    calls = parsed.tool_calls if request.allows_parallel_calls else parsed.tool_calls[:1]
    named, required = isinstance(request.tool_choice, NamedTool), request.tool_choice is ToolUse.REQUIRED
    has_called = calls and not named and (not required or engine_finish == "stop")
    if not calls or named or required:
        content = content or ""
    return Answer(
        call_id=call_id,
        content=content,
        reasoning=parsed.reasoning,
        tool_calls=tuple(_tool_calls(calls, key)),
        finish_reason="tool_calls" if has_called else engine_finish,
        is_cut=was_stopped or len(calls) < len(parsed.tool_calls),
        sampled_tokens=len(generation.ids),
        stop_text=stop_text,
    )


def reads_like_a_call(answer: Answer, request: ChatRequest) -> bool:
    """Whether its text has a tool call of which the engine's parser made none: `"arguments": {"number": 3 + 4}`."""
    return bool(request.tools) and not answer.tool_calls and _CALL.search(answer.content or "") is not None


def _tool_calls(calls: Sequence[tuple[str, str]], key: str) -> Iterator[ToolCall]:
    minted = new_tool_call(key)
    for name, arguments in calls:
        yield ToolCall(id=minted, name=name, arguments=arguments)
        minted = next_tool_call(minted)


def events_of(answer: Answer, started: Started, logprobs: Any, stop: str | None, said: str = "") -> Iterator[Event]:
    """The answer, cut into the events of a stream.

    Args:
        logprobs: as the engine words them, when they were asked for.
        stop: the agent's stop string that ended it.
        said: the beginning of it that was told already, with the event before it; empty: nothing was.
    Raises:
        UnavailableError: the answer does not begin with that.
    """
    content = answer.content
    if not said:
        yield started
    elif content is None or not content.startswith(said):
        raise UnavailableError("the answer is not what was told of it while it was sampled")
    else:
        content = content[len(said) :]
    if answer.reasoning is not None:
        yield Reasoning(answer.reasoning)
    if content or logprobs is not None or (content is not None and not said):
        yield Text(content, logprobs)
    yield from map(ToolCalled, answer.tool_calls)
    yield Finished(
        reason=answer.finish_reason,
        prompt_tokens=started.prompt_tokens,
        sampled_tokens=answer.sampled_tokens,
        stop=stop,
    )


def merged(served: Sequence[ServedCall]) -> ServedCall:
    """Several answers to one request, as one with choices; its id is the first one's."""
    events: list[Event] = [served[0].events[0]]
    ends = [event for one in served for event in one.events if isinstance(event, Finished)]
    for index, (one, end) in enumerate(zip(served, ends, strict=True)):
        events += (ChoiceBegins(index), *one.events[1:-1], ChoiceEnds(end.reason))
    events[-1] = msgspec.structs.replace(ends[-1], sampled_tokens=sum(end.sampled_tokens for end in ends))
    return ServedCall(answers=tuple(answer for one in served for answer in one.answers), events=tuple(events))
