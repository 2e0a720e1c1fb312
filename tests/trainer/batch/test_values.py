"""Values become advantages, by turn and by token: what a step earned, and in which order steps come."""

from __future__ import annotations

import random

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.trainer.material import segment, summary, turn
from tracegrad.schemas.records.transitions import SegmentRow
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.rows import TrainingRow, training_rows

pytestmark = pytest.mark.torch

TURN = Recipe(baseline="critic", gae="turn")
TOKEN = Recipe(baseline="critic", gae="token")
# Three turns with returns-to-go 3, 2.5 and 2: they earn .5, .5 and 2. Tokens 1, 2 | 4, 5, 6 | 9.
TURNS = [
    turn(1, 3, call="a", returned=3.0, index=0),
    turn(4, 7, call="b", returned=2.5, index=1),
    turn(9, 10, call="c", returned=2.0, index=2),
]


def made(recipe: Recipe, values: list[list[float]], *rows: SegmentRow) -> list[TrainingRow]:
    """Rows of one group; `values` of each row's tokens."""
    group = Group(summary("g0", sorted({row.rollout_id for row in rows})), rows)
    values_T = [np.array(each, np.float64) for each in values]
    return training_rows([group], recipe, values=values_T)[0]


def one_row(recipe: Recipe) -> TrainingRow:
    """Of the three turns; V is a tenth of the token's place."""
    (row,) = made(recipe, [[t / 10 for t in range(12)]], segment("r0", TURNS, num_tokens=12))
    return row


def test_by_turn_lambda_one_is_the_return_minus_the_value_at_its_start() -> None:
    """One number a turn, and its value is asked at its first token alone."""
    row = one_row(TURN)
    assert row.advantages_T.tolist() == pytest.approx([0, 2.9, 2.9, 0, 2.1, 2.1, 2.1, 0, 0, 1.1, 0, 0])
    assert row.targets_T is not None and row.values_T is not None
    assert {t: float(v) for t, v in enumerate(row.targets_T) if not np.isnan(v)} == {1: 3.0, 4: 2.5, 9: 2.0}
    assert row.values_T[4] == np.float32(0.4)


def test_by_token_lambda_one_is_the_return_minus_each_value() -> None:
    """The rewards lie on the last token of each turn."""
    row = one_row(TOKEN)
    assert row.advantages_T.tolist() == pytest.approx([0, 2.9, 2.8, 0, 2.1, 2.0, 1.9, 0, 0, 1.1, 0, 0])
    assert row.targets_T is not None
    assert {t: float(v) for t, v in enumerate(row.targets_T) if not np.isnan(v)} == pytest.approx(
        {1: 3.0, 2: 3.0, 4: 2.5, 5: 2.5, 6: 2.5, 9: 2.0}
    )


@pytest.mark.parametrize("gae", ["turn", "token"])
def test_perfect_values_leave_nothing(gae: str) -> None:
    """Whatever lambda is."""
    values = [0, 3.0, 3.0, 0, 2.5, 2.5, 2.5, 0, 0, 2.0, 0, 0]
    for lam in (0.0, 0.5, 1.0):
        recipe = Recipe(baseline="critic", gae=gae, lam=lam)  # type: ignore[arg-type]
        (row,) = made(recipe, [values], segment("r0", TURNS, num_tokens=12))
        assert not row.has_advantage


@pytest.mark.parametrize("gae", ["turn", "token"])
def test_cuts_into_rows_change_nothing(gae: str) -> None:
    """The last turn in a row of its own, which comes first: its order is the turn's."""
    recipe = Recipe(baseline="critic", gae=gae, gamma=0.9, lam=0.8, scale="whiten")  # type: ignore[arg-type]
    whole = one_row(recipe)
    last = segment("r0", [turn(9, 10, call="c", returned=2.0, index=2)], num_tokens=12, rollout_tokens=6)
    first = segment("r0", TURNS[:2], num_tokens=8, number=1, rollout_tokens=6)
    cut = made(recipe, [[t / 10 for t in range(12)], [t / 10 for t in range(8)]], last, first)
    assert cut[0].advantages_T[9] == whole.advantages_T[9]
    assert cut[1].advantages_T.tolist() == whole.advantages_T[:8].tolist()


def test_what_a_masked_turn_earned_is_its_forerunners() -> None:
    """It is asked nothing; the turn before it earns 1."""
    mask = [0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    recipe = Recipe(baseline="critic", lam=0.0)
    (row,) = made(recipe, [[0.0] * 12], segment("r0", TURNS, num_tokens=12, mask=mask))
    assert row.advantages_T.tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0, 2, 0, 0]


def test_each_agent_has_its_own_sequence() -> None:
    """By the turns of the planner alone, whose second follows the coder's first; lambda 0 shows the next value."""
    turns = [
        turn(1, 2, call="a", returned=3.0, index=0, agent="planner"),
        turn(3, 4, call="b", returned=2.5, index=0, agent="coder"),
        turn(5, 6, call="c", returned=2.0, index=1, agent="planner"),
    ]
    recipe = Recipe(baseline="critic", lam=0.0)
    (row,) = made(recipe, [[0, 0, 0, 100, 0, 10, 0, 0]], segment("r0", turns))
    assert row.advantages_T.tolist() == [0, 1.0 + 10.0, 0, 2.5 - 100.0, 0, 2.0 - 10.0, 0, 0]


def test_calls_without_a_name_are_the_only_agents() -> None:
    """The second turn's span was lost."""
    turns = [
        turn(1, 2, call="a", returned=3.0, index=0, agent="planner"),
        turn(3, 4, call="b", returned=2.5, index=1),
    ]
    (row,) = made(Recipe(baseline="critic", lam=0.0), [[0, 0, 0, 10, 0, 0, 0, 0]], segment("r0", turns))
    assert row.advantages_T.tolist() == [0, 0.5 + 10.0, 0, 2.5 - 10.0, 0, 0, 0, 0]


def test_weight_of_a_turn_and_length_count() -> None:
    """Twice the advantage; a rollout of six tokens, two over the limit of four, is worth 1 less at every turn."""
    turns = [*TURNS[:2], turn(9, 10, call="c", returned=2.0, index=2, weight=2.0)]
    recipe = Recipe(baseline="critic", overlong=4, overlong_buffer=2)
    (row,) = made(recipe, [[0.0] * 12], segment("r0", turns, num_tokens=12))
    assert row.advantages_T.tolist() == pytest.approx([0, 2, 2, 0, 1.5, 1.5, 1.5, 0, 0, 2.0, 0, 0])


def test_permutation_of_rollouts_changes_no_bit() -> None:
    """A rollout's advantages are its own, before whitening."""
    rng = random.Random(3)
    rows = [segment(f"r{i}", TURNS, num_tokens=12) for i in range(5)]
    values = [[rng.random() for _ in range(12)] for _ in rows]
    recipe = Recipe(baseline="critic", gae="token", lam=0.7)
    expected = {row.rollout_id: row.advantages_T.tolist() for row in made(recipe, values, *rows)}
    found = made(recipe, values[::-1], *rows[::-1])
    assert {row.rollout_id: row.advantages_T.tolist() for row in found} == expected
