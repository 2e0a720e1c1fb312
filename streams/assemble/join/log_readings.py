"""What log events say of the spans that they belong to, for spans that do not say it themselves.

In: log facts of an episode, in any order, before their span or after it. Out: the span, with what only its events told.
Invariant: the same events give the same span, in any order and any number of times; what a span says itself stands; of
events that disagree nothing is taken. Memory: a few short texts a span.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest
from typing import NamedTuple

import msgspec

from tracegrad.schemas.records.facts import MAX_TOOL_CALLS, LogFact, SpanFact, SpanKind


class LogReading(NamedTuple):
    """What the events of one span say: each the smallest two texts of all, since two already disagree."""

    agent_name: tuple[str, ...] = ()
    response_id: tuple[str, ...] = ()
    tool_call_id: tuple[str, ...] = ()
    output_digest: tuple[str, ...] = ()
    requested_tool_call_ids: tuple[str, ...] = ()

    def with_(self, fact: LogFact) -> LogReading:
        """And of one event more."""
        return LogReading(
            agent_name=_least(self.agent_name, fact.agent_name),
            response_id=_least(self.response_id, fact.response_id),
            tool_call_id=_least(self.tool_call_id, fact.tool_call_id),
            output_digest=_least(self.output_digest, fact.output_digest),
            requested_tool_call_ids=_first(
                {*self.requested_tool_call_ids, *fact.requested_tool_call_ids}, MAX_TOOL_CALLS
            ),
        )

    def facts(self, place: tuple[str, str], proved_by: str) -> Iterator[LogFact]:
        """Facts that say the same, for whoever folds them anew."""
        scalars = zip_longest(self.agent_name, self.response_id, self.tool_call_id, self.output_digest)
        rows = list(scalars) or [(None, None, None, None)]
        for number, (agent, response, tool_call, digest) in enumerate(rows):
            yield LogFact(
                trace_id=place[0],
                span_id=place[1],
                event_name="",
                agent_name=agent,
                response_id=response,
                tool_call_id=tool_call,
                output_digest=digest,
                requested_tool_call_ids=() if number else self.requested_tool_call_ids,
                proved_by=proved_by,
            )


def _least(old: tuple[str, ...], new: str | None) -> tuple[str, ...]:
    return old if new is None else _first({*old, new}, 2)


def _first(texts: Iterable[str], num: int) -> tuple[str, ...]:
    return tuple(sorted(texts)[:num])


def _only(texts: tuple[str, ...]) -> str | None:
    return texts[0] if len(texts) == 1 else None


def filled(span: SpanFact, told: LogReading) -> SpanFact:
    """The span with what it lacks: of an LLM span what its answer is known by, of a tool's the id that it answers."""
    more: dict[str, object] = {}
    if span.agent_name is None and span.kind is not SpanKind.TOOL:
        more["agent_name"] = _only(told.agent_name)
    if span.kind is SpanKind.TOOL and span.tool_call_id is None:
        more["tool_call_id"] = _only(told.tool_call_id)
    if span.kind is SpanKind.LLM:
        if span.response_id is None:
            more["response_id"] = _only(told.response_id)
        if span.output_digest is None and not span.requested_tool_call_ids:
            more["output_digest"] = _only(told.output_digest)
            more["requested_tool_call_ids"] = told.requested_tool_call_ids
    return msgspec.structs.replace(span, **more) if more else span
