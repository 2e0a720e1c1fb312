"""Held-out passes: every reader folds to the same ones, and to the same best."""

from __future__ import annotations

import random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.versions import held_out
from tracegrad.schemas.records.held_out import HeldOutPass, HeldOutPasses

MEANS = st.lists(st.none() | st.sampled_from([0.0, 0.25, 0.5, 0.75]), max_size=8)


def folded(records: list[HeldOutPass]) -> HeldOutPasses:
    """In this order."""
    passes = HeldOutPasses()
    for record in records:
        passes.fold(record)
    return passes


def passes_of(means: list[float | None]) -> list[HeldOutPass]:
    """As tasks writes them, one after the other; the version of pass p is 10 p."""
    words = [
        (held_out(p, since=10 * p), held_out(p, mean, version=10 * p, since=10 * p)) for p, mean in enumerate(means)
    ]
    return [word for both in words for word in both]


@given(MEANS, st.integers(0, 99))
def test_copies_change_nothing(means: list[float | None], seed: int) -> None:
    """A restart that says a thing again, perhaps otherwise; a copy of a record at any later place."""
    draw, records = random.Random(seed), passes_of(means)
    with_copies: list[HeldOutPass] = []
    for record in records:
        with_copies.append(record)
        copy = draw.choice(with_copies)
        score = copy.score and msgspec.structs.replace(copy.score, mean=0.9)
        with_copies += [copy, msgspec.structs.replace(copy, since_version=99, score=score)][: draw.randrange(3)]
    assert folded(with_copies).by_number == folded(records).by_number
    assert folded(with_copies).best == folded(records).best


@given(MEANS)
def test_the_best_is_the_first_of_the_greatest_mean(means: list[float | None]) -> None:
    """Ties go to the older one; what was not scored is none."""
    best = folded(passes_of(means)).best
    scored = [mean for mean in means if mean is not None]
    assert (best is None) == (not scored)
    if best is not None:
        assert best.score is not None and best.number == means.index(max(scored))


def test_a_pass_of_which_little_was_scored_is_no_candidate() -> None:
    """What an outage left of it may be the easy tasks."""
    few = held_out(1, 1.0, version=10, num_tasks=3)
    best = folded([held_out(0, 0.5, version=0), held_out(1, num_tasks=3), few]).best
    assert best is not None and best.number == 0
    half = msgspec.structs.replace(few, num_tasks=2)
    best = folded([held_out(0, 0.5, version=0), held_out(1, num_tasks=2), half]).best
    assert best is not None and best.number == 1


def test_a_pass_that_no_version_sampled_is_no_candidate() -> None:
    """An agent that never asked the policy was scored, nothing else."""
    one = held_out(0, 1.0, version=0)
    assert one.score is not None
    nobody = msgspec.structs.replace(one, score=msgspec.structs.replace(one.score, version=None, versions=()))
    assert folded([held_out(0), nobody]).best is None


@given(MEANS, st.integers(0, 16), st.integers(0, 90))
def test_what_is_held_is_the_best_and_what_a_pass_may_yet_score(
    means: list[float | None], cut: int, version: int
) -> None:
    """While pass p has no score, all from the version that was served when it began."""
    records = passes_of(means)[:cut]
    passes = folded(records)
    best = passes.best.score.version if passes.best and passes.best.score else None
    since = records[-1].since_version if records and records[-1].score is None else 1_000
    assert passes.is_held(version) == (version == best or version >= since)
