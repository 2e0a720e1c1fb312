"""What real evaluators exported (tests/frameworks/agents/evaluators.py), as feedback."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.producers.keys import RUN_HASH
from tests.producers.otlp_gateway.evaluating import NAMES, Said, said
from tracegrad.producers.feedback_names import RangeConfig
from tracegrad.producers.otlp_gateway.evaluations.read import EvaluationsRead, read_evaluations
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, items_of, parsed

RECORDED = Path(__file__).parent / "recorded"
MORE = {
    **NAMES,
    "tone": RangeConfig(low=0.0, high=1.0, labels={"friendly": 0.75}),
    "polite": NAMES["good"],
    "done": NAMES["good"],
}
ROOM, JUDGED = conversation_key("room 7"), "cd" * 16


def read(signal: Signal, *values: bytes) -> EvaluationsRead:
    """The evaluations of export requests."""
    items: Iterator[Any] = (item for value in values for item in items_of(signal, parsed(signal, value)))
    return read_evaluations(signal, items, MORE, RUN_HASH, at_ms=1)


@pytest.mark.parametrize(
    ("name", "expected", "refused"),
    [
        (
            "pydantic_evals.logs",
            [
                ("good", 1.0, None, ROOM, "short"),
                ("stars", 4.0, None, ROOM, ""),
                ("tone", 0.75, None, ROOM, "friendly"),
            ],
            {"error_type": 1},
        ),
        (
            "openinference.traces",
            [
                ("good", 0.5, None, JUDGED, "so"),
                ("good", 1.0, None, JUDGED, "pass"),
                ("stars", 2.0, None, ROOM, ""),
                ("stars", 4.0, None, JUDGED, ""),
            ],
            {},
        ),
    ],
)
def test_a_real_evaluator_is_read(name: str, expected: list[Said], refused: dict[str, int]) -> None:
    """Scores, declared labels, conversations and links; sent twice, it is said once."""
    value, signal = (RECORDED / f"{name}.otlp").read_bytes(), LOGS if name.endswith("logs") else TRACES
    once, twice = read(signal, value), read(signal, value, value)
    assert (sorted(map(said, once.rewards)), once.refused) == (sorted(expected), Counter(refused))
    assert set(map(said, twice.rewards)) == set(expected)
    assert len(twice.rewards) == len(expected)
