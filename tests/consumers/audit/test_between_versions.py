"""The accounting of a run that publishes fewer versions than it takes steps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.consumers.audit.small_run import append_step, audited, publish, small_run, step
from tests.streams.make import Streams


def missing(streams: Streams) -> list[str]:
    """What the audit names, of a run that led to versions 1 and 2 and goes on."""
    return audited(streams).missing


@pytest.mark.parametrize(
    ("version", "num_unpublished", "named"),
    [
        (2, 1, []),
        (2, 2, ["updates without a version: step 3 tells of 2, there are 1"]),
        (1, 1, ["step that did not start from the version that it names: step 3, version 1"]),
        (3, 1, ["version trained but not on weights: 3"]),
    ],
)
def test_a_step_between_two_versions_counts_its_updates(version: int, num_unpublished: int, named: list[str]) -> None:
    """It names the version of the step before, and how many updates that lacks."""
    streams = small_run()
    append_step(streams, replace(step(3), version=version, num_unpublished=num_unpublished))
    assert missing(streams) == named


@pytest.mark.parametrize("is_updated", [True, False])
def test_a_rollback_begins_the_count_anew(is_updated: bool) -> None:
    """The step after it starts from its version, whatever that before had left."""
    streams = small_run()
    publish(streams, 3, None, base_version=1, step=2, next_offset=2, asked=True)
    append_step(streams, replace(step(3), version=3, is_updated=is_updated, num_unpublished=int(is_updated)))
    assert missing(streams) == []
    streams = small_run()
    publish(streams, 3, None, base_version=1, step=2, next_offset=2, asked=True)
    append_step(streams, replace(step(3), version=3, is_updated=is_updated, num_unpublished=2))
    assert missing(streams) == [f"updates without a version: step 3 tells of 2, there are {int(is_updated)}"]


def test_a_step_that_led_to_a_version_leaves_no_update_without_one() -> None:
    """Here the second says that two are left."""
    streams = small_run()
    append_step(streams, replace(step(2), epoch=2, num_unpublished=2))
    assert "step that led to a version and tells of updates without one: step 2" in missing(streams)


def test_a_last_step_without_an_update_may_lead_to_a_version() -> None:
    """Of those before it."""
    streams = small_run()
    append_step(streams, replace(step(2), epoch=2, version=1, num_unpublished=1))
    append_step(streams, replace(step(3, epoch=2), version=2, is_updated=False))
    assert "updates without a version: step 3 tells of 0, there are 1" not in missing(streams)
    publish(streams, 3, None, step=3, next_offset=3)
    append_step(streams, replace(step(3, epoch=3), version=3, is_updated=False))
    assert missing(streams) == []
