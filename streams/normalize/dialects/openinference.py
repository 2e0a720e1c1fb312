"""OpenInference (`openinference.span.kind`), as openinference-instrumentation-langchain emits it for LangGraph.

Measured on 0.1.80: an LLM span names the response id only inside its JSON `output.value`; a tool span names the
tool-call id only there too, and not at all when the tool raised; a span's status is OK or ERROR, never unset,
once it ended; agents are the spans whose name contains "agent".
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from tracegrad.schemas.attributes import ERROR_TYPE
from tracegrad.schemas.ids import CALL_ID
from tracegrad.schemas.records.facts import SpanKind

from .dialect import Dialect, Reading
from .judge_tool import ToolJudge
from .read_output import FLAT_KEYS, of_flat
from .span_view import MAX_TEXT, SpanView

__all__ = ["OPENINFERENCE"]

KIND = "openinference.span.kind"
AGENT_NAME = "agent.name"
TOOL_NAME = "tool.name"
TOOL_ID = "tool.id"
TOOL_CALL_ID = "tool_call.id"
OUTPUT = "output.value"

# Our gateway mints this form, so nothing else in an LLM span's output can be taken for it.
_RESPONSE_ID = re.compile(rf'"id"\s*:\s*"({CALL_ID})"')
_MAX_JSON = 1_000_000
"""Characters of a tool's output that are parsed; of a longer one neither the tool-call id nor the status is read."""


def _read(span: SpanView, judge: ToolJudge) -> Reading | None:
    kind = span.text(KIND)
    if kind is None:
        return None
    output = span.attributes.get(OUTPUT)
    text = output if isinstance(output, str) else None
    if kind == "TOOL":
        return _read_tool(span, text, judge)
    if kind == "AGENT":
        return Reading(kind=SpanKind.AGENT, agent_name=span.text(AGENT_NAME) or span.name)
    if kind == "LLM":
        match = _RESPONSE_ID.search(text) if text else None
        digest, ids = of_flat(span.attributes)
        return Reading(
            kind=SpanKind.LLM,
            response_id=match[1] if match else None,
            output_digest=None if span.is_cut else digest,
            requested_tool_call_ids=ids,
        )
    return Reading(kind=SpanKind.OTHER)


def _read_tool(span: SpanView, output: str | None, judge: ToolJudge) -> Reading:
    message = _tool_message(output)
    content = message.get("content")
    call_id = message.get("tool_call_id")
    name = span.text(TOOL_NAME) or span.name
    status, status_from = judge(span, name, output if content is None else content, message.get("status"))
    return Reading(
        kind=SpanKind.TOOL,
        tool_name=name,
        tool_call_id=(call_id[:MAX_TEXT] if isinstance(call_id, str) and call_id else None)
        or span.text(TOOL_CALL_ID)
        or span.text(TOOL_ID),
        tool_status=status,
        tool_status_from=status_from,
        error_type=span.text(ERROR_TYPE),
    )


def _tool_message(output: str | None) -> dict[str, Any]:
    """LangChain's ToolMessage in the output (bare, or in `data` or `kwargs`), or nothing."""
    if output is None or not output.startswith("{") or len(output) > _MAX_JSON:
        return {}
    try:
        decoded = msgspec.json.decode(output)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return {}
    if not isinstance(decoded, dict):
        return {}
    for inner in (decoded.get("data"), decoded.get("kwargs"), decoded):
        if isinstance(inner, dict) and "tool_call_id" in inner:
            return inner
    return {}


_KEYS = frozenset({KIND, AGENT_NAME, TOOL_NAME, TOOL_ID, TOOL_CALL_ID, OUTPUT})
OPENINFERENCE = Dialect("openinference", _KEYS | FLAT_KEYS, _read)
