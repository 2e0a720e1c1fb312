"""What the folds make of a real agent's records does not depend on the order in which they come.

Spans go onto the topic in the order in which they end, a record each, and calls once they are answered; a recording
holds them as its exporter batched them. Whatever the order, the episodes are equal, but for their names.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.frameworks.fixture import FIXTURES, Recording, fixtures, load
from tests.streams.make import Streams, config, event, signed_by
from tracegrad.schemas.records.calls import LLM_CALLS
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

FEW = (
    "adk-bare-captured",
    "adk-varied-bare-captured",
    "autogen-varied-builtin-captured",
    "crewai-varied-openinference-captured",
    "langgraph-varied-openinference-stream-captured",
    "openai_agents-varied-openinference-captured",
    "pydantic_ai-varied-builtin-hidden-captured",
    "smolagents-varied-openinference-captured",
    "strands-varied-bare-captured",
    "strands-varied-bare-runner",
)
CLOCK_S = (*(half_s / 2 for half_s in range(120)), 1e4, 2e4, 3e4)
"""In steps short of a quarter of `idle_s`, then until all is closed."""


class Piece(NamedTuple):
    """A record of one span, or of anything else that was recorded."""

    at_ns: int
    topic: Topic
    value: bytes
    key: bytes | None
    offset: int | None
    """Of what is no span: its place among the calls of its partition."""


@pytest.mark.parametrize("name", FEW)
def test_any_order_of_a_few_recordings_gives_equal_episodes(name: str) -> None:
    """As recorded, as the spans end, and ten at random."""
    assert_one_result(FIXTURES / f"{name}.msgpack.xz")


@pytest.mark.slow
@pytest.mark.parametrize("path", [*fixtures()], ids=lambda path: path.name)
def test_any_order_of_every_recording_gives_equal_episodes(path: Path) -> None:
    """Likewise of all."""
    assert_one_result(path)


def assert_one_result(path: Path) -> None:
    """Folds the recording's pieces in twelve orders."""
    recording = load(path)
    pieces = [*in_pieces(recording)]
    chance = random.Random(path.name)
    orders = [sorted(pieces, key=lambda piece: piece.at_ns), *(chance.sample(pieces, len(pieces)) for _ in range(10))]
    expected = folded(recording, pieces)
    assert expected
    for order in orders:
        assert folded(recording, order) == expected


def in_pieces(recording: Recording) -> Iterator[Piece]:
    """As recorded, each span in a record of its own; what bears no time goes with the one before it."""
    at_ns = num_others = 0
    for record in recording.records:
        topic = Topic(record.topic)
        if topic is Topic.OTLP_SPANS:
            for one in spans_of(record.value):
                at_ns = one.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano
                yield Piece(at_ns, topic, one.SerializeToString(), record.key, None)
            continue
        call = LLM_CALLS.decode(record.value) if topic is Topic.LLM_CALLS else None
        at_ns = getattr(call, "ended_at_ns", None) or getattr(call, "started_at_ns", None) or at_ns
        yield Piece(at_ns, topic, record.value, record.key, num_others)
        num_others += 1


def spans_of(value: bytes) -> Iterator[ExportTraceServiceRequest]:
    """A request for each span of one, with its resource and scope."""
    for resource in ExportTraceServiceRequest.FromString(value).resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                one = ExportTraceServiceRequest()
                of_resource = one.resource_spans.add(resource=resource.resource, schema_url=resource.schema_url)
                of_resource.scope_spans.add(scope=scope.scope, schema_url=scope.schema_url, spans=[span])
                yield one


def folded(recording: Recording, pieces: Iterable[Piece]) -> list[Episode]:
    """The episodes, by their first calls. The id is left out: where a client propagates nothing, calls and spans of one
    conversation have a key each, and the record that came first decides which of them names it (docs/streams.md)."""
    streams = Streams(config(run_hash=recording.run_hash, select=SelectConfig(capture_all=True)))
    for piece in pieces:
        headers = signed_by(recording.run_hash)
        streams.append(piece.topic, piece.value, piece.key, offset=piece.offset, headers=headers)
    if recording.rollout_id is not None:
        streams.feed(event(recording.rollout_id, attempt_id=recording.attempt_id, spans_exported=None, host=None))
    streams.tick(*CLOCK_S)
    episodes = streams.episodes
    unnamed = [msgspec.structs.replace(episode, episode_id="", conversation=None) for episode in episodes]
    return sorted(unnamed, key=lambda episode: [call.call_id for call in episode.calls])
