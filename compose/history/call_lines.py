"""A line of a `*.calls.jsonl` file: one model call in OpenAI's chat form, as anybody can write it.

    {"id": "r1", "conversation": "c1", "agent": "solver", "started": "2026-03-01T12:00:00Z", "model": "gpt-4o",
     "messages": [{"role": "user", "content": "2+2?"}], "tools": [..], "answer": "4" or {"role": "assistant", ..},
     "finish_reason": "stop", "rewards": {"correct": 1}, "ids": {"prompt": [..], "sampled": [..], "logprobs": [..]}}

`model`, `messages` and `answer` are required. Without `tools` the call had none, as in a request; `"tools": null` says
that nobody knows. In: the bytes of a line. Out: a ToldCall, and the OTLP request of one span that
bears it on the log. Invariant: equal lines at equal places make equal spans; lines of one conversation are
one trace. Failure: RecordError: expected, got, and where in the line.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
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
from tracegrad.schemas.records.calls import ToolCall
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldIds, ToolDefinition
from tracegrad.schemas.text import decode_json

SCOPE = "tracegrad.calls"
"""The instrumentation that such spans name."""
TOLD_CALL = "tracegrad.told_call"
"""Attribute of such a span: its ToldCall in JSON, for whoever reads the history to take as it is."""


class _Function(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    arguments: str = ""
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct, frozen=True, kw_only=True):
    """A definition or a call."""

    function: _Function
    id: str = ""


class _Message(msgspec.Struct, frozen=True, kw_only=True):
    role: str
    content: str | list[dict[str, Any]] | None = None
    tool_calls: list[_Tool] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    reasoning_content: str | None = None

    def told(self) -> ChatMessage:
        parts = self.content if isinstance(self.content, list) else []
        texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
        asked = ((call.id, call.function) for call in self.tool_calls or ())
        return ChatMessage(
            role=self.role,
            content=("".join(texts) if texts else None) if isinstance(self.content, list) else self.content,
            tool_calls=tuple(ToolCall(id=name, name=made.name, arguments=made.arguments) for name, made in asked),
            tool_call_id=self.tool_call_id,
            name=self.name,
            reasoning=self.reasoning_content,
            num_other_parts=len(parts) - len(texts),
        )


class _Answer(_Message, frozen=True, kw_only=True):
    role: str = "assistant"


_Ids = list[Annotated[int, msgspec.Meta(ge=0, lt=2**31)]]


class _ToldIds(msgspec.Struct, frozen=True, kw_only=True):
    prompt: _Ids
    sampled: _Ids
    logprobs: list[float] = []


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    model: str
    messages: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    answer: str | _Answer
    id: str | None = None
    conversation: str | None = None
    agent: str | None = None
    started: Annotated[datetime, msgspec.Meta(tz=True)] | None = None
    tools: list[_Tool] | None = []
    finish_reason: str | None = None
    rewards: dict[str, float] = {}
    ids: _ToldIds | None = None


class CallLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a line says."""

    call: ToldCall
    conversation: str | None = None
    agent: str | None = None
    rewards: Mapping[str, float] = {}

    def request(self) -> ExportTraceServiceRequest:
        """One span that tells the call; a reward is its event `gen_ai.evaluation.result`."""
        call = self.call
        told = {
            GEN_AI_OPERATION_NAME: "chat",
            "gen_ai.request.model": call.model,
            GEN_AI_AGENT_NAME: self.agent,
            GEN_AI_CONVERSATION_ID: self.conversation,
            GEN_AI_RESPONSE_ID: call.response_id,
            TOLD_CALL: msgspec.json.encode(call).decode(),
        }
        made = ExportTraceServiceRequest()
        of_scope = made.resource_spans.add().scope_spans.add()
        of_scope.scope.name = SCOPE
        span = of_scope.spans.add(
            trace_id=bytes.fromhex(call.trace_id),
            span_id=bytes.fromhex(call.span_id),
            name=f"chat {call.model}",
            start_time_unix_nano=call.started_ns,
            end_time_unix_nano=call.ended_ns,
            attributes=_pairs(told),
        )
        for name, value in self.rewards.items():
            event = span.events.add(name="gen_ai.evaluation.result", time_unix_nano=call.ended_ns)
            event.attributes.extend(_pairs({"gen_ai.evaluation.name": name}))
            event.attributes.add(key="gen_ai.evaluation.score.value").value.double_value = value
        return made


def read_call_line(data: bytes, place: str, *, at_ms: int) -> CallLine:
    """What a line says. Raises RecordError.

    Args:
        place: names a call without `id`, as `file:line` does.
        at_ms: when it was, where it has no `started`: later lines, later times.
    """
    try:
        line = msgspec.convert(decode_json(data), _Line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"expected a call in OpenAI's chat form, got: {error}") from error
    ids = line.ids or _ToldIds(prompt=[], sampled=[])
    if len(ids.logprobs) not in (0, len(ids.sampled)):
        raise RecordError(f"expected {len(ids.sampled)} logprobs, got {len(ids.logprobs)} - at `$.ids.logprobs`")
    if not all(map(math.isfinite, (*line.rewards.values(), *ids.logprobs))):
        raise RecordError("expected finite rewards and logprobs, got another - at `$.rewards` or `$.ids.logprobs`")
    answer = line.answer if isinstance(line.answer, _Answer) else _Answer(content=line.answer)
    at_ns = 1_000_000 * (int(line.started.timestamp() * 1000) if line.started is not None else at_ms)
    tools = [_definition_of(tool.function) for tool in line.tools or ()]
    sampled = ToldIds(
        prompt=ids_to_bytes(ids.prompt), sampled=ids_to_bytes(ids.sampled), logprobs=logprobs_to_bytes(ids.logprobs)
    )
    call = ToldCall(
        trace_id=_id_of("trace", line.conversation or line.id or place, 32),
        span_id=_id_of("span", line.id or place, 16),
        scope=SCOPE,
        response_id=line.id,
        model=line.model,
        messages=tuple(message.told() for message in line.messages),
        tools=tuple(tools) if line.tools is not None else None,
        answer=answer.told(),
        finish_reason=line.finish_reason,
        ids=sampled if line.ids is not None else None,
        started_ns=max(at_ns, 1),
        ended_ns=max(at_ns, 1),
    )
    return CallLine(call=call, conversation=line.conversation, agent=line.agent, rewards=line.rewards)


def _definition_of(function: _Function) -> ToolDefinition:
    return ToolDefinition(name=function.name, description=function.description, parameters=function.parameters)


def _id_of(kind: str, name: str, num_hex: int) -> str:
    return hashlib.sha256(f"{kind} {name}".encode()).hexdigest()[:num_hex]


def _pairs(told: Mapping[str, str | None]) -> list[KeyValue]:
    return [KeyValue(key=key, value=AnyValue(string_value=value)) for key, value in told.items() if value]
