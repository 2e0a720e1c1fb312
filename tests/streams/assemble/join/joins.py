"""The joins of an episode's spans, given as they lie there."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.facts import SpanFact
from tracegrad.streams.assemble.join import calls as of_calls
from tracegrad.streams.assemble.join import tools as of_tools
from tracegrad.streams.assemble.join.calls import CallJoin
from tracegrad.streams.assemble.join.span_tree import SpanTree
from tracegrad.streams.assemble.join.stacked_tools import executions


def join_calls(calls: Sequence[CallRecord], spans: Sequence[SpanFact]) -> list[CallJoin]:
    """How each call is joined to the tree of these spans."""
    return of_calls.join_calls(calls, SpanTree(spans))


def join_tools(
    calls: Sequence[CallRecord], joined: Sequence[CallJoin], spans: Sequence[SpanFact]
) -> list[list[tuple[SpanFact, str]]]:
    """The executions of each call."""
    tree = SpanTree(spans)
    return of_tools.join_tools(calls, joined, executions(tree), tree)


def tool_spans(spans: Sequence[SpanFact]) -> list[SpanFact]:
    """All executions."""
    tree = SpanTree(spans)
    return of_tools.tool_spans(executions(tree), tree)
