"""A model's span, and log events of it, become what they tell of the call.

In: a span that a dialect knows for a model's, with its scope; a log record. Out: ToldCall. Only a run that reads a
history asks for this: the wider set of attributes is decoded here, of model's spans alone. Pure; never raises for what
a span may hold. Invariant: a call without `lacks` is whole: prompt, answer and tools are known as they were sent.
"""

from __future__ import annotations

from collections.abc import Container, Iterable
from itertools import groupby

import msgspec
from opentelemetry.proto.common.v1.common_pb2 import KeyValue
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.otlp.values import AttributeValue, attributes_of, plain
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.records.rollouts import is_usable
from tracegrad.schemas.records.told import ChatMessage, ToldCall, ToldSampling
from tracegrad.schemas.text import json_value

from ..reading.judge_tool import STATUS_ERROR
from ..reading.returned import USAGE_KEYS, usage_of
from ..reading.span_view import MAX_TEXT, SpanView
from .call_content import CallContent, Convention
from .chat_messages import MessageReading, in_order, is_deep, read_tools
from .genai_content import DEFINITIONS, DETAILS, GENAI, MESSAGE_EVENTS, bodies_of_events
from .openinference_content import OPENINFERENCE_CONTENT
from .platform_content import PLATFORMS
from .raw_call import read_bodies
from .tellers import AGENT_TELLERS, FAILURE_REWRITERS, PART_TELLERS, REWRITERS, ROW_JOINERS, TOOL_TELLERS

CONVENTIONS: tuple[Convention, ...] = (OPENINFERENCE_CONTENT, *PLATFORMS, GENAI)
"""Those that hold raw bodies come first. A new convention is a new row."""

_EVALUATION, _NAME, _SCORE = (f"gen_ai.evaluation.{key}" for key in ("result", "name", "score.value"))
_ABSENT_IN_ORDER = (Reason.NO_PROMPT_TOLD, Reason.NO_ANSWER_TOLD, Reason.NO_TOOLS_TOLD)
_ABSENT = frozenset(_ABSENT_IN_ORDER)


class _ContentKeys:
    """The attributes that some convention names, or begins."""

    _beginnings = tuple({key for row in CONVENTIONS for key in row.keys} | USAGE_KEYS)

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.startswith(self._beginnings)


_MAX_PLAIN_DEPTH = 8
"""How deep `plain` reads a structured value."""
CONTENT_KEYS = _ContentKeys()
"""The wider set of keys, which only a run that reads a history decodes."""


def told_call(span: Span, scope: str) -> ToldCall:
    """What a model's span tells."""
    events = ((event.name, _whole(event.attributes)) for event in span.events if event.name in MESSAGE_EVENTS)
    view = SpanView(
        name=span.name,
        attributes=_whole(span.attributes),
        status=span.status.code,
        has_exception=False,
        is_cut=span.dropped_attributes_count > 0 or span.dropped_events_count > 0,
        scope=scope,
        message_events=tuple(events),
    )
    spoken = [row for row in CONVENTIONS if row is GENAI or any(key.startswith(row.keys) for key in view.attributes)]
    content = read_bodies(bodies for row in spoken for bodies in row.read(view))
    is_over = span.end_time_unix_nano > 0 and span.status.code != STATUS_ERROR
    is_whole = is_over and not (content.is_stream and content.finish_reason is None)
    call = _call(content, span, scope, span.start_time_unix_nano, span.end_time_unix_nano)
    scored = (_whole(event.attributes) for event in span.events if event.name == _EVALUATION)
    said = ((str(one.get(_NAME, "reward")), one.get(_SCORE)) for one in scored)
    rewards = tuple((name, float(value)) for name, value in said if isinstance(value, int | float) and is_usable(value))
    call = msgspec.structs.replace(call, rewards=rewards, **usage_of(view.attributes, SpanKind.LLM))
    flaws = {*map(Reason, call.lacks), *(() if is_whole else (Reason.UNFINISHED,))}
    return _judged(call, flaws, are_odd=Reason.NO_TOOLS_TOLD in call.lacks)


def told_tools(span: Span, scope: str) -> ToldCall | None:
    """What an agent's span tells of the tools of its calls; None: nothing, or perhaps not as they are sent."""
    tools = read_tools(_whole(span.attributes, {DEFINITIONS}).get(DEFINITIONS))
    call = _call(CallContent(tools=tools), span, scope, span.start_time_unix_nano, span.end_time_unix_nano)
    return msgspec.structs.replace(call, is_event=True) if tools is not None and scope in AGENT_TELLERS else None


def told_event(record: LogRecord, scope: str, name: str) -> ToldCall | None:
    """The part of a call that a log record tells, by the span that it belongs to; None: it tells of none."""
    if name not in MESSAGE_EVENTS or len(record.trace_id) != 16 or len(record.span_id) != 8:
        return None
    said = plain(record.body)
    body = {} if is_deep(said, _MAX_PLAIN_DEPTH) else json_value(said)
    told = body if isinstance(body, dict) else {}
    at = record.time_unix_nano or record.observed_time_unix_nano
    told = {**(_whole(record.attributes) if name == DETAILS or not told else {}), **told}
    found = _call(read_bodies([bodies_of_events([(name, told)], scope)]), record, scope, at, at)
    return msgspec.structs.replace(found, is_event=True)


def joined(span: ToldCall, events: Iterable[ToldCall]) -> ToldCall:
    """A span's call with what its log events tell besides, in the order of their times; what the span tells stands."""
    pieces = sorted(events, key=lambda event: event.started_ns)
    prompt = in_order(MessageReading(one.messages, frozenset(map(Reason, one.lacks))) for one in pieces)
    found = {
        name: next((told for one in (span, *pieces) if (told := getattr(one, name)) is not None), None)
        for name in ("answer", "tools", "finish_reason", "response_id")
    }
    is_needed = span.messages is None or span.answer is None
    call = msgspec.structs.replace(span, messages=span.messages or prompt.messages, **found)
    are_odd = span.messages is not None and Reason.NO_TOOLS_TOLD in span.lacks
    return _judged(call, {*map(Reason, span.lacks), *(prompt.flaws if is_needed else ())}, are_odd=are_odd)


def _call(content: CallContent, of: Span | LogRecord, scope: str, started_ns: int, ended_ns: int) -> ToldCall:
    return ToldCall(
        trace_id=of.trace_id.hex(),
        span_id=of.span_id.hex(),
        scope=scope[:MAX_TEXT],
        model=content.model or "",
        messages=_in_rows(content.prompt.messages) if scope in ROW_JOINERS else content.prompt.messages,
        answer=next(iter(content.answer.messages or ()), None),
        sampling=content.sampling or ToldSampling(),
        lacks=tuple(sorted(content.prompt.flaws | content.answer.flaws)),
        started_ns=started_ns,
        ended_ns=ended_ns,
        **{name: getattr(content, name) for name in ("response_id", "tools", "finish_reason", "ids")},
    )


def _in_rows(messages: Iterable[ChatMessage] | None) -> tuple[ChatMessage, ...] | None:
    made = []
    for role, row in groupby(messages or (), key=lambda message: message.role):
        contents, others = zip(*((one.content or "", one.num_other_parts) for one in row), strict=True)
        made.append(ChatMessage(role=role, content="\n".join(contents), num_other_parts=sum(others)))
    return tuple(made) or None


def _whole(pairs: Iterable[KeyValue], keys: Container[str] = CONTENT_KEYS) -> dict[str, AttributeValue]:
    """The wanted attributes, but for those of which the deepest values are lost."""
    told = attributes_of(pairs, keys)
    return {key: value for key, value in told.items() if not is_deep(value, _MAX_PLAIN_DEPTH)}


def _judged(call: ToldCall, flaws: Iterable[Reason], *, are_odd: bool) -> ToldCall:
    """The call with all that it lacks. `are_odd`: it has tools that cannot be read."""
    lacks = set(flaws) - _ABSENT
    tools = None if call.scope in PART_TELLERS else call.tools
    if tools is None and call.messages is not None and not are_odd and Reason.CONTENT_CUT not in lacks:
        tools = () if call.scope in TOOL_TELLERS else None
    if call.scope in REWRITERS and call.messages is not None:
        lacks.add(Reason.CONTENT_REWRITTEN)
    if call.scope in FAILURE_REWRITERS and any(message.role == "tool" for message in call.messages or ()):
        lacks.add(Reason.FAILURE_REWRITTEN)
    absent = zip(_ABSENT_IN_ORDER, (call.messages, call.answer, tools), strict=True)
    return msgspec.structs.replace(
        call, tools=tools, lacks=(*sorted(lacks), *(reason for reason, told in absent if told is None))
    )
