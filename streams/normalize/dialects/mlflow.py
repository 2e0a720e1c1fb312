"""MLflow's tracing (`mlflow.spanType`), in which every attribute is JSON, also a plain text.

`mlflow.spanOutputs` holds the model's raw response, so the response id too; a tool is called as its span.
"""

from __future__ import annotations

from tracegrad.schemas.records.facts import SpanKind

from ..reading.agent_hints import agent_of_span
from ..reading.read_output import minted_in, of_response
from ..reading.span_view import SpanView, json_value
from ..reading.tool_message import tool_message
from .dialect import OTHER, Dialect, Reading, agent

__all__ = ["MLFLOW"]

_TYPE = "mlflow.spanType"
_OUTPUTS = "mlflow.spanOutputs"


def _read(span: SpanView) -> Reading | None:
    if _TYPE not in span.attributes:
        return None
    kind = json_value(span.attributes[_TYPE])
    outputs = span.attributes.get(_OUTPUTS)
    if kind in ("CHAT_MODEL", "LLM"):
        digest, asked = of_response(outputs)
        return Reading(
            kind=SpanKind.LLM, response_id=minted_in(outputs), output_digest=digest, requested_tool_call_ids=asked
        )
    if kind == "TOOL":
        message = tool_message(outputs)
        return Reading(
            kind=SpanKind.TOOL,
            is_guess=True,
            tool_name=span.name,
            tool_call_id=message.call_id,
            results=() if message.content is None else (message.content,),
            declared=() if message.status is None else (message.status,),
        )
    return agent(None, guess=agent_of_span(span.name)) if kind == "AGENT" else OTHER


MLFLOW = Dialect("mlflow", frozenset({_TYPE}), frozenset({_OUTPUTS}), _read)
