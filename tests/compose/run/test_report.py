"""What the report of a run says beside its numbers."""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from tests.consumers.audit.small_run import small_run
from tests.consumers.views.folding import fold_all, new_state
from tracegrad.compose.run.report import causes_lines, newest_folder, results_lines
from tracegrad.consumers.views.results import RESULTS_TOPICS, results_of
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.versions import Version


def test_the_model_is_the_newest_version_of_the_last_epoch(tmp_path: Path) -> None:
    """Version 10 comes after version 9, and each of a later epoch after those that it took the place of; what is
    half-written, or no version, is passed over."""
    assert newest_folder(tmp_path) is None
    labels = [
        Version(run=RunHash("7c1f3e9a"), version=number, epoch=epoch).label
        for number, epoch in ((9, 2), (10, 2), (11, 1))
    ]
    for name in (*labels, f".tmp-{labels[0]}-77", "adapters"):
        (tmp_path / name).mkdir()
    assert newest_folder(tmp_path) == str(tmp_path / labels[1])


def test_updates_that_no_version_holds_are_told() -> None:
    """Of a run that was stopped between two versions; a run that is over has none."""
    results = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    assert not [line for line in results_lines(results) if "checkpoint" in line]
    (line,) = [line for line in results_lines(replace(results, num_unpublished=3)) if "checkpoint" in line]
    assert line.startswith("newest version:  2, without the last 3 updates")


def test_a_run_in_which_nothing_could_be_compared_says_so() -> None:
    """Its steps have rewards and its versions a number, as those of any run have."""
    results = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    flat = replace(results, version=0, curves={**results.curves, "reward_std": [0.0, None]})
    (line,) = causes_lines(flat)
    assert line.startswith("nothing was trained: All advantages are 0")
    for other in (results, replace(flat, version=2), replace(flat, curves={**flat.curves, "reward_std": [0.0, 0.1]})):
        assert causes_lines(other) == []


def test_a_mean_says_of_how_many_steps_it_is() -> None:
    """Of two steps nothing is the mean of the last ten."""
    results = results_of(fold_all(new_state(), small_run(), RESULTS_TOPICS), run="test")
    assert [line for line in results_lines(results) if line.startswith("2 steps, mean reward of all 2 0.375, ")]
    assert [line for line in results_lines(replace(results, steps=80)) if "mean reward of the last ten 0.375, " in line]
