"""What an agent's SDK loads by name: the exporter to Kafka, and the hook that reads the parent's trace."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor, SpanExporter

from tests.memory_log import MemoryLog
from tests.producers.otlp_gateway.bodies import span_ids
from tracegrad.compose.client import kafka_of
from tracegrad.producers.client.attach import attach
from tracegrad.producers.client.kafka_exporter import KafkaSpanExporter
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.topics import Topic, Topics

TOPICS = Topics(run=RunName("any"))
SPANS = TOPICS.name(Topic.OTLP_SPANS)
SERVERS = {"TRACEGRAD_KAFKA_BOOTSTRAP_SERVERS": "h:1"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def log(memory_log: MemoryLog) -> MemoryLog:
    """With the topics of a run."""
    memory_log.create_topics(TOPICS, policies=["policy"])
    return memory_log


def values(log: MemoryLog) -> list[bytes]:
    """The records."""
    return [record.value or b"" for record in log.records(SPANS)]


def test_spans_are_written_as_the_gateway_writes_them(log: MemoryLog) -> None:
    """A record a trace, keyed by its id; what waits in the batch is written at the end."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(KafkaSpanExporter(log.writer(), TOPICS)))
    tracer, traces = provider.get_tracer("t"), []
    for _ in range(3):
        with tracer.start_as_current_span("root") as root, tracer.start_as_current_span("child"):
            traces.append(f"{root.get_span_context().trace_id:032x}")
    provider.shutdown()
    assert sorted(found for found, _ in span_ids(values(log))) == sorted(traces * 2)
    assert {record.key for record in log.records(SPANS)} == {found.encode() for found in traces}


def test_what_the_log_does_not_take_is_lost_and_counted(log: MemoryLog) -> None:
    """By its reason; the next span is written."""
    exporter = KafkaSpanExporter(log.writer(), TOPICS, ack_timeout_s=0.01)
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    log.fail_next(UnavailableError("away"))
    for name in ("lost", "kept"):
        provider.get_tracer("t").start_span(name).end()
    assert (dict(exporter.lost), len(values(log))) == ({"UnavailableError": 1}, 1)
    log.hold()
    provider.get_tracer("t").start_span("late").end()
    assert exporter.lost["TimeoutError"] == 1


def test_the_cluster_is_named_by_variables() -> None:
    """As the keys of [kafka] are; what is not allowed there is not allowed here."""
    kafka = kafka_of(
        SERVERS
        | {"TRACEGRAD_KAFKA_TOPIC_PREFIX": "p.", "TRACEGRAD_KAFKA_CLIENT": '{"security.protocol": "SSL"}'}
        | {"TRACEGRAD_KAFKA_TOPICS": '{"otlp_spans": "collector"}'}
    )
    assert (kafka.topic_prefix, kafka.client) == ("p.", {"security.protocol": "SSL"})
    assert kafka.topics == {"otlp_spans": "collector"}


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "TRACEGRAD_KAFKA_BOOTSTRAP_SERVERS"),
        (SERVERS | {"TRACEGRAD_RUNNER": "1"}, "that no runner starts"),
        (SERVERS | {"TRACEGRAD_KAFKA_CLIENT": '{"plugin.library.paths": "x"}'}, "plugin.library.paths is not allowed"),
        (SERVERS | {"TRACEGRAD_KAFKA_CLIENT": "x=y"}, "JSON object"),
    ],
    ids=["nothing", "runner", "not allowed", "no JSON"],
)
def test_what_cannot_work_is_said_at_the_start(environ: dict[str, str], words: str) -> None:
    """With the variable that is at fault."""
    with pytest.raises(ConfigurationError, match=words):
        kafka_of(environ)


def test_the_sdk_finds_both_by_their_entry_points() -> None:
    """The exporter is a class that it can make without arguments, the hook a function."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    groups = "opentelemetry_traces_exporter", "opentelemetry_post_instrument"
    exporter, hook = (
        EntryPoint(name, value, group).load() for group in groups for name, value in points[group].items()
    )
    assert issubclass(exporter, SpanExporter)
    assert hook is attach


@pytest.fixture
def own_context() -> Iterator[None]:
    """What a test attaches ends with it."""
    token = context.attach(context.Context())
    yield
    context.detach(token)


@pytest.mark.usefixtures("own_context")
def test_the_hook_continues_the_trace_of_the_environment() -> None:
    """Every span of the process lies under the parent that TRACEPARENT names, with its baggage."""
    attach({"TRACEPARENT": f"00-{'ab' * 16}-{'cd' * 8}-01", "BAGGAGE": "rollout.id=r,attempt.id=a", "PATH": "/bin"})
    span = TracerProvider().get_tracer("t").start_span("first")
    assert f"{span.get_span_context().trace_id:032x}" == "ab" * 16
    assert baggage.get_all() == {"rollout.id": "r", "attempt.id": "a"}


@pytest.mark.usefixtures("own_context")
@pytest.mark.parametrize("environ", [{}, {"TRACEPARENT": "nonsense"}, {"TRACEPARENT": f"00-{'0' * 32}-{'0' * 16}-01"}])
def test_no_parent_is_no_harm(environ: dict[str, str]) -> None:
    """The process begins a trace of its own."""
    attach(environ)
    assert not trace.get_current_span().get_span_context().is_valid
