"""Raw records become facts of the right episode; what is bad is set aside without harm to its neighbours."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.streams.make import (
    HOST,
    RUN_HASH,
    TOPICS,
    Item,
    Streams,
    call,
    closed,
    config,
    event,
    let_in,
    otlp,
    raw,
    reward,
    rollout,
    signed_by,
    span,
)
from tracegrad.schemas.attributes import COUNTED_SPAN
from tracegrad.schemas.fold import Emission, Output
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.made_of import origins_in
from tracegrad.schemas.log.protocol import Headers, Record
from tracegrad.schemas.metrics import CALLS_UNPROVED, NOT_SELECTED
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.facts import EPISODE_EVENTS, MAX_FACTS_PER_RECORD, CallFact, Facts, SpanFact
from tracegrad.schemas.records.rollouts import REWARDS
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.streams.normalize.fold import Normalize

R1 = rollout(1)
OWN = R1 + "a001"
CAPTURED = "ab" * 16
FOREIGN = "deadbeef" + "0" * 20


def fold(
    fold_: Normalize, topic: Topic, value: bytes | None, offset: int = 5, *, headers: Headers | None = None
) -> Emission:
    """One record's emission; calls are written by the run's own gateway unless headers say else."""
    name = TOPICS.name(topic)
    if headers is None:
        headers = signed_by(RUN_HASH) if topic is Topic.LLM_CALLS else ()
    return fold_.fold(Record(topic=name, partition=2, offset=offset, key=b"k", value=value, headers=headers))


def facts(output: Output) -> Facts:
    """The facts of an output."""
    decoded = EPISODE_EVENTS.decode(output.value)
    assert isinstance(decoded, Facts)
    return decoded


def reason(output: Output) -> str:
    """Why an output is a dead letter."""
    assert output.topic is Topic.DEAD_LETTERS
    return dead_letter_fields(output.headers)["reason"]


def test_spans_of_one_request_are_grouped_by_episode() -> None:
    """A Collector's record holds many traces; each episode gets one batch under its own key."""
    normalize = Normalize(config(), TOPICS)
    value = otlp(span(OWN, 1), span(CAPTURED, 2), span(OWN, 3))
    emission = fold(normalize, Topic.OTLP_SPANS, value)
    got = {output.key: [getattr(fact, "span_id", "") for fact in facts(output).facts] for output in emission.outputs}
    assert got == {R1.encode(): [f"{1:016x}", f"{3:016x}"], CAPTURED.encode(): [f"{2:016x}"]}
    assert {facts(output).episode_id for output in emission.outputs} == {OWN, CAPTURED}
    assert [position.offset for position in emission.done] == [5]
    of = [origins_in(output.headers) for output in emission.outputs]
    assert of == [{OWN: {"otlp_spans/2": [(5, 6)]}}, {CAPTURED: {"otlp_spans/2": [(5, 6)]}}]


@pytest.mark.parametrize(("mark", "is_counted"), [(True, True), (False, False), ("true", False), (None, False)])
def test_a_span_was_counted_when_its_resource_says_so(mark: bool | str | None, is_counted: bool) -> None:
    """True, and nothing that looks like it."""
    said: dict[str, Any] = {} if mark is None else {COUNTED_SPAN: mark}
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, otlp(span(OWN, 1), **said)).outputs
    (fact,) = facts(output).facts
    assert isinstance(fact, SpanFact)
    assert fact.is_counted is is_counted


def test_facts_do_not_depend_on_where_the_record_lay() -> None:
    """A replay reads the same raw record elsewhere in its own order; bodies must be equal."""
    value = otlp(span(OWN, 1), span(CAPTURED, 2))
    one = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value, offset=1)
    two = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value, offset=2)
    assert [o.value for o in one.outputs] == [o.value for o in two.outputs]


@pytest.mark.parametrize("where", ["resource", "span", "agentlightning"])
def test_rollout_attributes_name_the_episode(where: str) -> None:
    """A process per rollout has random trace ids and its rollout in the resource."""
    ids: dict[str, Any] = {"rollout__id": R1, "attempt__id": "a001"}
    if where == "resource":
        value = otlp(span(CAPTURED, 1), **ids)
    elif where == "span":
        value = otlp(span(CAPTURED, 1, **ids))
    else:
        value = otlp(span(CAPTURED, 1, agentlightning__rollout_id=R1, agentlightning__attempt_id="a001"))
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value).outputs
    assert (facts(output).episode_id, output.key) == (OWN, R1.encode())


@pytest.mark.parametrize(("rollout_id", "attempt_id"), [("", ""), ("ro-1a2b3c4d5e6f", "at-1a2b3c4d")])
def test_names_of_agent_lightning_claim_no_rollout(rollout_id: str, attempt_id: str) -> None:
    """Its tracers write them, or nothing, on each resource; beside our own they change nothing, alone the trace is the
    episode."""
    theirs: dict[str, Any] = {"agentlightning__rollout_id": rollout_id, "agentlightning__attempt_id": attempt_id}
    own: dict[str, Any] = {"rollout__id": R1, "attempt__id": "a001"}
    for trace, ours, episode in ((OWN, {}, OWN), (CAPTURED, own, OWN), (CAPTURED, {}, CAPTURED)):
        outputs = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, otlp(span(trace, 1), **theirs, **ours)).outputs
        assert [output.topic for output in outputs] == [Topic.EPISODE_EVENTS]
        assert facts(outputs[0]).episode_id == episode


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (otlp(span(OWN, 1, rollout__id=rollout(2), attempt__id="a001")), "identity_conflict"),
        (otlp(span(CAPTURED, 1, rollout__id=R1), rollout__id=rollout(2)), "identity_conflict"),
        (otlp(span(CAPTURED, 1, rollout__id=R1)), "no_attempt"),
        (otlp(span(CAPTURED, 1, rollout__id="Robert'); --", attempt__id="a001")), "bad_identity"),
        (otlp(span("00" * 16, 1)), "bad_trace_id"),
        (b"\xff\xff", "undecodable"),
        (b"not protobuf", "undecodable"),
    ],
    ids=["trace-and-attribute", "resource-and-span", "no-attempt", "no-id", "zero-trace", "bytes", "text"],
)
def test_bad_spans_are_dead_letters_with_a_reason(value: bytes, expected: str) -> None:
    """Disagreement is quarantined, never guessed."""
    normalize = Normalize(config(), TOPICS)
    (output,) = fold(normalize, Topic.OTLP_SPANS, value).outputs
    assert reason(output) == expected


def test_a_damaged_record_gives_the_spans_that_can_be_read() -> None:
    """A Collector's, with one invalid byte in a name: its neighbours are facts, the record a dead letter."""
    value = otlp(span(OWN, 1), span(OWN, 2, "\u00e9"), span(OWN, 3)).replace(b"\xc3\xa9", b"\xc3\x28")
    good, letter = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value).outputs
    assert len(facts(good).facts) == 2
    assert (reason(letter), letter.value) == ("damaged", value)


def test_a_bad_span_does_not_harm_its_neighbours() -> None:
    """Its dead letter holds that span only, as a request that can be sent again."""
    bad = span(OWN, 2, "bad")
    bad.span_id = b"short"
    emission = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, otlp(span(OWN, 1), bad, span(OWN, 3)))
    good, letter = emission.outputs
    assert len(facts(good).facts) == 2
    assert reason(letter) == "bad_span_id"
    assert dead_letter_fields(letter.headers)["item"] == "1"
    again = ExportTraceServiceRequest.FromString(letter.value)
    assert [s.name for s in again.resource_spans[0].scope_spans[0].spans] == ["bad"]


def test_a_large_request_is_split_into_batches_of_facts() -> None:
    """So that no batch outgrows the topic's message limit. The cuts are the request's own: again, they are the same."""
    value = otlp(*(span(OWN, number + 1) for number in range(MAX_FACTS_PER_RECORD + 1)))
    emission = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value)
    assert [len(facts(output).facts) for output in emission.outputs] == [MAX_FACTS_PER_RECORD, 1]
    assert {output.key for output in emission.outputs} == {R1.encode()}
    assert fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value) == emission


def test_a_request_cut_in_the_middle_and_delivered_again_gives_the_same_episode() -> None:
    """A worker that dies between the batches of one request appends the first of them twice."""
    spans = otlp(*(span(OWN, number + 1) for number in range(MAX_FACTS_PER_RECORD + 1)), is_counted=True)
    normalize, headers = Normalize(config(), TOPICS), signed_by(RUN_HASH)
    first, second = fold(normalize, Topic.OTLP_SPANS, let_in(spans), headers=headers).outputs
    end = event(R1, spans_exported=MAX_FACTS_PER_RECORD + 1, spans_marked=True)
    streams = Streams()
    streams.feed(closed(R1, []), reward(R1), end)
    for output in (first, first):
        streams.append(Topic.EPISODE_EVENTS, output.value)
    assert streams.values(Topic.EPISODES) == []
    streams.append(Topic.EPISODE_EVENTS, second.value)
    whole = Streams()
    whole.feed(spans, closed(R1, []), reward(R1), end)
    assert streams.values(Topic.EPISODES) == whole.values(Topic.EPISODES) != []


@pytest.mark.parametrize(
    ("headers", "trace", "proved_by"),
    [
        pytest.param(signed_by(RUN_HASH), OWN, HOST, id="by the run's gateway"),
        pytest.param((), OWN, "", id="past the gateway"),
        pytest.param(signed_by("deadbeef"), OWN, "", id="by another run's gateway"),
        pytest.param(signed_by(RUN_HASH), CAPTURED, "", id="of no runner"),
    ],
)
def test_whose_a_span_is_said_to_be_is_believed_of_the_runs_own_gateway(
    headers: Headers, trace: str, proved_by: str
) -> None:
    """The same mark in a record of anybody else is text."""
    value = let_in(otlp(span(trace, 1)))
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value, headers=headers).outputs
    assert [fact.proved_by for fact in facts(output).facts if isinstance(fact, SpanFact)] == [proved_by]


def test_calls_rewards_and_events_go_to_their_episode() -> None:
    """All under the rollout id, whatever the caller's trace id was."""
    normalize = Normalize(config(), TOPICS)
    one = call("one", R1, trace_id=CAPTURED)
    items: list[Item] = [one, closed(R1, [one]), reward(R1), event(R1)]
    for item in items:
        (output,) = fold(normalize, *raw(item)).outputs
        assert (facts(output).episode_id, output.key) == (OWN, R1.encode())
    (output,) = fold(normalize, *raw(call("two", None, trace_id=CAPTURED))).outputs
    assert (facts(output).episode_id, output.key) == (CAPTURED, CAPTURED.encode())


def test_a_call_knows_its_place_on_the_log() -> None:
    """Order is the order of the records, never a clock."""
    (output,) = fold(Normalize(config(), TOPICS), *raw(call("one", R1)), offset=77).outputs
    (fact,) = facts(output).facts
    assert isinstance(fact, CallFact)
    assert fact.order == 77


def test_a_span_of_another_runs_rollout_alone_is_not_selected() -> None:
    """Raw topics are shared: what is wrong with it is for its own run to say."""
    value = otlp(span(CAPTURED, 1, rollout__id=FOREIGN))
    assert not fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, value).outputs


def test_other_runs_are_not_selected_unless_named() -> None:
    """Raw topics are shared; a replay names the run that it replays."""
    items: list[Item] = [call("one", FOREIGN), reward(FOREIGN), event(FOREIGN), closed(FOREIGN, [])]
    normalize = Normalize(config(), TOPICS)
    assert [fold(normalize, *raw(item)).outputs for item in items] == [()] * 4
    assert normalize.metrics.value(NOT_SELECTED, "calls") == 1
    span_emission = fold(normalize, Topic.OTLP_SPANS, otlp(span(CAPTURED, 1, rollout__id=FOREIGN, attempt__id="a001")))
    assert span_emission.outputs == ()
    assert normalize.metrics.value(NOT_SELECTED, "spans") == 1
    replay = Normalize(config(selected=("deadbeef",)), TOPICS)
    assert all(len(fold(replay, *raw(item), headers=signed_by(FOREIGN[:8])).outputs) == 1 for item in items)
    (output,) = fold(replay, Topic.OTLP_SPANS, otlp(span(FOREIGN + "a001", 1))).outputs
    assert output.key == FOREIGN.encode()


@pytest.mark.parametrize(
    ("topic", "value", "expected"),
    [
        (Topic.LLM_CALLS, b"\x80", "malformed"),
        (Topic.LLM_CALLS, LLM_CALLS.encode(call("one", "nope")), "bad_identity"),
        (Topic.LLM_CALLS, LLM_CALLS.encode(call("one", None)), "no_identity"),
        (Topic.LLM_CALLS, LLM_CALLS.encode(call("one", R1, schema="call/99")), "unknown_schema"),
        (Topic.REWARDS, b"{}", "malformed"),
        (Topic.REWARDS, None, "null_value"),
        (Topic.REWARDS, REWARDS.encode(reward(R1, attempt_id="zz")), "bad_identity"),
        (Topic.REWARDS, b'{"a":' * 5000, "malformed"),
        (Topic.ROLLOUT_EVENTS, raw(event(R1, attempt_number=10**30))[1], "malformed"),
        (Topic.TRANSITIONS, b"x", "unknown_topic"),
    ],
)
def test_bad_records_are_dead_letters(topic: Topic, value: bytes | None, expected: str) -> None:
    """The record is done; the partition goes on."""
    emission = fold(Normalize(config(), TOPICS), topic, value)
    (output,) = emission.outputs
    assert reason(output) == expected
    assert output.value == (value or b"")
    assert len(emission.done) == 1


def test_a_renamed_raw_topic_is_known_by_its_full_name() -> None:
    """A user's Collector writes where it always did."""
    topics = Topics(run=RunName("test"), prefix="p.", renames={"otlp_spans": "company.traces"})
    normalize = Normalize(config(), topics)
    record = Record(topic="company.traces", partition=0, offset=0, key=None, value=otlp(span(OWN, 1)))
    (output,) = normalize.fold(record).outputs
    assert isinstance(facts(output).facts[0], SpanFact)


def test_run_hash_prefix_marks_own_traces() -> None:
    """Each span of an attempt that the runner made names its episode by its trace id alone."""
    assert OWN.startswith(RUN_HASH)
    (output,) = fold(Normalize(config(), TOPICS), Topic.OTLP_SPANS, otlp(span(OWN, 1))).outputs
    assert facts(output).episode_id == OWN


@pytest.mark.parametrize("headers", [(), signed_by("0badcafe")], ids=["nobody", "another-run"])
@pytest.mark.parametrize(
    "item",
    [call("one", R1), call("one", None, trace_id=OWN), closed(R1, [])],
    ids=["by-rollout", "by-trace", "end"],
)
def test_a_call_that_no_gateway_of_its_run_wrote_is_none(item: Item, headers: Headers) -> None:
    """Another run's gateway, which knows no credential of this one's, writes what its clients claim to the shared
    topic: it would move the turns of a rollout, fill its bounds or keep it open."""
    normalize = Normalize(config(selected=(RunHash("0badcafe"),)), TOPICS)
    emission = fold(normalize, *raw(item), headers=headers)
    assert emission.outputs == () and emission.done
    assert normalize.metrics.value(CALLS_UNPROVED) == 1
    assert len(fold(normalize, *raw(item)).outputs) == 1
