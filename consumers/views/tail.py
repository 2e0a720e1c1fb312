"""Records of any topic as people read them: decoded, one line, or every field as JSON.

In: a record and the registry's topic. Out: its fields in a line, or builtins for JSON. Invariant: nothing raises; what
cannot be decoded is shown as such with its size. This is where a person asks to see content, so content is shown
(cut in the line, whole in JSON); it never goes to a log.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from google.protobuf.json_format import MessageToDict  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.made_of import (
    MADE_OF_HEADER,
    ORIGIN_HEADER,
)
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.otlp.read import decode_logs, decode_spans, service_of, spans_of
from tracegrad.schemas.reasons import reason_text
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import CLOSED, EPISODE_SCORES, EPISODES
from tracegrad.schemas.records.facts import EPISODE_EVENTS
from tracegrad.schemas.records.process_status import PROCESS_STATUS
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, ROLLOUTS
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.training import ADVANTAGES, TRAINING_STEPS
from tracegrad.schemas.records.transitions import GroupSummary, decode_group
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS
from tracegrad.schemas.topics import Topic

_CUT = 60


def as_text(topic: Topic, record: Record) -> str:
    """One line: where it lies, its key, what it says."""
    where = f"{record.partition}@{record.offset}"
    key = (record.key or b"").decode("utf-8", "replace")
    return f"{where:>10} {key[:32]:32} {_line(topic, record)}".replace("\n", " ")


def as_json(topic: Topic, record: Record) -> dict[str, Any]:
    """Every field; token ids and logprobs as lists of numbers."""
    place = {
        "partition": record.partition,
        "offset": record.offset,
        "key": (record.key or b"").decode("utf-8", "replace"),
        "timestamp_ms": record.timestamp_ms,
        "headers": {name: _header(name, value) for name, value in record.headers},
    }
    try:
        value = _builtins(_decoded(topic, record))
    except RecordError as error:
        return {**place, "error": str(error), "bytes": len(record.value or b"")}
    return {**place, "value": value}


def _header(name: str, value: bytes) -> Any:
    """The text, or what it says of a record's origin."""
    if name in (MADE_OF_HEADER, ORIGIN_HEADER):
        try:
            return msgspec.json.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return value.decode("utf-8", "replace")


def _decoded(topic: Topic, record: Record) -> Any:
    """What the record holds; itself, of a dead letter, whose value is another topic's."""
    return record if topic is Topic.DEAD_LETTERS else _DECODERS[topic](record.value)


def _builtins(decoded: Any) -> Any:
    match decoded:
        case Record():
            return {"bytes": len(decoded.value or b"")}
        case Message():
            return MessageToDict(decoded)
        case (GroupSummary() as summary, rows):
            return {**_builtins(summary), "rows": _builtins(rows)}
    plain = msgspec.to_builtins(decoded, builtin_types=(bytes,), str_keys=True, enc_hook=np.ndarray.tolist)
    return _numbers("", plain)


def _numbers(name: str, value: Any) -> Any:
    """The same, in which ids and logprobs are numbers again."""
    match value:
        case dict():
            return {key: _numbers(key, inner) for key, inner in value.items()}
        case list() | tuple():
            return [_numbers(name, item) for item in value]
        case bytes() if name == "logprobs":
            return [round(float(item), 6) for item in logprobs_from_bytes(value)]
        case bytes():
            return ids_from_bytes(value).tolist()
    return value


def _line(topic: Topic, record: Record) -> str:
    try:
        decoded = _decoded(topic, record)
    except RecordError as error:
        return f"undecodable, {len(record.value or b'')} bytes: {str(error)[:_CUT]}"
    match decoded:
        case ExportTraceServiceRequest():
            return _spans(decoded)
        case ExportLogsServiceRequest():
            return f"{sum(len(s.log_records) for r in decoded.resource_logs for s in r.scope_logs)} log records"
        case Record():
            return _dead(decoded)
        case (GroupSummary() as summary, list() as rows):
            return f"{_fields(summary)} rows={len(rows)}"
    return _fields(decoded)


def _cut(text: str | None) -> str:
    flat = " ".join((text or "").split())
    return flat if len(flat) <= _CUT else flat[: _CUT - 3] + "..."


def _fields(value: msgspec.Struct) -> str:
    """What it is, and `name=value` of each field that says more than its default, but for token ids and their like; of
    a long list how many it has."""
    words = [type(value).__name__]
    for field in msgspec.structs.fields(value):
        held = getattr(value, field.name)
        if held in (None, {}, field.default) or isinstance(held, bytes):
            continue
        text = held if isinstance(held, str) else msgspec.json.encode(held).decode()
        is_many = len(text) > _CUT and isinstance(held, tuple | list)
        words.append(f"{field.name}={len(held) if is_many else _cut(text)}")
    return " ".join(words)


def _spans(request: ExportTraceServiceRequest) -> str:
    found = [(service_of(resource_spans), span.name) for resource_spans, _, span in spans_of(request)]
    services, names = {service for service, _ in found} - {""}, {name for _, name in found}
    return f"{len(found)} spans of {', '.join(sorted(services)) or '?'}: {_cut(', '.join(sorted(names)))}"


def _dead(record: Record) -> str:
    headers = dead_letter_fields(record.headers)
    place = f"{headers.get('topic', '?')}/{headers.get('partition', '?')}@{headers.get('offset', '?')}"
    stage, reason = headers.get("stage", "?"), reason_text(headers.get("reason", "?"))
    return f"{stage}: {reason}, from {place}: {headers.get('detail', '')[:200]}"


_DECODERS: dict[Topic, Callable[[bytes | None], Any]] = {
    Topic.OTLP_SPANS: decode_spans,
    Topic.OTLP_LOGS: decode_logs,
    Topic.LLM_CALLS: LLM_CALLS.decode,
    Topic.REWARDS: REWARDS.decode,
    Topic.ROLLOUT_EVENTS: ROLLOUT_EVENTS.decode,
    Topic.ROLLOUTS: ROLLOUTS.decode,
    Topic.EPISODE_EVENTS: EPISODE_EVENTS.decode,
    Topic.CLOSED_EPISODES: CLOSED.decode,
    Topic.CLOSED_GROUPS: CLOSED.decode,
    Topic.EPISODES: EPISODES.decode,
    Topic.EPISODE_SCORES: EPISODE_SCORES.decode,
    Topic.TRANSITIONS: decode_group,
    Topic.WEIGHTS: WEIGHTS.decode,
    Topic.WEIGHT_ACKS: WEIGHT_ACKS.decode,
    Topic.TRAINING_STEPS: TRAINING_STEPS.decode,
    Topic.ADVANTAGES: ADVANTAGES.decode,
    Topic.PROCESS_STATUS: PROCESS_STATUS.decode,
}
