"""The interval of a batch whose groups without spread are refilled: against the rule in words, in any order."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

from tests.seeds import any_seed
from tests.trainer.batch.opening import gid, open_batch
from tests.trainer.material import group_bytes, segment, summary, turn
from tests.versions import RUN
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.training import Accounting
from tracegrad.schemas.records.transitions import encode_group
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.batches import account

pytestmark = pytest.mark.torch


def rewarded(index: int, *rewards: float) -> bytes:
    """A group of one turn a rollout."""
    rollouts = [f"{gid(index)}{member:04x}" for member in range(len(rewards))]
    rows = [segment(name, [turn(2, 6, returned=reward)]) for name, reward in zip(rollouts, rewards, strict=True)]
    return encode_group(summary(gid(index), rollouts), rows)


def record_of(kind: str, index: int) -> bytes | None:
    """What may lie on the partition."""
    match kind:
        case "spread":
            return rewarded(index, 0.0, 1.0)
        case "stale":
            return group_bytes(index, version=0)
        case "equal":
            return rewarded(index, 0.5, 0.5)
        case "empty":
            return encode_group(summary(gid(index), ["r0"], excluded="all_members_excluded"), [])
        case "malformed":
            return encode_group(summary(gid(index), ["r0"]), [segment("r0", [turn(0, 3)])])
        case _:
            return b"garbage"


@pytest.mark.parametrize("refill", [1, 2, 3])
@any_seed
def test_a_batch_ends_with_the_gth_group_that_has_spread_or_at_the_limit(seed: int, refill: int) -> None:
    """Whatever lies between, and again and again: all distinct groups are consumed, those with spread train, those
    without are given back in their order; read again, it is the same batch. With refill 1 each group counts.
    """
    rng = random.Random(seed)
    kinds = ["spread", "equal", "empty", "malformed", "garbage"]
    told = [(rng.choices(kinds, [3, 4, 1, 1, 1])[0], rng.randrange(12)) for _ in range(60)]
    kind_of = {index: kind for kind, index in reversed(told) if kind != "garbage"}  # of an id the first one counts
    values = [record_of(kind, index) for kind, index in told]

    seen: list[int] = []
    end = 0
    for kind, index in told:
        end += 1
        if kind != "garbage" and index not in seen:
            seen.append(index)
        with_spread = [index for index in seen if kind_of[index] == "spread"]
        if len(with_spread if refill > 1 else seen) == 3 or len(seen) == 3 * refill:
            break
    without = [index for index in seen if kind_of[index] != "spread"]

    recipe = Recipe(selection="spread", refill=refill)
    batch = open_batch(values, num_groups=3, recipe=recipe)
    assert batch.is_complete
    assert batch.given_back == ([gid(index) for index in without] if refill > 1 else [])
    closed = batch.close(run=RUN, version=0, max_staleness=2)
    assert (closed.next_offset, closed.group_ids) == (10 + end, tuple(map(gid, with_spread)))
    reasons = {"equal": "no_spread", "empty": "all_members_excluded", "malformed": "malformed"}
    assert closed.excluded == {gid(index): reasons[kind_of[index]] for index in without}
    assert account(Accounting(), closed).consumed == len(seen)
    again = open_batch(values, num_groups=3, recipe=recipe).close(run=RUN, version=0, max_staleness=2)
    assert (again.hash, again.next_offset) == (closed.hash, closed.next_offset)


@pytest.mark.parametrize(("share", "expected"), [(1.0, (0, 3)), (0.5, (3,))])
def test_what_was_given_back_does_not_train_after_all(share: float, expected: tuple[int, ...]) -> None:
    """Others were admitted in its stead; the share is one of the groups that count."""
    values = [rewarded(0, 0.0, 1.0), record_of("equal", 1), record_of("equal", 2), rewarded(3, 0.0, 2.0)]
    batch = open_batch(values, num_groups=2, recipe=Recipe(selection="top_std", share=share, refill=9))
    assert batch.given_back == [gid(1), gid(2)]
    closed = batch.close(run=RUN, version=0, max_staleness=2)
    assert closed.group_ids == tuple(map(gid, expected))
    assert closed.excluded.items() >= {gid(1): "no_spread", gid(2): "no_spread"}.items()


def test_the_interval_does_not_depend_on_the_version() -> None:
    """A rollback may come while it is read: what is stale then was no reason to give it back."""
    values = [record_of("stale", 0), record_of("equal", 1), record_of("stale", 2)]
    batch = open_batch(values, num_groups=2, recipe=Recipe(selection="spread", refill=9))
    assert batch.is_complete
    assert batch.given_back == [gid(1)]
    closed = batch.close(run=RUN, version=9, max_staleness=2)
    assert closed.excluded == {gid(0): "stale", gid(1): "stale", gid(2): "stale"} | {gid(1): closed.excluded[gid(1)]}
    assert closed.group_ids == ()


def test_refill_needs_a_selection() -> None:
    """Else what is given back would train all the same."""
    with pytest.raises(ConfigurationError, match="selection: expected 'spread' or 'top_std' with refill = 2"):
        Recipe(refill=2)
