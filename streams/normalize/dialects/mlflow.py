"""MLflow's tracing (`mlflow.spanType`), in which every attribute is JSON, also a plain text.

`mlflow.spanOutputs` holds the model's raw response, so the response id too; a tool is called as its span.
"""

from __future__ import annotations

from tracegrad.schemas.text import json_value

from ..reading.agent_hints import agent_of_span
from ..reading.span_view import SpanView
from .dialect import OTHER, Dialect, SpanReading, agent, answer, tool

_TYPE = "mlflow.spanType"
_OUTPUTS = "mlflow.spanOutputs"


def _read(span: SpanView) -> SpanReading | None:
    if _TYPE not in span.attributes:
        return None
    kind = json_value(span.attributes[_TYPE])
    outputs = span.attributes.get(_OUTPUTS)
    if kind in ("CHAT_MODEL", "LLM"):
        return answer(outputs)
    if kind == "TOOL":
        return tool(None, guess=span.name, output=outputs)
    return agent(None, guess=agent_of_span(span.name)) if kind == "AGENT" else OTHER


MLFLOW = Dialect("mlflow", frozenset({_TYPE}), frozenset({_OUTPUTS}), _read)
