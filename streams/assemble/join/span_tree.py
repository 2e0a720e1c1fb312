"""The spans of one episode by their places, and which agent is at work at each.

In: span facts in any order; parents may be missing or go in circles. Out: for a span, the nearest name above it and
what gave it (its rung): an agent's own span, LangChain's `lc_agent_name`, OpenLLMetry's entity path (a name in it
counts if something else calls an agent so), or another attribute. Invariant: the nearest place that names anybody
decides; where one place names several, nobody is named (`conflict`); within a tool's span the agent that called the
tool is not at work (`inside_tool`). Each place is visited once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import NamedTuple

from tracegrad.schemas.records.facts import SpanFact, SpanKind

SpanKey = tuple[str, str]
"""Trace id and span id."""
AGENT_SPAN = "agent_span"
ENTITY_PATH = "entity_path"
CONFLICT = "conflict"
UNNAMED = "unnamed"
INSIDE_TOOL = "inside_tool"
_MAX_OUTER = 64
"""Agents within agents that are looked through; beyond it nothing encloses anything."""


class NamedAgent(NamedTuple):
    """Who is at work, by a place that says so."""

    name: str | None
    """None: names there disagree, an agent's own span has none, or a tool is at work."""
    rung: str
    """`agent_span`, `lc_agent_name`, `entity_path`, `agent_attribute`, `conflict`, `unnamed` or `inside_tool`."""
    place: SpanKey
    outer: NamedAgent | None
    """Who is at work above that place, if anybody else."""


class SpanContext(NamedTuple):
    """What a span hangs under, itself included."""

    depth: int
    """Spans above it."""
    named: NamedAgent | None
    llm: SpanKey | None
    """The nearest model's span, unless an agent or a tool lies between."""


_NOTHING = SpanContext(-1, None, None)


class SpanTree:
    """The tree; the parts of it may be missing."""

    def __init__(self, spans: Iterable[SpanFact]) -> None:
        self.spans = tuple(spans)
        self._spans = {span_key(span): span for span in self.spans}
        self._above: dict[SpanKey, SpanContext] = {}

    @cached_property
    def agents(self) -> set[str]:
        """Every agent that anything names."""
        own = {span.agent_name for span in self._spans.values() if span.kind is SpanKind.AGENT and span.agent_name}
        hints = (hint for span in self._spans.values() for hint in span.agent_hints.items())
        return own.union(name for rung, name in hints if rung != ENTITY_PATH)

    @cached_property
    def is_whole(self) -> bool:
        """Whether no span lacks a parent of its own process: what is lost may be an agent's."""
        return all(place in self._spans for span in self._spans.values() for place in _awaited(span))

    def get(self, trace_id: str | None, span_id: str | None) -> SpanFact | None:
        """The span at a place, if it is here."""
        return self._spans.get((trace_id or "", span_id or ""))

    def parent(self, span: SpanFact) -> SpanFact | None:
        """The span above, if it is here."""
        return self.get(span.trace_id, span.parent_span_id) if span.parent_span_id else None

    def above(self, span: SpanFact) -> SpanContext:
        """What it hangs under."""
        path: dict[SpanKey, SpanFact] = {}
        step: SpanFact | None = span
        known = _NOTHING
        while step is not None and (place := span_key(step)) not in path:
            if place in self._above:
                known = self._above[place]
                break
            path[place] = step
            step = self.parent(step)
        for place, step in reversed(path.items()):
            llm = place if step.kind is SpanKind.LLM else known.llm
            ends = step.kind in (SpanKind.AGENT, SpanKind.TOOL)
            known = SpanContext(known.depth + 1, self._named(step, known.named), None if ends else llm)
            self._above[place] = known
        return known

    def _named(self, span: SpanFact, outer: NamedAgent | None) -> NamedAgent | None:
        """Who is at work at a span, `outer` being at work above it."""
        above = self.parent(span)
        if above is not None and above.kind is SpanKind.TOOL and not _is_same_tool(above, span):
            # A tool may be another agent that has no span (CrewAI's delegation), or ask a model itself.
            outer = NamedAgent(None, INSIDE_TOOL, span_key(above), outer)
        found = dict(self._names(span))
        names = set(found.values())
        if not names and span.kind is SpanKind.AGENT:
            # Nobody told this agent's name, so it is not that of the agent above either.
            return NamedAgent(None, UNNAMED, span_key(span), outer)
        if not names or (outer is not None and names == {outer.name}):
            return outer
        if len(names) > 1:
            return NamedAgent(None, CONFLICT, span_key(span), outer)
        return NamedAgent(names.pop(), next(iter(found)), span_key(span), outer)

    def _names(self, span: SpanFact) -> Iterable[tuple[str, str]]:
        is_agent = span.kind is SpanKind.AGENT
        if span.agent_name:
            yield AGENT_SPAN if is_agent else "agent_attribute", span.agent_name
        for rung, name in sorted(span.agent_hints.items(), reverse=True):
            if rung != ENTITY_PATH:
                yield rung, name
            elif not is_agent:
                # Of an agent's own span it tells what the agent hangs under.
                known = (part for part in reversed(name.split(".")) if part in self.agents)
                yield from ((rung, part) for part in (next(known, None),) if part)


def _awaited(span: SpanFact) -> Iterator[SpanKey]:
    if span.parent_is_local and span.parent_span_id:
        yield span.trace_id, span.parent_span_id


def _is_same_tool(outer: SpanFact, inner: SpanFact) -> bool:
    """Whether two instrumentations tell of one execution."""
    return inner.kind is SpanKind.TOOL and (inner.tool_name or inner.name) == (outer.tool_name or outer.name)


def span_key(span: SpanFact) -> SpanKey:
    """Where a span stands."""
    return span.trace_id, span.span_id


def encloses(outer: NamedAgent, inner: NamedAgent) -> bool:
    """Whether who is at work at `inner` was set to work by `outer`."""
    step, num_steps = inner.outer, 0
    while step is not None and num_steps < _MAX_OUTER:
        if step.place == outer.place:
            return True
        step, num_steps = step.outer, num_steps + 1
    return False


class Parents:
    """Of a captured trace, which of its spans' parents are here, and which their process will export yet."""

    def __init__(self) -> None:
        self._here: set[SpanKey] = set()
        self._awaited: set[SpanKey] = set()
        self._missing: set[SpanKey] = set()

    def add_span(self, span: SpanFact) -> None:
        """A span has come."""
        place = span_key(span)
        self._here.add(place)
        self._awaited.discard(place)
        self._missing.discard(place)
        parent = (span.trace_id, span.parent_span_id or "")
        if span.parent_span_id and parent not in self._here:
            if span.parent_is_local:
                self._awaited.add(parent)
            if not span.parent_is_remote:
                self._missing.add(parent)

    @property
    def are_awaited(self) -> bool:
        """Whether a span's own process will export one yet."""
        return bool(self._awaited)

    @property
    def are_whole(self) -> bool:
        """Whether the spans reach up to roots, none of them without its parent, unless another process has that."""
        return bool(self._here) and not self._missing
