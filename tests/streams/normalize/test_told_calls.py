"""What each convention tells of a model's call: spans and log records as instrumentations write them, and ToldCall."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue, KeyValueList
from opentelemetry.proto.logs.v1.logs_pb2 import LogRecord

from tests.streams.make import pairs
from tests.streams.normalize.rows_of_told_calls import (
    ANSWER,
    ASKED,
    CHAT,
    CHOICE,
    GENAI,
    OI,
    OI_FLAT,
    OLD,
    OTEL,
    PARTS,
    PROMPT,
    RESPONSE,
    RESULT,
    ROWS,
    SAID,
    TOOL,
    made,
)  # fmt: skip
from tests.streams.normalize.test_dialects import TRACE
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.told import ToldCall, ToldIds, ToolDefinition
from tracegrad.streams.normalize.told.read_call import CONTENT_KEYS, joined, told_call, told_event


def lacks(attributes: dict[str, Any], scope: str = f"{OTEL}anthropic", **fields: Any) -> tuple[str, ...]:
    """What a span's call lacks."""
    return told_call(made(attributes, **fields), scope).lacks


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
def test_a_convention_tells_the_whole_call(row: tuple[str, dict[str, Any], dict[str, Any]]) -> None:
    """Prompt, tools, answer, model and finish reason, in whatever form; nothing is lacking."""
    scope, attributes, more = row
    call = told_call(made(attributes), scope)
    said = [msgspec.structs.replace(message, content=message.content or None) for message in call.messages or ()]
    if "messages" not in more:
        assert [msgspec.structs.replace(message, name=None) for message in said] == list(PROMPT)
    expected = {"tools": (TOOL,), "answer": ANSWER, "model": "m", "finish_reason": "stop", "lacks": ()} | more
    assert {name: getattr(call, name) for name in expected} == expected
    assert (call.trace_id, call.span_id, call.scope) == (TRACE, "0" * 15 + "1", scope)


def test_events_of_a_span_tell_the_call() -> None:
    """Each message is an event, whose values are JSON, as Strands writes them."""
    events: list[tuple[str, dict[str, Any]]] = [
        ("gen_ai.system.message", {"content": [{"text": "Be short."}]}),
        ("gen_ai.user.message", {"content": [{"text": "Weather in Oslo?"}]}),
        (
            "gen_ai.assistant.message",
            {"content": [{"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Oslo"}}}]},
        ),
        ("gen_ai.tool.message", {"content": [{"toolResult": {"toolUseId": "c1", "content": [{"text": "sunny"}]}}]}),
        ("gen_ai.choice", {"message": [{"text": "Sunny."}], "finish_reason": "end_turn"}),
    ]
    call = told_call(made({"gen_ai.request.model": "m"}, events), "strands.telemetry.tracer")
    assert (call.messages, call.answer, call.finish_reason) == (PROMPT, ANSWER, "stop")
    assert call.lacks == ("no_tools_told",)


def test_events_of_a_span_that_each_tell_a_part_are_one() -> None:
    """As Strands writes the newest conventions, 1.62: one has the instructions, another the messages."""
    names = ("gen_ai.system_instructions", "gen_ai.input.messages", "gen_ai.output.messages")
    events = [("gen_ai.client.inference.operation.details", {name: GENAI[name]}) for name in names]
    call = told_call(made({"gen_ai.request.model": "m"}, events), "strands.telemetry.tracer")
    assert (call.messages, call.answer, call.lacks) == (PROMPT, ANSWER, ("no_tools_told",))
    attributes = {"gen_ai.system_instructions": GENAI["gen_ai.system_instructions"]}
    assert told_call(made(attributes, events[1:]), "strands.telemetry.tracer").messages == PROMPT


def test_an_answer_that_is_told_by_its_items_is_one() -> None:
    """As OpenLLMetry of OpenAI Agents writes those of the Responses API: a text and two calls are three messages."""
    asked = {"type": "tool_call", "id": "c1", "name": "weather", "arguments": {"city": "Oslo"}}
    parts = [{"type": "text", "content": "I look."}, asked, {**asked, "id": "c2"}]
    items = [{"role": "assistant", "parts": [part]} for part in parts]
    told = {"gen_ai.input.messages": [*PARTS[:1], *items, *PARTS[2:]], "gen_ai.output.messages": items}
    call = told_call(made(GENAI | told), f"{OTEL}openai_agents")
    calls = (*ASKED.tool_calls, msgspec.structs.replace(ASKED.tool_calls[0], id="c2"))
    answer = msgspec.structs.replace(ASKED, content="I look.", tool_calls=calls)
    assert (call.messages, call.answer, call.lacks) == ((*PROMPT[:2], answer, RESULT), answer, ())


def any_value(value: Any) -> AnyValue:
    """A structured value of OTLP."""
    if isinstance(value, dict):
        fields = [KeyValue(key=key, value=any_value(inner)) for key, inner in value.items()]
        return AnyValue(kvlist_value=KeyValueList(values=fields))
    if isinstance(value, list):
        found = AnyValue()
        found.array_value.values.extend([any_value(inner) for inner in value])
        return found
    return AnyValue() if value is None else pairs({"": value})[0].value


def log(name: str, at: int, body: Any, **attributes: Any) -> ToldCall:
    """What a log record of the span tells."""
    record = LogRecord(trace_id=bytes.fromhex(TRACE), span_id=(1).to_bytes(8), body=any_value(body), time_unix_nano=at)
    named = {key.replace("__", "."): told for key, told in attributes.items()}
    record.attributes.extend([KeyValue(key=key, value=any_value(told)) for key, told in named.items()])
    told = told_event(record, f"{OTEL}openai_v2", name)
    assert told is not None
    return told


def test_log_events_tell_what_the_span_does_not() -> None:
    """In the order of their times, in whatever order they come; texts that look like JSON stay texts."""
    tool = {**CHAT[3], "content": '[{"text": "sunny"}]', "id": "c1"}
    bodies = [("system", CHAT[0]), ("user", CHAT[1]), ("assistant", CHAT[2]), ("tool", tool)]
    pieces = [log(f"gen_ai.{role}.message", at, {**body, "role": None}) for at, (role, body) in enumerate(bodies, 1)]
    pieces.append(log("gen_ai.choice", 9, CHOICE))
    span_call = told_call(made({"gen_ai.request.model": "m"}), f"{OTEL}openai_v2")
    assert span_call.lacks == ("no_prompt_told", "no_answer_told", "no_tools_told")
    call = joined(span_call, reversed(pieces))
    assert call.messages == (*PROMPT[:3], msgspec.structs.replace(RESULT, content='[{"text": "sunny"}]'))
    assert (call.answer, call.finish_reason, call.lacks) == (ANSWER, "stop", ("no_tools_told",))
    whole = told_call(made(GENAI), f"{OTEL}anthropic")
    assert joined(whole, [log("gen_ai.user.message", 1, {})]) == whole


def test_the_event_of_a_whole_call_is_read_as_a_spans_attributes() -> None:
    """Structured, in the attributes; a value that is nested deeper than facts may be is not told by halves."""
    told = {key.replace(".", "__"): value for key, value in GENAI.items()}
    name = "gen_ai.client.inference.operation.details"
    span_call = told_call(made({}), f"{OTEL}genai.openai")
    call = joined(span_call, [log(name, 1, None, **told)])
    assert (call.messages, call.answer, call.tools, call.lacks) == (PROMPT, ANSWER, (TOOL,), ())
    instructions, rest = dict(told), dict(told)
    del rest["gen_ai__system_instructions"], instructions["gen_ai__input__messages"]
    parts = [log(name, 1, None, **instructions), log(name, 2, None, **rest)]
    assert joined(span_call, parts).lacks == ("no_prompt_told",)
    deep: Any = "x"
    for _ in range(6):
        deep = {"items": [deep]}
    told["gen_ai__tool__definitions"] = [{"name": "weather", "parameters": deep}]
    assert joined(span_call, [log(name, 1, None, **told)]).lacks == ("no_tools_told",)


IDS = ToldIds(prompt=ids_to_bytes([1, 2]), sampled=ids_to_bytes([3, 4]), logprobs=logprobs_to_bytes([-0.5, -1.0]))
LOGPROBS = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1.0}]
VLLM = {
    **RESPONSE,
    "prompt_token_ids": [1, 2],
    "choices": [{**CHOICE, "token_ids": [3, 4], "logprobs": {"content": LOGPROBS}}],
}


@pytest.mark.parametrize(
    "attributes",
    [
        {"input.value": {"model": "m", "messages": CHAT}, "output.value": VLLM},
        {"mlflow.spanOutputs": VLLM},
        {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4], "logprobs.content": LOGPROBS, **OLD},
        {
            "llm.hosted_vllm.prompt_token_ids": [1, 2],
            "llm.hosted_vllm.response_token_ids": [3, 4],
            "logprobs.content": LOGPROBS,
        },
    ],
    ids=["openinference", "mlflow", "agent lightning", "strands-vllm"],
)
def test_exact_ids_are_told(attributes: dict[str, Any]) -> None:
    """As vLLM answered them, with a logprob for each sampled id."""
    assert told_call(made(attributes), "any").ids == IDS


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_token_ids": [1, True]},
        {"response_token_ids": []},
        {"prompt_token_ids": [-1]},
        {"response_token_ids": "x"},
    ],
)
def test_ids_that_are_not_whole_are_none(change: dict[str, Any]) -> None:
    """And logprobs of another number than the ids, or above 0, are none."""
    told = {"prompt_token_ids": [1, 2], "response_token_ids": [3, 4]}
    assert told_call(made(told | change), "any").ids is None
    for wrong in ([-0.5], [-0.5, 0.5], [-0.5, "x"]):
        ids = told_call(made(told | {"logprobs.content": wrong}), "any").ids
        assert ids == msgspec.structs.replace(IDS, logprobs=b"")


def user(*parts: Any) -> dict[str, Any]:
    """A whole call of one user's message."""
    return GENAI | {"gen_ai.input.messages": [{"role": "user", "parts": list(parts)}]}


TEXT = {"type": "text", "content": "x"}
CUT, PROMPT_GONE, NO_ANSWER = "content_cut", "no_prompt_told", "no_answer_told"
FLAWED: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "whole": (user(TEXT), ()),
    "no content": ({"gen_ai.request.model": "m"}, (PROMPT_GONE, NO_ANSWER, "no_tools_told")),
    "cut JSON": (user(TEXT) | {"gen_ai.input.messages": json.dumps(PARTS)[:-9]}, (CUT, PROMPT_GONE)),
    "too long a JSON": (user({**TEXT, "content": "x" * 1_000_001}), (CUT, PROMPT_GONE)),
    "a text without its content": (user({"type": "text"}), (PROMPT_GONE,)),
    "a call without arguments": (
        GENAI | {"gen_ai.output.messages": [{"role": "assistant", "parts": [{"type": "tool_call", "name": "f"}]}]},
        (NO_ANSWER,),
    ),
    "a message without content": (user() | {"gen_ai.input.messages": [{"role": "user"}]}, (PROMPT_GONE,)),
    "an answer with what its tools returned": (
        GENAI | {"gen_ai.input.messages": [{"role": "assistant", "parts": [*PARTS[1]["parts"], *PARTS[2]["parts"]]}]},
        ("content_rewritten",),
    ),
    "a placeholder": (user({**TEXT, "content": "__REDACTED__"}), (PROMPT_GONE,)),
    "a scrubbed text": (user({**TEXT, "content": "[Scrubbed due to 'password']"}), (PROMPT_GONE,)),
    "a scrubbed result": (
        user({"type": "tool_call_response", "id": "c1", "response": "<elided>"}),
        (PROMPT_GONE,),
    ),
    "an image": (user(TEXT, {"type": "blob", "modality": "image", "content": "aGk="}), ("content_not_text",)),
    "two texts": (user(TEXT, TEXT), ("content_rewritten",)),
    "another role": (
        user(TEXT) | {"gen_ai.input.messages": [{"role": "observer", "content": "x"}]},
        ("content_rewritten",),
    ),
    "a result that is no text": (
        user({"type": "tool_call_response", "id": "c1", "response": {"rows": [1]}}),
        ("content_rewritten",),
    ),
    "a result of two texts": (
        user({"type": "tool_call_response", "id": "c1", "response": [{"text": "a"}, {"text": "b"}]}),
        ("content_rewritten",),
    ),
    "two answers": (GENAI | {"gen_ai.output.messages": SAID * 2}, ("not_chosen", NO_ANSWER)),
    "two choices of a response": (
        {"input.value": {"model": "m", "messages": CHAT}, "output.value": {"choices": [CHOICE, CHOICE]}},
        ("not_chosen", NO_ANSWER),
    ),
    "an empty answer": (GENAI | {"gen_ai.output.messages": [{"role": "assistant", "parts": []}]}, (NO_ANSWER,)),
    "a stream without an end": (
        GENAI | {"gen_ai.request.stream": True, "gen_ai.output.messages": [{"role": "assistant", "content": "Sun"}]},
        ("unfinished",),
    ),
    "a prompt that the provider holds": (
        {"input.value": {"model": "m", "input": "and then?", "previous_response_id": "r"}, "output.value": RESPONSE},
        (PROMPT_GONE,),
    ),
    "a prompt that goes on from an answer": (user(TEXT) | {"gen_ai.conversation.id": "resp_1"}, (PROMPT_GONE,)),
    "a prompt that goes on from a request": (user(TEXT) | {"gen_ai.request.previous_response.id": "r"}, (PROMPT_GONE,)),
    "a conversation of the agent's own": (user(TEXT) | {"gen_ai.conversation.id": "9f2c"}, ()),
    "a tool without its schema": (GENAI | {"gen_ai.tool.definitions": [{"type": "function", "name": "weather"}]}, ()),
    "a tool that is no function": (GENAI | {"gen_ai.tool.definitions": [{"type": "web_search"}]}, ()),
}


@pytest.mark.parametrize("row", FLAWED.values(), ids=FLAWED)
def test_what_a_call_lacks_is_said(row: tuple[dict[str, Any], tuple[str, ...]]) -> None:
    """And what is not whole is not told: a text that was cut or hidden would train as if it had been said."""
    attributes, expected = row
    call = told_call(made(attributes), "any")
    assert call.lacks == tuple(dict.fromkeys((*expected, *(("no_tools_told",) if call.tools is None else ()))))
    assert (call.messages is None) == (PROMPT_GONE in expected)


def test_a_failed_call_is_unfinished() -> None:
    """By its status, or without an end."""
    assert lacks(GENAI, status=2) == ("unfinished",)
    never_ended = made(GENAI)
    never_ended.end_time_unix_nano = 0
    assert told_call(never_ended, f"{OTEL}anthropic").lacks == ("unfinished",)


def test_flat_messages_of_which_some_are_dropped_are_not_told() -> None:
    """An SDK drops the attributes that were set first, or cuts each at one length, and says nothing in the text."""
    scope = f"{OI}llama_index"
    assert lacks(OI_FLAT, scope) == ()
    without_first = {key: told for key, told in OI_FLAT.items() if not key.startswith("llm.input_messages.0.")}
    assert lacks(without_first, scope) == (CUT, PROMPT_GONE)
    dropped = made(OI_FLAT)
    dropped.dropped_attributes_count = 1
    assert told_call(dropped, scope).lacks == (CUT, PROMPT_GONE, NO_ANSWER, "no_tools_told")
    cut = OI_FLAT | {"llm.input_messages.1.message.content": "x" * 4096}
    assert lacks(cut, scope) == (CUT, PROMPT_GONE)


@pytest.mark.parametrize(
    ("scope", "expected", "missing"),
    [
        (f"{OI}openai", (), ()),
        (f"{OI}smolagents", None, ("no_tools_told",)),
        (f"{OTEL}genai.openai", None, ("no_tools_told",)),
        (f"{OTEL}ag2", None, ("content_rewritten", "no_tools_told")),
        ("of somebody", None, ("no_tools_told",)),
    ],
)
def test_the_scope_says_what_absent_tools_mean(
    scope: str, expected: tuple[ToolDefinition, ...] | None, missing: tuple[str, ...]
) -> None:
    """An instrumentation that always tells them had none to tell; of others nobody knows."""
    call = told_call(made({key: told for key, told in GENAI.items() if "tool" not in key}), scope)
    assert (call.tools, call.lacks) == (expected, missing)


def test_two_tool_calls_of_one_id_are_two_and_one_that_is_told_twice_is_one() -> None:
    """Some models number each of their calls alike; some instrumentations tell a call as a part and in a field."""
    calls = [
        {"id": "x", "type": "function", "function": {"name": "calc", "arguments": arguments}}
        for arguments in ('{"expr": "2+2"}', '{"expr": "3+3"}')
    ]
    part = {"type": "tool_call", "id": "x", "name": "calc", "arguments": '{"expr":"2+2"}'}
    for content, asked, num in ((None, calls, 2), ([part], calls[:1], 1)):
        message = {"role": "assistant", "content": content, "tool_calls": asked}
        body = json.dumps({"choices": [{"message": message}]})
        answer = told_call(made({"output.value": body}), f"{OI}openai").answer
        assert answer is not None and len(answer.tool_calls) == num


def test_tools_that_an_instrumentation_tells_in_part_are_not_believed() -> None:
    """smolagents' span leaves out the agents that the model may ask."""
    call = told_call(made(OI_FLAT), f"{OI}smolagents")
    assert (call.tools, call.lacks) == (None, ("no_tools_told",))


def test_a_prompt_with_a_tools_result_may_hide_a_rewritten_failure() -> None:
    """pydantic-ai sends `{"error": ..}` for a tool that failed, and tells its bare text."""
    assert told_call(made(GENAI), "pydantic-ai").lacks == ("failure_rewritten",)
    assert told_call(made(user(TEXT)), "pydantic-ai").lacks == ()


def test_only_what_some_convention_reads_is_decoded() -> None:
    """Of model's spans alone, by the wider set of keys."""
    assert {"input.value", "llm.input_messages.3.message.role", "gen_ai.usage.input_tokens"} <= set(
        filter(
            CONTENT_KEYS.__contains__, ["input.value", "llm.input_messages.3.message.role", "gen_ai.usage.input_tokens"]
        )
    )
    assert not any(key in CONTENT_KEYS for key in ("http.url", "db.statement", "output", "retrieval.documents.0.x"))
