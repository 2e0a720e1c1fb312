"""What an agent's SDK loads by name: the hook that reads the parent's trace."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace import TracerProvider

from tracegrad.producers.client.attach import attach

ROOT = Path(__file__).parents[3]


def test_the_sdk_finds_it_by_its_entry_point() -> None:
    """A function."""
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    group = "opentelemetry_post_instrument"
    (hook,) = (EntryPoint(name, value, group).load() for name, value in points[group].items())
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
