"""One OTLP logs request becomes log facts: what GenAI events tell of the span that they belong to.

In: `ExportLogsServiceRequest` bytes. Out: Scan. Events that are read:
`gen_ai.client.inference.operation.details` (response id, answer), `gen_ai.choice` (the answer, OpenTelemetry's older
form), `gen_ai.tool.message` (the id that a tool's result answers), and of any other `gen_ai.*` event, but an
evaluation's, the agent's name and the response's id; Codex' `codex.tool_result` is a tool's execution, with a span or
without. Invariant: texts stay out of facts but for a tool's result; a record that tells nothing, or belongs to no span,
gives none, so that an application's other logs cost no room.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tracegrad.schemas.attributes import (
    CONVERSATION_KEYS,
    GEN_AI_AGENT_NAME,
    GEN_AI_OUTPUT_MESSAGES,
    GEN_AI_RESPONSE_ID,
    SERVICE_NAME,
)
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.metrics import ATTRIBUTES_DROPPED, Metrics
from tracegrad.schemas.otlp.signal import LOGS
from tracegrad.schemas.otlp.values import AttributeValue, attributes_of, plain
from tracegrad.schemas.records.facts import LogFact
from tracegrad.schemas.text import json_value

from ..config import HistoryConfig
from .dialects.codex import TOOL_RESULT, TOOL_RESULT_KEYS, execution_of_log, trace_of_log
from .reading.agent_hints import is_wrapper
from .reading.judge_tool import ToolJudge
from .reading.read_output import NOTHING, Output, of_messages
from .reading.span_view import MAX_TEXT
from .scan import IDENTITY_KEYS, RESOURCE_KEYS, ItemSource, Scan
from .span_links import links_of_event, links_of_ids
from .told.genai_content import CHOICE, DETAILS
from .told.read_call import told_event

_PREFIX = "gen_ai."
_TOOL_MESSAGE = "gen_ai.tool.message"
_EVALUATION = "gen_ai.evaluation.result"
"""Names the answer that is judged, which may be another span's than the one that it stands in."""
_EVENT_NAME = "event.name"
"""Where the event's name stood before records had a field for it."""
_KEYS = IDENTITY_KEYS.union(
    CONVERSATION_KEYS, TOOL_RESULT_KEYS, (GEN_AI_AGENT_NAME, GEN_AI_OUTPUT_MESSAGES, GEN_AI_RESPONSE_ID, _EVENT_NAME)
)
_RESOURCE_KEYS = RESOURCE_KEYS.union(CONVERSATION_KEYS, (SERVICE_NAME,))


class LogReader:
    """Reads requests for one run. Not thread-safe."""

    def __init__(
        self, runs: Container[str], *, judge: ToolJudge, metrics: Metrics, history: HistoryConfig | None = None
    ) -> None:
        """`history`: what events tell of a model's call is read too."""
        self._runs = runs
        self._history = history
        self._judge = judge
        self._metrics = metrics

    def read(self, value: bytes, *, signer: str | None) -> Scan:
        """The log records of a request; see Scan."""
        scan = Scan(LOGS, value, signer=signer, runs=self._runs, metrics=self._metrics)
        return scan.read(self._read_record, _RESOURCE_KEYS)

    def _read_record(self, record: LogRecord, source: ItemSource, scan: Scan) -> None:
        if record.dropped_attributes_count:
            self._metrics.add(ATTRIBUTES_DROPPED, "logs", num=record.dropped_attributes_count)
        attributes = attributes_of(record.attributes, _KEYS)
        name = record.event_name or str(attributes.get(_EVENT_NAME, ""))
        if attributes.get(_EVENT_NAME) == TOOL_RESULT:
            self._read_execution(record, attributes, source, scan)
            return
        if len(record.trace_id) != 16 or len(record.span_id) != 8 or not any(record.span_id):
            return
        if self._history is not None and (call := told_event(record, source.scope, name)) is not None:
            place = scan.place(record.trace_id, attributes, source)
            if place is not None and place.is_captured:
                scan.add_told(place, call, self._history)
        told = _told(name, attributes, record) if name.startswith(_PREFIX) and name != _EVALUATION else {}
        if not any(told.values()):
            return
        place = scan.place(record.trace_id, attributes, source)
        if place is not None:
            fact = LogFact(
                trace_id=record.trace_id.hex(),
                span_id=record.span_id.hex(),
                event_name=name[:MAX_TEXT],
                proved_by=place.proved_by,
                **told,
            )
            is_captured = place.is_captured
            scan.add_fact(
                place, fact, links_of_event(fact, attributes, source.resource, self._runs) if is_captured else ()
            )

    def _read_execution(
        self, record: LogRecord, attributes: Mapping[str, AttributeValue], source: ItemSource, scan: Scan
    ) -> None:
        trace = trace_of_log(record, attributes)
        place = scan.place(trace, attributes, source)
        if place is None:
            return
        service = str(source.resource.get(SERVICE_NAME, ""))[:MAX_TEXT]
        fact = execution_of_log(record, trace, attributes, self._judge, service=service, proved_by=place.proved_by)
        if fact is not None:
            scan.add_fact(place, fact, links_of_ids(fact, self._runs) if place.is_captured else ())


def _told(name: str, attributes: Mapping[str, AttributeValue], record: LogRecord) -> dict[str, Any]:
    """The fields of a LogFact."""
    body = json_value(plain(record.body)) if name in (CHOICE, _TOOL_MESSAGE, DETAILS) else None
    said = body if isinstance(body, dict) else {}
    answer: Output = NOTHING
    if name == CHOICE:
        # Of several answers nobody knows which one the agent went on with.
        answer = of_messages([said.get("message", said)]) if said.get("index", 0) == 0 else NOTHING
    elif name == DETAILS:
        answer = of_messages(attributes.get(GEN_AI_OUTPUT_MESSAGES, said.get(GEN_AI_OUTPUT_MESSAGES)))
    response, agent = _text(attributes.get(GEN_AI_RESPONSE_ID)), _text(attributes.get(GEN_AI_AGENT_NAME))
    return {
        "agent_name": None if agent is None or is_wrapper(agent) else agent,
        "response_id": (canonical_call(response) or response) if response else None,
        "tool_call_id": _text(said.get("id")) if name == _TOOL_MESSAGE else None,
        "output_digest": answer[0],
        "requested_tool_call_ids": answer[1],
    }


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) and value else None
