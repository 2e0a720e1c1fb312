"""A run in which every attempt ends by one cause that no training can mend is ended, and says by what."""

from __future__ import annotations

import msgspec
import pytest

from tests.producers.tasks.world import World, validated
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.calls import Purpose


def restart(world: World, *, stops: bool = True) -> None:
    """A tasks process that ends the run by a cause."""
    world.handles = msgspec.structs.replace(world.handles, stops_by_cause=stops, concurrency=64, groups_per_step=30)
    world.start()


def play(world: World, num: int, *, begin: int = 0) -> None:
    """So many more training attempts, without a call."""
    world.turn()
    for request in world.requests(Purpose.TRAIN)[begin : begin + num]:
        world.end(request)
    world.turn()


def test_an_agent_that_never_calls_the_policy_ends_the_run(world: World) -> None:
    """16 attempts are enough; what to do is said."""
    restart(world)
    validated(world)
    play(world, 13)
    with pytest.raises(
        ConfigurationError,
        match=r"no_calls: 16 of 16 attempts. Its agent never called the policy.* Then give the same command",
    ):
        play(world, 1, begin=13)


def test_a_run_that_is_told_to_warn_goes_on(world: World) -> None:
    """By `[alarms] on = "warn"`."""
    restart(world, stops=False)
    validated(world)
    play(world, 20)
    assert world.admission.state.stopping_cause(16) is not None


def test_what_ended_before_this_start_does_not_count(world: World) -> None:
    """Whoever starts the run again may have mended the grader."""
    restart(world, stops=False)
    validated(world)
    play(world, 20)
    restart(world)
    world.turn()
    play(world, 15, begin=20)
    with pytest.raises(ConfigurationError, match="16 of 16 attempts"):
        play(world, 1, begin=35)


def test_a_run_that_has_learned_goes_on(world: World) -> None:
    """Of an update before: what fails now may be passing, as an API of the grader's that is away."""
    restart(world)
    validated(world)
    world.train()
    world.start()
    world.turn()
    play(world, 20)
    causes = world.admission.state.causes
    assert causes.stopping(16) is not None and world.admission.state.stopping_cause(16) is None
