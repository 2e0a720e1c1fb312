"""One execution of a tool that several spans tell of, each within the other: a framework's, an instrumentation's, a
transport's (MCP).

In: the tree of the spans of an episode. Out: its tools' spans, each with the id and the outcome of its execution; of
those without any id one an execution, the innermost, and none where one within has an id. A span tells of the same
execution as the one above that names the same tool, unless both have ids and these differ; no agent and no model lies
between. Above may be a place that is no tool's span but knows the id (a step of LlamaIndex). The outermost that has
more than the end of its span to judge by is believed: it saw whether a failure within was dealt with. Where none has,
or that one is in doubt, the far side of the execution is (MCP's server), else the end of the innermost, if it tells
something.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from tracegrad.schemas.records.facts import SpanFact, SpanKind, ToolStatus

from .span_tree import SpanKey, SpanTree, span_key

_MAX_ABOVE = 16
"""Spans between two that tell of one execution."""


def executions(tree: SpanTree) -> list[SpanFact]:
    """The tools' spans, in the order of the tree's."""
    spans = tree.spans
    anonymous: dict[SpanKey, SpanFact] = {}
    stacks = [_stack(span, tree) for span in spans if span.kind is SpanKind.TOOL]
    served, statuses = _served(spans, tree), _http_statuses(spans, tree)
    identified = {span_key(span) for stack in stacks if _has_id(stack) for span in stack}
    for stack in stacks:
        if not _has_id(stack) and span_key(stack[0]) not in identified:
            outermost = span_key(stack[-1])
            old = anonymous.get(outermost)
            if old is None or leaf_rank(tree, stack[0]) > leaf_rank(tree, old):
                anonymous[outermost] = stack[0]
    kept = {span_key(span) for span in anonymous.values()}
    return [_whole(stack, served, statuses) for stack in stacks if _has_id(stack) or span_key(stack[0]) in kept]


def _has_id(stack: Iterable[SpanFact]) -> bool:
    return any(span.tool_call_id for span in stack)


def leaf_rank(tree: SpanTree, span: SpanFact) -> tuple[int, int, str, str]:
    """Of spans that tell of one execution the greatest is its own: the leaf-most, then the last."""
    return tree.above(span).depth, span.end_ns, span.trace_id, span.span_id


def _stack(span: SpanFact, tree: SpanTree) -> list[SpanFact]:
    """The span and those above that tell of the same execution, the innermost first."""
    stack, step = [span], tree.parent(span)
    call_id = span.tool_call_id
    for _ in range(_MAX_ABOVE):
        if step is None or step.kind in (SpanKind.AGENT, SpanKind.LLM):
            break
        is_tool = step.kind is SpanKind.TOOL or step.tool_call_id is not None
        if is_tool:
            if _name(step) != _name(span) or (call_id and step.tool_call_id and step.tool_call_id != call_id):
                break
            stack.append(step)
            call_id = call_id or step.tool_call_id
        step = tree.parent(step)
    return stack


def _served(spans: Iterable[SpanFact], tree: SpanTree) -> dict[SpanKey, SpanFact]:
    """Place of a tool's span -> the far side of its execution, where there is one."""
    found: dict[SpanKey, SpanFact] = {}
    for span in spans:
        if span.kind is SpanKind.OTHER and span.tool_status_from and (tool := _tool_around(span, tree)) is not None:
            old = found.get(span_key(tool))
            found[span_key(tool)] = span if old is None else max(old, span, key=lambda one: leaf_rank(tree, one))
    return found


def _http_statuses(spans: Iterable[SpanFact], tree: SpanTree) -> dict[SpanKey, int]:
    """Place of a tool's span -> the status of the last HTTP request that it made, told by a span below."""
    last: dict[SpanKey, tuple[int, int]] = {}
    for span in spans:
        if span.kind is SpanKind.OTHER and span.http_status and (tool := _tool_around(span, tree)) is not None:
            # Of a client's span and the server's within it, which ended before, the client's counts.
            told = (span.end_ns, span.http_status)
            last[span_key(tool)] = max(told, last.get(span_key(tool), told))
    return {place: status for place, (_, status) in last.items()}


def _tool_around(span: SpanFact, tree: SpanTree) -> SpanFact | None:
    """The tool within which a span lies, if no agent and no model is between."""
    step = tree.parent(span)
    for _ in range(_MAX_ABOVE):
        if step is None or step.kind is not SpanKind.OTHER:
            break
        step = tree.parent(step)
    return step if step is not None and step.kind is SpanKind.TOOL else None


def _whole(stack: list[SpanFact], served: Mapping[SpanKey, SpanFact], statuses: Mapping[SpanKey, int]) -> SpanFact:
    judged = [span for span in reversed(stack) if span.kind is SpanKind.TOOL]
    best = next((span for span in judged if not _is_weak(span)), None)
    if best is None or best.tool_status is ToolStatus.UNKNOWN:
        far = next((served[span_key(span)] for span in stack if span_key(span) in served), None)
        # That a wrapper ended well says nothing of what the span within does not tell.
        best = far or best or judged[-1]
    told = [best, *stack]
    holds = next((span for span in told if span.tool_result is not None), best)
    http = next((status for span in told if (status := span.http_status or statuses.get(span_key(span)))), None)
    if len(stack) == 1 and best is stack[0] and http == best.http_status:
        return stack[0]
    return msgspec.structs.replace(
        stack[0],
        tool_call_id=next((span.tool_call_id for span in stack if span.tool_call_id), None),
        tool_status=best.tool_status,
        tool_status_from=best.tool_status_from,
        error_type=best.error_type,
        tool_result=holds.tool_result,
        is_result_cut=holds.is_result_cut,
        http_status=http,
    )


def _is_weak(span: SpanFact) -> bool:
    """Whether nothing but the end of the span was there to judge by."""
    return not span.tool_status_from or (
        span.tool_status_from == "span_status" and span.tool_status is not ToolStatus.FAILED
    )


def _name(span: SpanFact) -> str:
    return span.tool_name or span.name
