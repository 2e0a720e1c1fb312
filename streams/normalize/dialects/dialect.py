"""What a dialect is: a reading of one span's attributes as agent, tool or LLM span.

In: a SpanView, holding only the attributes that some dialect names. Out: a SpanReading, or None when the span does not
speak the dialect. A dialect never raises for odd values, and says AGENT only of a real agent: a workflow, a graph, a
crew is OTHER. A span that speaks several is read by each; `merge.py` makes one meaning of them. How a tool ended is
judged there, of what each of them found.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import msgspec

from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import is_wrapper
from ..reading.read_output import NOTHING, Output, minted_in, of_response
from ..reading.span_view import SpanView
from ..reading.tool_message import tool_message


class SpanReading(msgspec.Struct, frozen=True, kw_only=True):
    """What a span says in one dialect; fields as in SpanFact."""

    kind: SpanKind
    overrules: bool = False
    """It knows better than the other dialects of the span, whatever kind they say."""
    is_guess: bool = False
    """The name of the agent or tool is only that of the span; one that an attribute gives is better."""
    agent_name: str | None = None
    response_id: str | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None
    results: tuple[object, ...] = ()
    """Of a tool: what it returned, in each form that the span holds."""
    serves_tool: bool = False
    """It is the far side of a tool's execution, which knows how that ended."""
    declared: tuple[object, ...] = ()
    """Likewise, the statuses that the framework gave the result."""
    output: Output = NOTHING
    """Of a model: the digest of its answer's text, and the ids of the tool calls that it asks for."""


class Dialect(NamedTuple):
    """One row of the table in `read_spans.py`."""

    name: str
    marks: frozenset[str]
    """Attributes one of which a span bears that may speak it; where none is, it is not asked."""
    keys: frozenset[str]
    """Further attributes that it reads, besides those of the judge and the hints; others are not even decoded."""
    read: Callable[[SpanView], SpanReading | None]
    """The span's meaning, or None when it does not speak this dialect."""
    names: tuple[str, ...] = ()
    """Beginnings of spans' names that mark it as well."""
    events: Mapping[str, frozenset[str]] = MappingProxyType({})
    """The span events that it reads, by name: their attributes."""


OTHER = SpanReading(kind=SpanKind.OTHER)
"""It speaks the dialect, and is no agent, tool or model."""
WRAPPER = SpanReading(kind=SpanKind.OTHER, overrules=True)
"""Likewise, though it looks like one in another dialect."""


def agent(name: str | None, *, guess: str | None = None) -> SpanReading:
    """An agent's span; OTHER where its name is a framework's machinery. None: an agent whose name nobody told.

    `guess`: the name by the span's own name, where no attribute gives it.
    """
    said = name or guess
    if said is not None and is_wrapper(said):
        return OTHER
    return SpanReading(kind=SpanKind.AGENT, agent_name=said, is_guess=name is None)


def answer(output: object, response_id: str | None = None, *, overrules: bool = False) -> SpanReading:
    """A model's span, by its raw response; `response_id` is the id of one that holds none."""
    said, id_ = of_response(output), minted_in(output) or response_id
    return SpanReading(kind=SpanKind.LLM, overrules=overrules, response_id=id_, output=said)


def execution(name: str | None, call_id: str | None, result: object, *, guess: str | None = None) -> SpanReading:
    """A tool's span, by what came back as it stands there; None: nothing stands there."""
    results = () if result is None else (result,)
    said = name or guess
    return SpanReading(
        kind=SpanKind.TOOL, is_guess=said is not name, tool_name=said, tool_call_id=call_id, results=results
    )


def tool(
    name: str | None, *, guess: str, output: object, call_id: str | None = None, status: object = None
) -> SpanReading:
    """A tool's span, by its output, which may be a message that tells more.

    `guess`: the name by the span's own name; `call_id`: that of an output that names none; `status`: the span's own.
    """
    message = tool_message(output)
    return SpanReading(
        kind=SpanKind.TOOL,
        is_guess=name is None,
        tool_name=name or guess,
        tool_call_id=message.call_id or call_id,
        results=() if message.content is None else (message.content,),
        declared=tuple(said for said in (message.status, status) if said is not None),
    )
