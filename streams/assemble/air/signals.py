"""What rules listen to: everything that an episode's record tells of its tools, calls, evaluations and end.

In: an Episode. Out: its signals, in the order in which they are paid: by call each tool execution, then the call; then
the evaluations; then the end. Pure: the record alone is read, no span, so that other rules can be asked of history.
Invariant: what nobody saw the agent say (`is_proved`) is no signal, nor is an answer that its client did not take; what
is unknown is None, and matches nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import is_usable

On = Literal["tool", "call", "evaluation", "episode"]


class Signal(NamedTuple):
    """One thing that happened. A field that its kind has not is None."""

    on: On
    call: int
    """The call that caused it, by its place; of an evaluation without a target, and of the end, the last."""
    has_id: bool = True
    """False: an execution that was joined by name and time alone, which earns nothing by default."""
    name: str | None = None
    """Of the tool, or of the evaluation."""
    agent: str | None = None
    status: str | None = None
    """How the tool, or the attempt, ended."""
    text: str | None = None
    """A tool's result, a call's content."""
    http_status: str | None = None
    finish_reason: str | None = None
    unparsable: bool | None = None
    repeated: bool | None = None
    seconds: float | None = None
    tokens: float | None = None
    turns: float | None = None
    score: float | None = None


def signals_of(episode: Episode) -> Iterator[Signal]:
    """All signals of an episode; one without calls has none, for nobody could be paid."""
    calls = episode.calls
    for number, call in enumerate(calls):
        yield from _of_tools(number, call)
        if call.outcome.is_taken:
            yield _of_call(number, call)
    if not calls:
        return
    asked_by = {name: number for number, call in enumerate(calls) for name in _names(call)}
    for reward in episode.rewards:
        if is_usable(reward.value):
            place = asked_by.get(reward.target, -1) if reward.target is not None else len(calls) - 1
            if place >= 0:
                yield Signal("evaluation", place, name=reward.name, score=reward.value)
    taken = [call for call in calls if call.outcome.is_taken]
    yield Signal(
        "episode",
        len(calls) - 1,
        status=episode.state.value,
        seconds=episode.duration_s,
        tokens=float(sum(call.num_sampled for call in taken)),
        turns=float(len(taken)),
    )


def _of_tools(number: int, call: EpisodeCall) -> Iterator[Signal]:
    for tool in call.tools:
        if tool.is_proved:
            yield Signal(
                "tool",
                number,
                has_id=tool.has_id,
                name=tool.name,
                agent=call.agent,
                status=tool.status.value,
                text=tool.result,
                http_status=None if tool.http_status is None else str(tool.http_status),
                seconds=tool.duration_s,
            )


def _of_call(number: int, call: EpisodeCall) -> Signal:
    lasted_ns = call.ended_at_ns - call.started_at_ns
    return Signal(
        "call",
        number,
        agent=call.agent,
        text=call.content,
        finish_reason=call.finish_reason,
        unparsable=bool(call.unparsable),
        repeated=bool(call.repeated),
        seconds=lasted_ns / 1e9 if call.started_at_ns and lasted_ns >= 0 else None,
        tokens=float(call.num_sampled),
    )


def _names(call: EpisodeCall) -> tuple[str, ...]:
    return (call.call_id, *(tool.id for tool in call.tool_calls))
