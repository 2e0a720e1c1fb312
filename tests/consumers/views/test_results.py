"""The numbers of a run: curves, held-out passes, the best version."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state, tell
from tests.versions import label
from tracegrad.consumers.views.held_out import HeldOut, held_out_text
from tracegrad.consumers.views.results import RESULTS_TOPICS, results_of
from tracegrad.schemas.records.held_out import PassAt, VersionShare
from tracegrad.schemas.records.training import RatedWindow, RatingDrop
from tracegrad.schemas.topics import Topic


def test_results_of_a_small_run() -> None:
    """Two steps; of two held-out tasks one is in each pass; as it lies in results.json."""
    results = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    assert results.steps == 2 and results.version == 2
    assert results.curves["reward"] == [0.25, 0.5] and results.curves["air:tool_success"] == [0.5, 0.5]
    assert results.before is not None and (results.before.mean, results.before.num_scored) == (0.0, 1)
    assert results.after is not None and results.after.mean == 1.0
    assert [(held_out.step, held_out.version) for held_out in results.held_out] == [(0, 0), (2, 2)]
    assert results.best is not None
    assert (results.best.version, results.best.folder, results.best.score) == (2, f"/nowhere/{label(2)}", results.after)
    assert results.seconds == {"wait": 1.0, "total": 1.9}
    assert json.loads(msgspec.json.encode(results))["steps"] == 2


def test_results_name_each_rollback_with_its_reason() -> None:
    """The step after which it was."""
    state = fold_all(new_state(), small_run(), RESULTS_TOPICS)
    why = RatingDrop(
        before=RatedWindow(from_version=0, to_version=0, num=500, mean=0.7, std=0.46),
        newest=RatedWindow(from_version=1, to_version=2, num=512, mean=0.5, std=0.5),
        drop_least=0.05,
        look=9,
    )
    (first, *_) = state.steps
    tell(state, Topic.TRAINING_STEPS, msgspec.structs.replace(first, step=3, rated_worse=why))
    results = results_of(state, run="test")
    assert [(one.step, one.why) for one in results.rolled_back] == [(3, why)]


def test_a_run_without_steps_has_results_too() -> None:
    """An interrupted run."""
    streams = small_run()
    streams.log[Topic.TRAINING_STEPS] = streams.log[Topic.WEIGHTS] = []
    results = results_of(fold_all(new_state(), streams, RESULTS_TOPICS), run="test")
    assert results.steps == 0 and results.before is None and results.reward_last_ten is None
    assert results.held_out == [] and results.best is None


def passed(*shares: float, **fields: Any) -> HeldOut:
    """A pass over four tasks; version 3 has the first share, 4 the second, ..."""
    versions = tuple(VersionShare(version=3 + index, share=share) for index, share in enumerate(shares))
    defaults: dict[str, Any] = {"number": 1, "step": 10, "num_tasks": 4, "num_scored": 4, "mean": 0.5, "version": None}
    return HeldOut(low=0.1, high=0.9, versions=versions, **(defaults | fields))


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (passed(1.0, version=3), "0.500 (95% 0.100 to 0.900, 4 tasks), version 3"),
        (passed(0.3, 0.5, 0.2, version=4), "0.500 (95% 0.100 to 0.900, 4 tasks), versions 3 to 5, 4 most (50%)"),
        (
            passed(num_scored=3, pass_at=(PassAt(k=1, share=0.5), PassAt(k=4, share=1.0))),
            "0.500 (95% 0.100 to 0.900, 3 tasks, 1 unscored), pass@1 0.500, pass@4 1.000",
        ),
        (passed(mean=None), "none of 4 scored"),
        (None, "not run"),
    ],
    ids=["one version", "several", "several samples", "unscored", "none"],
)
def test_a_pass_says_whose_score_it_is(made: HeldOut | None, text: str) -> None:
    """In one short line."""
    assert held_out_text(made) == text
