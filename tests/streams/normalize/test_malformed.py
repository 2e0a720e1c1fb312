"""No record, however malformed, stops a partition: folds never raise, and what they emit can be read."""

from __future__ import annotations

import math
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import Streams, call, closed, config, event, reward, rollout
from tests.streams.test_order import CONFIG, EPISODE, FACTS, RAW
from tests.versions import sampled_by
from tracegrad.schemas.records.calls import Purpose, SamplingParameters
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts, SpanFact, SpanKind
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

R1 = rollout(1)
INPUTS = [(topic, value) for topic, value, _ in RAW]
INPUTS += [(Topic.EPISODE_EVENTS, value) for value in FACTS]
INPUTS += [(Topic.EPISODES, EPISODE)]


def check(streams: Streams) -> None:
    """Every output is readable."""
    for value in streams.values(Topic.EPISODES):
        EPISODES.decode(value)
    for value in streams.values(Topic.TRANSITIONS):
        decode_group(value)


@given(st.sampled_from(INPUTS), st.lists(st.tuples(st.integers(0, 10_000), st.binary(max_size=3)), max_size=4))
def test_mutated_records_never_raise(item: tuple[Topic, bytes], cuts: list[tuple[int, bytes]]) -> None:
    """Bytes replaced, inserted and removed anywhere."""
    topic, value = item
    for place, piece in cuts:
        at = place % (len(value) + 1)
        value = value[:at] + piece + value[at + (place % 3) :]
    streams = Streams(CONFIG)
    for other_topic, other in INPUTS[: len(RAW)]:
        streams.append(other_topic, other)
    streams.append(topic, value)
    if topic is not Topic.EPISODES:
        check(streams)


@given(st.sampled_from([topic for topic, _ in INPUTS]), st.binary(max_size=200))
def test_random_bytes_never_raise(topic: Topic, value: bytes) -> None:
    """They are done at once, nearly always as dead letters (a few bytes happen to be an empty request); where our own
    stages write, with the next record that can be decoded."""
    streams = Streams(CONFIG)
    streams.append(topic, value)
    streams.append(topic, next(good for name, good in INPUTS if name is topic))
    assert any(offset == 0 for name, offset in streams.done if name.endswith(topic))
    letters = [letter for letter in streams.log.get(Topic.DEAD_LETTERS, []) if letter.value == value]
    assert len(letters) <= 1


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


@given(st.sampled_from([Topic.REWARDS, Topic.ROLLOUT_EVENTS, Topic.EPISODES]), st.data())
def test_records_with_odd_values_never_raise(topic: Topic, data: st.DataObject) -> None:
    """Right JSON, wrong types and sizes, field by field."""
    released = next(value for name, value in INPUTS if name is topic)
    good: dict[str, Any] = msgspec.json.decode(released)
    field = data.draw(st.sampled_from(sorted(good)))
    good[field] = data.draw(json_values)
    streams = Streams(CONFIG)
    streams.append(topic, msgspec.json.encode(good))
    streams.append(topic, released)
    assert streams.done or streams.credit.num_open


floats = st.floats() | st.sampled_from([0.0, -0.0, math.nan, math.inf, 1e308, -1e308])
ints = st.integers(-(2**31), 2**31) | st.sampled_from([0, 1, 2, 3, 2**63 - 1, -(2**63)])


@given(st.data())
def test_calls_with_odd_numbers_give_readable_transitions(data: st.DataObject) -> None:
    """Whatever the gateway wrote, the trainer can read the group."""
    calls = [
        call(
            name, R1, [1], [2, 3],
            suffix_ids=data.draw(st.binary(max_size=9)) if data.draw(st.booleans()) else b"\1\0\0\0",
            sampled_ids=data.draw(st.binary(max_size=9)) if data.draw(st.booleans()) else b"\2\0\0\0",
            logprobs=data.draw(st.binary(min_size=4, max_size=4)),
            shared_tokens=data.draw(ints),
            parent_call_id=data.draw(st.sampled_from([None, call("a", R1).call_id, call("b", R1).call_id])),
            versions=tuple(
                sampled_by(data.draw(ints), start=data.draw(ints))
                for _ in range(data.draw(st.integers(0, 2)))
            ),
            sampling_used=SamplingParameters(temperature=data.draw(floats)),
            ended_at_ns=data.draw(ints),
        )
        for name in "ab"
    ]  # fmt: skip
    streams = Streams(config())
    streams.feed(*calls, closed(R1, calls), reward(R1, data.draw(floats)), event(R1, attempt_number=data.draw(ints)))
    check(streams)


@given(st.integers(), st.integers(), st.integers(), st.sampled_from(list(Purpose)))
def test_odd_groups_never_raise(size: int, member: int, index: int, purpose: Purpose) -> None:
    """Sizes and members that make no sense are dead letters."""
    streams = Streams(config())
    group = GroupRef(id="g", size=size, member=member, index=index)
    streams.feed(closed(R1, []), reward(R1), event(R1, group=group, purpose=purpose))
    check(streams)


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.sampled_from(SpanKind)), max_size=8))
def test_any_span_graph_can_be_joined(edges: list[tuple[int, int, SpanKind]]) -> None:
    """Circles, several roots, lost parents."""
    trace = "ab" * 16
    spans = tuple(
        SpanFact(
            trace_id=trace, span_id=str(own), parent_span_id=str(parent), name="x", kind=kind, dialect="none",
            service="s", start_ns=0, end_ns=0, response_id=call("a", None).call_id,
        )
        for own, parent, kind in edges
    )  # fmt: skip
    streams = Streams(config(select=SelectConfig(capture_all=True)))
    streams.feed(call("a", None, trace_id=trace, parent_span_id="1"))
    streams.append(Topic.EPISODE_EVENTS, EPISODE_EVENTS.encode(Facts(episode_id=trace, facts=spans)))
    streams.tick(0.0, 60.0)
    assert len(streams.values(Topic.EPISODES)) == 1
