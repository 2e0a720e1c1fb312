"""One OTLP logs request becomes log facts: what GenAI events tell of the span that they belong to.

In: `ExportLogsServiceRequest` bytes, from our gateway or any Collector. Out: LogScan. Events that are read:
`gen_ai.client.inference.operation.details` (response id, answer), `gen_ai.choice` (the answer, OpenTelemetry's older
form), `gen_ai.tool.message` (the id that a tool's result answers), and of any other `gen_ai.*` event the agent's name
and the response's id. Invariant: texts stay out of facts; a record that tells nothing, or belongs to no span, gives
none, so that an application's other logs cost no room. One bad record does not harm its neighbours.
Failure: RecordError `undecodable` of a request of which nothing can be read.
"""

from __future__ import annotations

from collections.abc import Container
from typing import Any, NamedTuple

import msgspec
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tracegrad.schemas.attributes import (
    ATTEMPT_KEYS,
    GEN_AI_AGENT_NAME,
    GEN_AI_OUTPUT_MESSAGES,
    GEN_AI_RESPONSE_ID,
    PROVED_BY,
    ROLLOUT_KEYS,
)
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import attempt_of, canonical_call
from tracegrad.schemas.mac import is_by_own_run
from tracegrad.schemas.metrics import NOT_SELECTED, Metrics
from tracegrad.schemas.otlp.salvage import damaged, salvage
from tracegrad.schemas.otlp.signal import LOGS, items_of
from tracegrad.schemas.records.facts import LinkFact, LogFact

from .conversations import links_of_ids
from .identity import claim_of, episode_of
from .reading.otlp_values import attributes_of, plain
from .reading.read_output import NOTHING, Output, of_messages

__all__ = ["LogReader", "LogScan"]

_PREFIX = "gen_ai."
_DETAILS = "gen_ai.client.inference.operation.details"
_CHOICE = "gen_ai.choice"
_TOOL_MESSAGE = "gen_ai.tool.message"
_EVENT_NAME = "event.name"
"""Where the event's name stood before records had a field for it."""
_IDENTITY = frozenset((*ROLLOUT_KEYS, *ATTEMPT_KEYS))
_KEYS = _IDENTITY | {GEN_AI_AGENT_NAME, GEN_AI_OUTPUT_MESSAGES, GEN_AI_RESPONSE_ID, _EVENT_NAME}
_RESOURCE_KEYS = _IDENTITY | {PROVED_BY}
_MAX_TEXT = 200


class LogScan(NamedTuple):
    """What one request holds."""

    facts: dict[tuple[str, str], list[LogFact]]
    """By episode and sender."""
    refused: dict[str, tuple[RecordError, int]]
    """Reason -> the first record that was refused for it, and its number."""
    links: dict[str, dict[LinkFact, None]]
    """By episode, as in SpanScan."""
    damage: RecordError | None
    """Some of the request cannot be read."""


class LogReader:
    """Reads requests for one run. Not thread-safe."""

    def __init__(self, runs: Container[str], *, metrics: Metrics) -> None:
        self._runs = runs
        self._metrics = metrics

    def read(self, value: bytes, *, signer: str | None) -> LogScan:
        """As SpanReader.read."""
        request, lost = salvage(LOGS, value)
        scan = LogScan({}, {}, {}, damaged(lost))
        resource_of, resource = None, dict[str, Any]()
        for number, (of_resource, _, record) in enumerate(items_of(LOGS, request)):
            if resource_of is not of_resource:
                resource_of, resource = (
                    of_resource,
                    attributes_of(of_resource.resource.attributes, _RESOURCE_KEYS),
                )
            try:
                self._read_record(record, resource, signer, scan)
            except RecordError as error:
                scan.refused.setdefault(error.reason, (error, number))
        return scan

    def _read_record(self, record: LogRecord, resource: dict[str, Any], signer: str | None, scan: LogScan) -> None:
        if len(record.trace_id) != 16 or len(record.span_id) != 8 or not any(record.span_id):
            return
        attributes = attributes_of(record.attributes, _KEYS)
        name = record.event_name or str(attributes.get(_EVENT_NAME, ""))
        told = _told(name, attributes, record) if name.startswith(_PREFIX) else {}
        if not any(told.values()):
            return
        rollout, attempt = (claim_of(keys, attributes, resource) for keys in (ROLLOUT_KEYS, ATTEMPT_KEYS))
        episode = episode_of(rollout, attempt, record.trace_id.hex(), self._runs)
        if episode is None:
            self._metrics.add(NOT_SELECTED, "log records")
            return
        is_seen = attempt_of(episode, self._runs) is not None and is_by_own_run(signer, episode)
        proved_by = str(resource.get(PROVED_BY, "")) if is_seen else ""
        fact = LogFact(
            trace_id=record.trace_id.hex(),
            span_id=record.span_id.hex(),
            event_name=name[:_MAX_TEXT],
            proved_by=proved_by,
            **told,
        )
        scan.facts.setdefault((episode, proved_by), []).append(fact)
        if attempt_of(episode, self._runs) is None:
            scan.links.setdefault(episode, {}).update(dict.fromkeys(links_of_ids(fact, self._runs)))


def _told(name: str, attributes: dict[str, Any], record: LogRecord) -> dict[str, Any]:
    """The fields of a LogFact."""
    body = plain(record.body) if name in (_CHOICE, _TOOL_MESSAGE, _DETAILS) else None
    if isinstance(body, str):
        body = _json(body)
    said = body if isinstance(body, dict) else {}
    answer: Output = NOTHING
    if name == _CHOICE:
        # Of several answers nobody knows which one the agent went on with.
        answer = of_messages([said.get("message", said)]) if said.get("index", 0) == 0 else NOTHING
    elif name == _DETAILS:
        answer = of_messages(attributes.get(GEN_AI_OUTPUT_MESSAGES, said.get(GEN_AI_OUTPUT_MESSAGES)))
    response = _text(attributes.get(GEN_AI_RESPONSE_ID))
    return {
        "agent_name": _text(attributes.get(GEN_AI_AGENT_NAME)),
        "response_id": (canonical_call(response) or response) if response else None,
        "tool_call_id": _text(said.get("id")) if name == _TOOL_MESSAGE else None,
        "output_digest": answer[0],
        "requested_tool_call_ids": answer[1],
    }


def _text(value: object) -> str | None:
    return value[:_MAX_TEXT] if isinstance(value, str) and value else None


def _json(text: str) -> object:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, UnicodeEncodeError):
        return None
