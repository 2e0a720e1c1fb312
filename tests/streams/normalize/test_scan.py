"""The items of one request: each is placed, counted or refused as if it had come alone."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.streams.collector_json import otlp_json
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    agent_span,
    config,
    otlp,
    pairs,
    rollout,
    signed_by,
    span,
)
from tests.streams.normalize.test_normalize import CAPTURED, FOREIGN, OWN, R1, facts, fold, reason
from tracegrad.schemas.attributes import PROVED_BY
from tracegrad.schemas.credentials import feedback_holder
from tracegrad.schemas.metrics import ATTRIBUTES_DROPPED, NOT_SELECTED, OF_EVALUATORS
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.facts import LogFact, SpanFact
from tracegrad.schemas.topics import Topic
from tracegrad.streams.normalize.fold import Normalize

CLAIMS: tuple[dict[str, Any], ...] = ({}, *({"rollout__id": one, "attempt__id": "a001"} for one in (R1, FOREIGN)), {})


def placed(*values: bytes) -> tuple[dict[str, set[str]], int, int]:
    """(episode -> ids of its spans, how many were refused, how many are of runs that are not taken)."""
    normalize, spans, num_refused = Normalize(config(), TOPICS), dict[str, set[str]](), 0
    for output in (output for value in values for output in fold(normalize, Topic.OTLP_SPANS, value).outputs):
        if output.topic is Topic.DEAD_LETTERS:
            request = ExportTraceServiceRequest.FromString(output.value)
            num_refused += sum(len(scope.spans) for of in request.resource_spans for scope in of.scope_spans)
        else:
            here = spans.setdefault(facts(output).episode_id, set())
            here |= {fact.span_id for fact in facts(output).facts if isinstance(fact, SpanFact)}
    return spans, num_refused, int(normalize.metrics.value(NOT_SELECTED))


def test_a_span_is_placed_by_itself_whatever_its_neighbours_say() -> None:
    """The same trace in resources and spans that name a rollout, another run's, or none: whole or one by one."""
    made = [
        (of_resource, span(trace, 100 * group + number, **claim))
        for group, (of_resource, trace) in enumerate(itertools.product(CLAIMS, (CAPTURED, OWN)))
        for number, claim in enumerate(CLAIMS)
    ]
    whole = b"".join(
        otlp(*(one for _, one in group), **of_resource)
        for of_resource, group in itertools.groupby(made, key=lambda pair: pair[0])
    )
    found = placed(whole)
    assert found == placed(*(otlp(one, **of_resource) for of_resource, one in made))
    assert all((found[0][OWN], found[0][CAPTURED], found[1], found[2]))
    assert sum(map(len, found[0].values())) + found[1] + found[2] == len(made)


def test_a_bad_log_record_does_not_harm_its_neighbours() -> None:
    """Its dead letter holds that record only, with its resource and scope, as a request that can be sent again."""
    request = ExportLogsServiceRequest()
    scope_logs = request.resource_logs.add().scope_logs.add()
    request.resource_logs[0].resource.attributes.extend(pairs({"service.name": "agent"}))
    scope_logs.scope.name = "mine"
    records = scope_logs.log_records
    for number in (1, 2, 3):
        record = records.add(event_name="gen_ai.user.message", trace_id=bytes.fromhex(OWN), span_id=bytes([number]) * 8)
        record.attributes.extend(pairs({"gen_ai.agent.name": "planner"}))
    records[1].attributes.extend(pairs({"rollout.id": rollout(2), "attempt.id": "a001"}))
    good, letter = fold(Normalize(config(), TOPICS), Topic.OTLP_LOGS, request.SerializeToString()).outputs
    assert len(facts(good).facts) == 2
    assert (reason(letter), dead_letter_fields(letter.headers)["item"]) == ("identity_conflict", "1")
    del records[2], records[0]
    assert ExportLogsServiceRequest.FromString(letter.value) == request


def test_what_came_with_the_reward_token_is_of_no_episode() -> None:
    """A judge in the agent's trace, whose tools are none of the agent's and whose copy of the agent's span displaces
    nothing; without the run's signature the mark is anybody's word."""
    normalize, marked = Normalize(config(), TOPICS), {PROVED_BY: str(feedback_holder(RUN_HASH))}
    request = ExportTraceServiceRequest.FromString(otlp(span(CAPTURED, 1), span(CAPTURED, 2)))
    request.resource_spans[0].resource.attributes.extend(pairs({**marked}))
    request.MergeFromString(otlp(span(CAPTURED, 3)))
    value = request.SerializeToString()
    (output,) = fold(normalize, Topic.OTLP_SPANS, value, headers=signed_by(RUN_HASH)).outputs
    assert [fact.span_id for fact in facts(output).facts if isinstance(fact, SpanFact)] == [f"{3:016x}"]
    assert normalize.metrics.value(OF_EVALUATORS, "spans") == 2
    (forged,) = fold(normalize, Topic.OTLP_SPANS, value).outputs
    assert len(facts(forged).facts) == 3


def test_an_evaluation_tells_nothing_of_the_span_that_it_stands_in() -> None:
    """It names the answer that is judged: an agent's span, or a tool's, is not the one that gave it."""
    request = ExportLogsServiceRequest()
    records = request.resource_logs.add().scope_logs.add().log_records
    for number, name in enumerate(("gen_ai.evaluation.result", "gen_ai.choice"), 1):
        record = records.add(event_name=name, trace_id=bytes.fromhex(CAPTURED), span_id=bytes([number]) * 8)
        record.attributes.extend(pairs({"gen_ai.response.id": "chatcmpl-1"}))
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_LOGS, request.SerializeToString()).outputs
    assert [fact.span_id for fact in facts(output).facts if isinstance(fact, LogFact)] == ["02" * 8]


def test_attributes_that_an_sdk_left_out_are_counted() -> None:
    """Of spans that nobody reads, too: what they are may be among what is lost."""
    normalize = Normalize(config(), TOPICS)
    spans = [span("ab" * 16, number, "POST") for number in (1, 2)]
    spans[1].dropped_attributes_count = 72
    fold(normalize, Topic.OTLP_SPANS, otlp(*spans))
    assert normalize.metrics.value(ATTRIBUTES_DROPPED, "spans") == 72


@pytest.mark.parametrize("topic", [Topic.OTLP_SPANS, Topic.OTLP_LOGS])
def test_a_request_in_json_gives_the_facts_of_the_same_in_protobuf(topic: Topic) -> None:
    """A Collector's Kafka exporter writes it when it is told `otlp_json`."""
    request: Any = ExportTraceServiceRequest.FromString(otlp(*(agent_span(CAPTURED, number, "a") for number in (1, 2))))
    if topic is Topic.OTLP_LOGS:
        request = ExportLogsServiceRequest()
        records = request.resource_logs.add().scope_logs.add().log_records
        for number in (1, 2):
            record = records.add(trace_id=bytes.fromhex(CAPTURED), span_id=bytes([number]) * 8)
            record.event_name = "gen_ai.user.message"
            record.attributes.extend(pairs({"gen_ai.agent.name": "planner"}))
    in_protobuf, in_json = (
        fold(Normalize(config(), TOPICS), topic, value).outputs
        for value in (request.SerializeToString(), otlp_json(request))
    )
    assert in_json == in_protobuf and len(facts(in_json[0]).facts) == 2


@pytest.mark.parametrize(
    ("encoding", "value"),
    [
        ("jaeger_proto", b"\x0a\x10" + b"\xab" * 16 + b"\x12\x08" + b"\x01" * 8 + b"\x1a\x04work"),
        ("jaeger_json", b'{"traceId":"qw==","spanId":"AQ==","operationName":"work","references":[]}'),
        ("zipkin_proto", b"\x0a\x24\x0a\x10" + b"\xab" * 16 + b"\x1a\x08" + b"\x01" * 8 + b"\x2a\x04work"),
        ("zipkin_json", b'[{"traceId":"abab","id":"0101","name":"work","localEndpoint":{"serviceName":"s"}}]'),
    ],
)
def test_another_encoding_of_spans_is_a_dead_letter_that_names_it_and_the_remedy(encoding: str, value: bytes) -> None:
    """Jaeger's begins as a request of no spans does, and would be none without a word."""
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value).outputs
    letter = dead_letter_fields(output.headers)
    assert letter["reason"] == "undecodable"
    assert f"got {encoding}" in letter["detail"] and "encoding: otlp_proto" in letter["detail"]


@pytest.mark.parametrize("key", ["resourceMetrics", "resourceLogs", "resource_logs"])
def test_another_signal_in_json_is_a_dead_letter_that_names_it_and_the_remedy(key: str) -> None:
    """A Collector may be told to write all to one topic; nothing of it is a span, and nothing is passed over."""
    (output,) = fold(
        Normalize(config(), TOPICS), Topic.OTLP_SPANS, json.dumps({key: [{"schemaUrl": "x"}]}).encode()
    ).outputs
    letter = dead_letter_fields(output.headers)
    assert letter["reason"] == "undecodable"
    assert f"got {key}" in letter["detail"] and "topic of its own" in letter["detail"]


@pytest.mark.parametrize("value", [b"", b'{"resourceSpans": []}', b' {\n"resource_spans":[{"scope_spans":[]}]}'])
def test_a_request_of_nothing_is_none_in_any_encoding(value: bytes) -> None:
    """And no dead letter."""
    assert fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value).outputs == ()
