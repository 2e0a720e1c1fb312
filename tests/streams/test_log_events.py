"""GenAI log events tell of the span that they belong to: before it, after it, twice; what only they say joins."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValueList

from tests.streams.make import Streams, call, call_id, config, otlp, pairs, span, tool_call, tool_span
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts, LogFact, digest_of
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.join.log_readings import LogReading
from tracegrad.streams.config import SelectConfig

TRACE = "77" * 16


def value_of(plain: Any) -> AnyValue:
    """As SDKs write structured bodies."""
    if isinstance(plain, dict):
        pairs = KeyValueList()
        for key, value in plain.items():
            pairs.values.add(key=key).value.CopyFrom(value_of(value))
        return AnyValue(kvlist_value=pairs)
    if isinstance(plain, list):
        return AnyValue(array_value=ArrayValue(values=map(value_of, plain)))
    return AnyValue(int_value=plain) if isinstance(plain, int) else AnyValue(string_value=plain)


def event(name: str, number: int, body: Any = None, *, trace: str = TRACE, **attributes: Any) -> bytes:
    """A log record of span `number`."""
    request = ExportLogsServiceRequest()
    record = request.resource_logs.add().scope_logs.add().log_records.add(event_name=name, time_unix_nano=1)
    record.trace_id, record.span_id = bytes.fromhex(trace), number.to_bytes(8, "big")
    if body is not None:
        record.body.CopyFrom(value_of(body))
    for key, value in attributes.items():
        record.attributes.add(key=key.replace("__", ".")).value.CopyFrom(value_of(value))
    encoded: bytes = request.SerializeToString()
    return encoded


def facts_of(value: bytes) -> list[LogFact]:
    """What normalize makes of a record."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    streams.append(Topic.OTLP_LOGS, value)
    records = map(EPISODE_EVENTS.decode, streams.values(Topic.EPISODE_EVENTS))
    return [fact for facts in records if isinstance(facts, Facts) for fact in facts.facts if isinstance(fact, LogFact)]


def episode_of(*inputs: tuple[Topic, bytes] | Any) -> Episode:
    """The episode of a captured trace, once it is silent."""
    (episode,) = episodes_of(*inputs)
    return episode


def episodes_of(*inputs: tuple[Topic, bytes] | Any) -> list[Episode]:
    """Those of captured traces, once they are silent."""
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    for item in inputs:
        if isinstance(item, tuple):
            streams.append(*item)
        else:
            streams.feed(item)
    streams.tick(0.0, 1e4, 2e4)
    return streams.episodes


AGENT = otlp(
    span(TRACE, 1, "invoke_agent planner", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="planner")
)
CHAT = otlp(span(TRACE, 2, "chat m", parent=1, gen_ai__operation__name="chat"))
TOOL = otlp(tool_span(TRACE, 3, "calc", parent=1, at=5))
CALL = call("a", None, trace_id=TRACE, content="", tool_calls=(tool_call("x"),))
DETAILS = event("gen_ai.client.inference.operation.details", 2, gen_ai__response__id=call_id("a"))
MESSAGE = {"role": "assistant", "tool_calls": [{"id": "call_x", "type": "function"}]}
ASKED = event("gen_ai.choice", 2, {"index": 0, "message": MESSAGE})
ANSWERED = event("gen_ai.tool.message", 3, {"id": "call_x", "content": "4"})


@pytest.mark.parametrize("order", list(itertools.permutations(range(5))), ids=str)
def test_what_only_log_events_say_joins_in_any_order(order: tuple[int, ...]) -> None:
    """The response's id joins the call to its agent, the tool-call id the execution to the call."""
    spans = [(Topic.OTLP_SPANS, value) for value in (AGENT, CHAT, TOOL)]
    logs = [(Topic.OTLP_LOGS, value) for value in (DETAILS, ANSWERED)]
    inputs = [*spans, *logs]
    found = episode_of(*(inputs[index] for index in order), CALL)
    [made] = found.calls
    assert (made.agent, made.joined_by) == ("planner", "response_id")
    assert [tool.has_id for tool in made.tools] == [True]


def test_without_the_events_none_of_it_is_known() -> None:
    """Else the test above proves nothing."""
    [made] = episode_of(*((Topic.OTLP_SPANS, value) for value in (AGENT, CHAT, TOOL)), CALL).calls
    assert made.joined_by != "response_id"
    assert not any(tool.has_id for tool in made.tools)


def test_an_answer_is_known_by_the_ids_and_the_text_of_its_choice() -> None:
    """In OpenTelemetry's older form, as a structure or as JSON; of several answers nothing."""
    [asked] = facts_of(ASKED)
    assert (asked.requested_tool_call_ids, asked.span_id) == (("call_x",), f"{2:016x}")
    said = {"index": 0, "message": {"role": "assistant", "content": "42"}}
    assert [fact.output_digest for fact in facts_of(event("gen_ai.choice", 2, said))] == [digest_of("42")]
    assert [fact.output_digest for fact in facts_of(event("gen_ai.choice", 2, json.dumps(said)))] == [digest_of("42")]
    assert not facts_of(event("gen_ai.choice", 2, {**said, "index": 1}))
    messages = [{"role": "assistant", "parts": [{"type": "text", "content": "42"}]}]
    details = event("gen_ai.client.inference.operation.details", 2, gen_ai__output__messages=messages)
    assert [fact.output_digest for fact in facts_of(details)] == [digest_of("42")]


def test_what_agent_framework_logs_is_read() -> None:
    """Recorded: an answer bears no role, and a tool's message stands on the span of the model that is told of it, which
    is no execution and answers nothing."""
    told = event("gen_ai.tool.message", 2, {"id": "call_y", "content": "4"}, gen_ai__system="openai")
    asked = {"tool_calls": [{"id": "call_x", "type": "function", "function": {"name": "calc", "arguments": "{}"}}]}
    body = {"index": 0, "finish_reason": "tool_calls", "message": asked}
    choice = event("gen_ai.choice", 2, body, gen_ai__system="openai")
    spans = [(Topic.OTLP_SPANS, value) for value in (AGENT, CHAT, TOOL)]
    for logs, joined_by in (((told, choice), "content"), ((told,), "none")):
        [made] = episode_of(*spans, *((Topic.OTLP_LOGS, value) for value in logs), CALL).calls
        assert made.joined_by == joined_by
        assert "call_y" not in {tool.tool_call_id for tool in made.tools}


TALK = call("a", None, trace_id="99" * 16, content="42", conversation_key=conversation_key("talk"))
ANSWER = [{"role": "assistant", "parts": [{"type": "text", "content": "42"}]}]


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))), ids=str)
@pytest.mark.parametrize(
    ("said", "agents"),
    [({"gen_ai__conversation__id": "talk"}, ["planner"]), ({"session__id": "talk"}, [None]), ({}, [None])],
    ids=["conversation", "session", "nothing"],
)
def test_an_event_that_names_the_conversation_brings_its_span_there(
    said: dict[str, str], agents: list[str | None], order: tuple[int, ...]
) -> None:
    """Neither ids of the gateway's nor the spans name it; the call came in another trace. A session, which may be a
    process's, is judged by spans."""
    details = event("gen_ai.client.inference.operation.details", 2, gen_ai__output__messages=ANSWER, **said)
    inputs = [(Topic.OTLP_SPANS, AGENT), (Topic.OTLP_SPANS, CHAT), (Topic.OTLP_LOGS, details), TALK]
    found = episodes_of(*(inputs[index] for index in order))
    assert [made.agent for one in found for made in one.calls] == agents


def test_events_that_disagree_tell_nothing() -> None:
    """Two response ids for one span: the call stays unjoined by id rather than joined to a guess."""
    other = event("gen_ai.client.inference.operation.details", 2, gen_ai__response__id=call_id("b"))
    logs = [(Topic.OTLP_LOGS, value) for value in (DETAILS, other, DETAILS)]
    [made] = episode_of((Topic.OTLP_SPANS, CHAT), *logs, CALL).calls
    assert made.joined_by != "response_id"


def test_what_was_told_can_be_told_again() -> None:
    """As when a trace's facts are forwarded to the key of its conversation: the same, also where events disagree."""
    told = LogReading()
    for value in (DETAILS, ASKED, ANSWERED, event("gen_ai.user.message", 2, "x", gen_ai__agent__name="planner")):
        for fact in facts_of(value):
            told = told.with_(fact)
    for fact in facts_of(event("gen_ai.client.inference.operation.details", 2, gen_ai__response__id=call_id("b"))):
        told = told.with_(fact)
    again = LogReading()
    for fact in told.facts((TRACE, "0" * 16), ""):
        again = again.with_(fact)
    assert again == told != LogReading()


def test_what_tells_nothing_costs_nothing() -> None:
    """An application's own logs, events of no span, questions without an agent's name."""
    plain = event("", 2, "GET / 200")
    asked = event("gen_ai.user.message", 2, {"content": "secret words"})
    nowhere = event("gen_ai.client.inference.operation.details", 0, gen_ai__response__id=call_id("a"))
    assert [facts_of(value) for value in (plain, asked, nowhere)] == [[], [], []]
    [named] = facts_of(event("gen_ai.user.message", 2, {"content": "secret words"}, gen_ai__agent__name="planner"))
    assert named.agent_name == "planner"
    assert b"secret" not in EPISODE_EVENTS.encode(Facts(episode_id=TRACE, facts=(named,)))


@given(st.binary(max_size=120), st.integers(0, 2000))
def test_odd_log_records_stop_nothing(noise: bytes, place: int) -> None:
    """Bytes replaced anywhere: facts, a dead letter, or nothing."""
    at = place % len(ASKED)
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    streams.append(Topic.OTLP_LOGS, ASKED[:at] + noise + ASKED[at + len(noise) :])
    streams.append(Topic.OTLP_LOGS, DETAILS)
    assert streams.values(Topic.EPISODE_EVENTS)


def test_names_of_agent_lightning_and_empty_ids_claim_no_rollout_in_logs_either() -> None:
    """As of spans: the record is read, by its trace."""
    request = ExportLogsServiceRequest.FromString(event("gen_ai.choice", 1, {"message": {"content": "ok"}}))
    claims = {"agentlightning.rollout_id": "ro-5f", "agentlightning.attempt_id": "at-1", "rollout.id": ""}
    request.resource_logs[0].resource.attributes.extend(pairs({**claims}))
    assert len(facts_of(request.SerializeToString())) == 1
