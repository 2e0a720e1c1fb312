"""Groups become rows of numbers: who is compared with whom, and what the loss's denominators count."""

from __future__ import annotations

import random
import time

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.streams.make import RUN_HASH, Streams, chain, closed, event, reward, rollout
from tests.trainer.material import (
    group_bytes,
    group_in,
    segment,
    summary,
    turn,
)
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.transitions import SegmentRow
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.batch.advantages import call_advantages
from tracegrad.trainer.batch.groups import CallKey, Group
from tracegrad.trainer.batch.rows import rollout_tokens, training_rows

pytestmark = pytest.mark.torch

RECIPE = RECIPES[DEFAULT].recipe


def made_of(*rows: SegmentRow) -> Group:
    """A group of these rows."""
    return Group(summary("g0", sorted({row.rollout_id for row in rows})), rows)


def advantages(group: Group) -> dict[CallKey, float]:
    """Of its calls."""
    return call_advantages([group], RECIPE, rollout_tokens([group]))[0]


def test_permutation_of_rows_changes_no_bit() -> None:
    """Sums are exact, so order cannot matter."""
    rng = random.Random(2)
    rows = [segment(f"r{i}", [turn(2, 5, returned=rng.uniform(-1, 2))]) for i in range(8)]
    expected = advantages(made_of(*rows))
    for _ in range(10):
        rng.shuffle(rows)
        assert advantages(made_of(*rows)) == expected


def test_turns_are_compared_with_their_peers_only() -> None:
    """Two turns each: first ones 1.5 and 0.5, second ones 1 and 0; the third turn of r1 has no peer."""
    rows = [
        segment("r0", [turn(1, 2, call="a", returned=1.5, peers="0"), turn(3, 4, call="b", returned=1.0, peers="1")]),
        segment(
            "r1",
            [
                turn(1, 2, call="a", returned=0.5, peers="0"),
                turn(3, 4, call="b", returned=0.0, peers="1"),
                turn(5, 6, call="c", returned=7.0, peers="2"),
            ],
        ),
    ]
    assert advantages(made_of(*rows)) == {
        ("r0", "a"): 1.0,
        ("r1", "a"): -1.0,
        ("r0", "b"): 1.0,
        ("r1", "b"): -1.0,
        ("r1", "c"): 0.0,
    }


def test_call_in_two_rows_counts_once() -> None:
    """A shared prefix repeats a call with loss_mask 0; the baseline must not see it twice."""
    shared = turn(1, 3, call="a", returned=1.0)
    rows = [
        segment("r0", [shared]),
        segment("r0", [shared], mask=[0] * 8, number=1),
        segment("r1", [turn(1, 3, call="a", returned=0.5)]),
        segment("r2", [turn(1, 3, call="a", returned=0.0)]),
    ]
    assert advantages(made_of(*rows))["r1", "a"] == 0.0


def test_masked_call_is_a_peer() -> None:
    """A truncated call leaves the loss, but what it was worth still counts in the others' baseline."""
    rows = [segment("r0", [turn(1, 3, returned=1.0)]), segment("r1", [turn(1, 3, returned=0.0)], mask=[0] * 8)]
    assert advantages(made_of(*rows))["r0", "call-0"] == 1.0


def test_weight_multiplies_the_advantage() -> None:
    """Credit's weight is the turn's share in the loss."""
    rows = [segment("r0", [turn(1, 3, returned=1.0, weight=0.5)]), segment("r1", [turn(1, 3, returned=0.0)])]
    half, whole = training_rows([made_of(*rows)], RECIPE)[0]
    assert half.advantages_T[half.loss_mask_T].tolist() == [0.5, 0.5]
    assert whole.advantages_T[whole.loss_mask_T].tolist() == [-1.0, -1.0]


def test_denominator_counts_rows_without_advantage() -> None:
    """token_mean: each token weighs 1/N with N over all rollouts of the batch."""
    rows, _ = training_rows([group_in(group_bytes(0)), group_in(group_bytes(9, spread=0.0))], RECIPE)
    assert rows[0].token_weight == 1 / sum(int(row.loss_mask_T.sum()) for row in rows)
    assert [row.has_advantage for row in rows[-4:]] == [False] * 4


@pytest.mark.slow
def test_an_episode_of_ten_thousand_turns_trains_in_full() -> None:
    """From raw records through the three folds: every sampled token has its advantage. The other member stopped after
    three turns for nothing, so each of the ten thousand is worth 1 more than what it is compared with."""
    streams = Streams()
    num_turns = (10_000, 3)
    for member, num in enumerate(num_turns):
        own = rollout(member)
        group = GroupRef(id=f"{RUN_HASH}{7:016x}", size=2, member=member, index=7)
        calls = chain(own, num)
        streams.feed(*calls, closed(own, calls), reward(own, float(num > 3)), event(own, group=group))
    (value,) = streams.values(Topic.TRANSITIONS)
    began = time.process_time()
    (long, short), _ = training_rows([group_in(value)], RECIPE)
    assert time.process_time() - began < 5.0
    for row, num, advantage in ((long, num_turns[0], 1.0), (short, num_turns[1], -1.0)):
        assert row.token_ids_T.tolist() == [1, 2, 3] * num
        assert row.loss_mask_T.tolist() == [False, False, True] * num
        np.testing.assert_array_equal(row.advantages_T[row.loss_mask_T], np.full(num, advantage, np.float32))
        assert set(row.versions_T[row.loss_mask_T].tolist()) == {3}
    assert long.token_weight == 1 / sum(num_turns)
