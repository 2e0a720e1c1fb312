"""The keys that OpenTelemetry defines are spelt as its packages spell them."""

from __future__ import annotations

from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, service_attributes

from tracegrad.schemas import attributes


def test_conventional_keys_are_opentelemetrys() -> None:
    """A misspelt one would match no span, silently."""
    theirs = {
        value
        for module in (gen_ai_attributes, error_attributes, service_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    ours = {name: value for name, value in vars(attributes).items() if name.isupper()}
    conventional = {value for name, value in ours.items() if name.startswith(("GEN_AI_", "ERROR_", "SERVICE_"))}
    assert len(conventional) == 11 and conventional <= theirs


def test_every_key_has_a_name_of_its_own() -> None:
    """Two of one would be two owners."""
    names = [name for name in vars(attributes) if name.isupper()]
    assert len({getattr(attributes, name) for name in names}) == len(names)
