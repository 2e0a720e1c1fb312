"""A line of a `*.calls.jsonl` file: one model call in OpenAI's chat form, as anybody can write it.

    {"id": "r1", "conversation": "c1", "agent": "solver", "started": "2026-03-01T12:00:00Z", "model": "gpt-4o",
     "messages": [{"role": "user", "content": "2+2?"}], "tools": [..], "answer": "4" or {"role": "assistant", ..},
     "finish_reason": "stop", "rewards": {"correct": 1}, "ids": {"prompt": [..], "sampled": [..], "logprobs": [..]}}

`model`, `messages` and `answer` are required. Without `tools` the call had none, as in a request; `"tools": null` says
that nobody knows. In: the bytes of a line. Out: the OTLP request of one span that holds the raw request and response,
where OpenInference keeps them: what they tell is read as of any other span (streams/normalize/told). Invariant: equal
lines at equal places make equal spans; lines of one conversation are one trace. Failure: RecordError: expected, got,
and where in the line.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Annotated, Any

import msgspec
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracegrad.schemas.attributes import (
    GEN_AI_AGENT_NAME,
    GEN_AI_CONVERSATION_ID,
    GEN_AI_OPERATION_NAME,
    GEN_AI_RESPONSE_ID,
)
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.text import decode_json

SCOPE = "tracegrad.calls"
"""The instrumentation that such spans name."""
_Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
_Logprob = Annotated[float, msgspec.Meta(ge=-1e300, le=0)]
_Id = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str


class _Ids(msgspec.Struct, frozen=True, kw_only=True):
    prompt: list[_Id]
    sampled: list[_Id]
    logprobs: list[_Logprob] = []

    def __post_init__(self) -> None:
        if len(self.logprobs) not in (0, len(self.sampled)):
            raise ValueError(f"expected {len(self.sampled)} logprobs, got {len(self.logprobs)}")


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    answer: str | dict[str, Any]
    id: str | None = None
    conversation: str | None = None
    agent: str | None = None
    started: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    tools: list[dict[str, Any]] | None = []
    finish_reason: str | None = None
    rewards: dict[str, _Finite] = {}
    ids: _Ids | None = None


def read_call_line(data: bytes, place: str, *, at_ms: int) -> ExportTraceServiceRequest:
    """One span that tells the call; a reward is its event `gen_ai.evaluation.result`. Raises RecordError.

    Args:
        place: names a call without `id`, as `file:line` does.
        at_ms: when it was, where it has no `started`: later lines, later times.
    """
    try:
        given = decode_json(data)
        line = msgspec.convert(given, _Line)
        # A request without its model is no whole one: whether it had tools is not known.
        names = ("messages",) if line.tools is None else ("messages", "tools", "model")
        bodies = {"input.value": {name: given.get(name) for name in names}, "output.value": _response(line)}
        told = {name: msgspec.json.encode(body).decode() for name, body in bodies.items()}
    except (ValueError, OverflowError, RecursionError) as error:
        raise RecordError(f"expected a call in OpenAI's chat form, got: {error}") from error
    told |= {GEN_AI_OPERATION_NAME: "chat", "gen_ai.request.model": line.model}
    named = {GEN_AI_AGENT_NAME: line.agent, GEN_AI_CONVERSATION_ID: line.conversation, GEN_AI_RESPONSE_ID: line.id}
    told |= {key: name for key, name in named.items() if name}
    at_ns = 1_000_000 * max(int(line.started.timestamp() * 1000) if line.started is not None else at_ms, 1)
    made = ExportTraceServiceRequest()
    of_scope = made.resource_spans.add().scope_spans.add()
    of_scope.scope.name = SCOPE
    span = of_scope.spans.add(
        trace_id=_id_of("trace", line.conversation or line.id or place, 16),
        span_id=_id_of("span", line.id or place, 8),
        name=f"chat {line.model}",
        start_time_unix_nano=at_ns,
        end_time_unix_nano=at_ns,
        attributes=[KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in told.items()],
    )
    for name, value in line.rewards.items():
        event = span.events.add(name="gen_ai.evaluation.result", time_unix_nano=at_ns)
        event.attributes.add(key="gen_ai.evaluation.name").value.string_value = name
        event.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = value
    return made


def _response(line: _Line) -> dict[str, Any]:
    """As vLLM gives it, where the line holds ids."""
    message = line.answer if isinstance(line.answer, dict) else {"content": line.answer}
    choice = {"message": {"role": "assistant", **message}, "finish_reason": line.finish_reason}
    if line.ids is None:
        return {"id": line.id, "choices": [choice]}
    ids = {"token_ids": line.ids.sampled, "logprobs": {"content": line.ids.logprobs}}
    return {"id": line.id, "choices": [{**choice, **ids}], "prompt_token_ids": line.ids.prompt}


def _id_of(kind: str, name: str, num_bytes: int) -> bytes:
    return hashlib.sha256(f"{kind} {name}".encode()).digest()[:num_bytes]
