"""What an episode's answers ask of tools: arguments that nothing can read, and requests that were made before.

In: the tool calls of each answer, in the order of the log. Out: ids. Pure. Invariant: a request repeats an earlier one
of the same agent that names the same tool with equal arguments, as JSON, or as text where they are none; one that its
client never took, or asked for again, was none; n requests cost O(n).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.text import json_value


def unparsable(asked: Iterable[ToolCall]) -> tuple[str, ...]:
    """The ids of those whose arguments are no JSON object."""
    return tuple(tool.id for tool in asked if not isinstance(json_value(tool.arguments), dict))


def repeated(
    asked: Sequence[Sequence[ToolCall]], agents: Sequence[str | None], is_taken: Sequence[bool]
) -> list[tuple[str, ...]]:
    """Of each answer the ids of the requests that its agent made before."""
    known: set[tuple[str | None, str, bytes]] = set()
    found: list[tuple[str, ...]] = []
    for tools, agent, counts in zip(asked, agents, is_taken, strict=True):
        again = []
        for tool in tools if counts else ():
            request = (agent, tool.name, _canonical(tool.arguments))
            if request in known:
                again.append(tool.id)
            known.add(request)
        found.append(tuple(again))
    return found


def _canonical(arguments: str) -> bytes:
    value = json_value(arguments)
    try:
        return msgspec.json.encode(arguments if value is None else value, order="deterministic")
    except (RecursionError, OverflowError):
        return arguments.encode("utf-8", "replace")
