"""How old a token is, counted in steps: replayed numbers, rollbacks, versions that no manifest tells of."""

from __future__ import annotations

from typing import Any

import pytest

from tests.trainer.batch.opening import gid, open_batch
from tests.trainer.material import group_bytes
from tests.versions import RUN, manifest
from tracegrad.schemas.records.weights import VersionManifest, WeightFile
from tracegrad.trainer.batch.staleness import staleness


def version(number: int, step: int, base: int, *, weights: str = "", **fields: Any) -> VersionManifest:
    """One whose weights are its own, or named."""
    file = WeightFile(name="model.safetensors", bytes=1, sha256=weights or f"of {number}")
    return manifest(number, step=step, base_version=base, files=(file,), **fields)


REPLAYED = {
    one.version: one
    for one in (
        version(0, 0, 0),
        version(1, 1, 0),
        version(2, 2, 1),
        version(3, 3, 2),
        version(4, 2, 1, epoch=2),
        version(5, 3, 4, epoch=2),
        version(6, 3, 1, epoch=2, weights="of 1"),
        version(7, 4, 6, epoch=2),
    )
}
"""The example of the docstring, and a step after it."""


@pytest.mark.parametrize(
    ("sampled_by", "present", "expected"),
    [(1, 6, 3), (2, 6, 2), (4, 6, 2), (3, 6, 1), (5, 6, 1), (6, 6, 0), (2, 5, 1), (3, 5, 0), (3, 4, 0), (5, 7, 2)],
)
def test_a_step_counts_once_and_a_rollback_as_one(sampled_by: int, present: int, expected: int) -> None:
    """However many numbers it was published under."""
    assert staleness(sampled_by, present, REPLAYED) == expected


def test_versions_every_so_many_steps_are_counted_not_the_steps_between() -> None:
    """The bound is in versions."""
    manifests = {number: version(number, 4 * number, number - 1) for number in range(4)}
    assert [staleness(number, 3, manifests) for number in range(4)] == [3, 2, 1, 0]


@pytest.mark.parametrize("gone", [2, 6])
def test_a_version_that_no_manifest_tells_of_is_as_old_as_its_number_says(gone: int) -> None:
    """Whether it is the sampler's or the present one."""
    manifests = {number: one for number, one in REPLAYED.items() if number != gone}
    assert staleness(2, 6, manifests) == 4
    assert staleness(7, 6, {}) == 0


def test_a_batch_excludes_and_tells_by_the_same_count() -> None:
    """Bound 1, at version 7: by numbers only the last would train."""
    values = [group_bytes(index, version=number) for index, number in enumerate((5, 6, 2, 7))]
    batch = open_batch(values, num_groups=4).close(run=RUN, version=7, max_staleness=1, manifests=REPLAYED)
    assert batch.excluded == {gid(0): "stale", gid(2): "stale"}
    assert batch.staleness == {5: 2, 6: 1, 2: 3, 7: 0}
