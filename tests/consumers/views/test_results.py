"""The numbers of a run: intervals by hand, curves, held-out passes."""

from __future__ import annotations

import json

import msgspec
import pytest

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state
from tracegrad.consumers.views.results import RESULTS_TOPICS, results_of, wilson
from tracegrad.schemas.topics import Topic


def test_wilson_interval_by_hand() -> None:
    """Known values: 0 of 10 and 5 of 10 (z = 1.96)."""
    assert wilson(0, 10) == pytest.approx((0.0, 0.2775), abs=1e-4)
    assert wilson(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert wilson(0, 0) == (0.0, 1.0)


def test_results_of_a_small_run() -> None:
    """Two steps; of two held-out tasks one is in each pass; as it lies in results.json."""
    results = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    assert results.steps == 2 and results.version == 2
    assert results.curves["reward"] == [0.25, 0.5] and results.curves["air:tool_success"] == [0.5, 0.5]
    assert results.before is not None and (results.before.mean, results.before.num_scored) == (0.0, 1)
    assert results.after is not None and results.after.mean == 1.0
    assert results.seconds == {"wait": 1.0, "total": 1.9}
    assert json.loads(msgspec.json.encode(results))["steps"] == 2


def test_a_run_without_steps_has_results_too() -> None:
    """An interrupted run."""
    streams = small_run()
    streams.log[Topic.TRAINING_STEPS] = []
    results = results_of(fold_all(new_state(num_held_out=0), streams, RESULTS_TOPICS), run="test")
    assert results.steps == 0 and results.before is None and results.reward_last_ten is None
