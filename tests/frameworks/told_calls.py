"""What the recorded model spans tell of their calls: `python -m tests.frameworks.told_calls` counts it by scope.

In: the committed recordings. Out: a table. A told call is true where its messages, rendered by the scripted engine's
template, are a prompt that the gateway recorded, with the answer and the tools' names. Invariant, which a test holds: a
call that lacks nothing is true, else it would train in other words than those that were said.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.fake_engine.scripted import ScriptedEngine
from tests.frameworks.fixture import Recording, fixtures, load
from tests.producers.llm_gateway.harness import full_prompt
from tests.streams.make import config
from tests.streams.normalize.test_dialects import read
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord, ToolCall
from tracegrad.schemas.records.facts import SpanKind
from tracegrad.schemas.records.told import ChatMessage, ToldCall
from tracegrad.streams.normalize.told.read_call import joined, told_call, told_event

_TOOLS = re.compile(r"^<\|im_start\|>system\ntools: [^\n]*<\|im_end\|>\n")
_BETWEEN_CALLS = re.compile(r"</tool_call>\s*<tool_call>")
"""The scripted model samples a line feed there, the template writes none; the gateway keeps what was sampled."""
_COLUMNS = ("spans", "prompt", "answer", "tools", "ids", "both", "true prompt", "lack nothing", "true")


class JudgedCall(NamedTuple):
    """A told call beside those that were recorded."""

    call: ToldCall
    is_true_prompt: bool
    """Its prompt, without the tools, and its answer are those of a recorded call."""
    is_true: bool
    """The tools' names too."""


def told_calls(recording: Recording) -> Iterator[ToldCall]:
    """Of each span that normalize takes for a model's."""
    rules, pieces = config(run_hash=recording.run_hash), defaultdict[tuple[str, str], list[ToldCall]](list)
    for raw in recording.records:
        for of_resource in (
            ExportLogsServiceRequest.FromString(raw.value).resource_logs if raw.topic == "otlp_logs" else ()
        ):
            for of_scope in of_resource.scope_logs:
                for record in of_scope.log_records:
                    piece = told_event(record, of_scope.scope.name, record.event_name)
                    if piece is not None:
                        pieces[piece.trace_id, piece.span_id].append(piece)
    for raw in recording.records:
        if raw.topic != "otlp_spans":
            continue
        models = {(fact.trace_id, fact.span_id) for fact in read(raw.value, rules) if fact.kind is SpanKind.LLM}
        for of_resource in ExportTraceServiceRequest.FromString(raw.value).resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    key = span.trace_id.hex(), span.span_id.hex()
                    if key in models:
                        yield joined(told_call(span, of_scope.scope.name), pieces.get(key, ()))


def judged(recording: Recording) -> list[JudgedCall]:
    """Its told calls, each compared with all true ones."""
    calls = [
        call
        for raw in recording.records
        if raw.topic == "llm_calls"
        if isinstance(call := LLM_CALLS.decode(raw.value), CallRecord)
    ]
    true = {(plain_text(full_prompt(call, calls)), _said(call.content, call.tool_calls)) for call in calls}
    bare = {(_TOOLS.sub("", prompt), said) for prompt, said in true}
    found = []
    for one in told_calls(recording):
        told = ("", "")
        if one.messages is not None and one.answer is not None:
            told = _rendered(one), _said(one.answer.content, one.answer.tool_calls)
        found.append(JudgedCall(one, (_TOOLS.sub("", told[0]), told[1]) in bare, told in true))
    return found


def _rendered(call: ToldCall) -> str:
    tools = [{"function": {"name": tool.name}} for tool in call.tools or ()]
    fields = ("role", "content", "tool_calls", "tool_call_id")
    sent = (Message(**{name: getattr(message, name) for name in fields}) for message in call.messages or ())
    # As the gateway orders results before any template writes them.
    messages = [_chat(message) for message in with_whole_answers(ChatRequest(messages=tuple(sent))).messages]
    return plain_text(_engine().render(messages, tools, generation_prompt=True))


def _said(content: str | None, calls: Iterable[ToolCall]) -> str:
    ids = _engine().render(
        [_chat(ChatMessage(role="assistant", content=content, tool_calls=tuple(calls)))], None, generation_prompt=False
    )
    return _engine().tokenizer.decode(ids)


def _chat(message: ChatMessage | Message) -> dict[str, Any]:
    calls = [{"function": {"name": call.name, "arguments": call.arguments}} for call in message.tool_calls]
    return {"role": message.role, "content": message.content, "tool_calls": calls}


def plain_text(ids: Iterable[int]) -> str:
    """What token ids spell, as the engine's template would write it."""
    return _BETWEEN_CALLS.sub("</tool_call><tool_call>", _engine().tokenizer.decode([*ids]))


@cache
def _engine() -> ScriptedEngine:
    return ScriptedEngine()


def _counts(one: JudgedCall) -> tuple[bool, ...]:
    call = one.call
    prompt, answer, tools, ids = (told is not None for told in (call.messages, call.answer, call.tools, call.ids))
    return (
        True,
        prompt,
        answer,
        tools,
        ids,
        prompt and answer,
        one.is_true_prompt,
        not call.lacks,
        one.is_true and not call.lacks,
    )


def main() -> None:
    """Prints the table."""
    rows, lacks = defaultdict[str, Counter[str]](Counter), defaultdict[str, Counter[str]](Counter)
    for path in fixtures():
        for one in judged(load(path)):
            for scope in (one.call.scope, "~ all"):
                rows[scope].update(name for name, told in zip(_COLUMNS, _counts(one), strict=True) if told)
                lacks[scope].update(map(str, one.call.lacks))
    print(f"{'scope':64}" + "".join(f"{name:>13}" for name in _COLUMNS))
    for scope in sorted(rows):
        print(f"{scope:64}" + "".join(f"{rows[scope][name]:13}" for name in _COLUMNS), dict(lacks[scope]))


if __name__ == "__main__":
    main()
