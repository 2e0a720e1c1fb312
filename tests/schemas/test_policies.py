"""Which policy has which partition."""

from __future__ import annotations

import pytest

from tracegrad.schemas.policies import partition_of


def test_a_policy_has_the_partition_of_its_place_among_the_runs() -> None:
    """So that credit writes where the trainer of that policy reads."""
    assert [partition_of(name, ("planner", "coder")) for name in ("planner", "coder")] == [0, 1]


def test_the_only_policy_of_a_run_has_the_first_partition() -> None:
    """Whoever is not told which others there are, by its name or without."""
    assert partition_of() == partition_of("coder") == partition_of("coder", ("coder",)) == 0


def test_a_policy_that_the_run_does_not_train_has_none() -> None:
    """Its records would lie in another policy's partition."""
    with pytest.raises(ValueError):
        partition_of("critic", ("planner", "coder"))
