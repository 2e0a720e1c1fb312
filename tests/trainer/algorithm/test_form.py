"""The form: axes put together, by hand and by property."""

from __future__ import annotations

import math
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.trainer.algorithm.form import TokenLoss, Turns, loss, token_weights, turn_advantages
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES

pytestmark = pytest.mark.torch

RECIPE = RECIPES[DEFAULT].recipe


def loss_of(
    ratios: list[float], advantages: list[float], weights: list[float] | None = None
) -> tuple[TokenLoss, torch.Tensor]:
    """The loss at given ratios; mu is 0.5 for every token."""
    sampler = torch.full((len(ratios),), math.log(0.5))
    logprobs = (torch.tensor(ratios).log() + sampler).requires_grad_(True)
    term = loss(
        RECIPE,
        logprobs_N=logprobs,
        sampler_logprobs_N=sampler,
        advantages_N=torch.tensor(advantages),
        weights_N=torch.tensor(weights or [1.0] * len(ratios)),
    )
    return term, logprobs


def gradient_of(tensor: torch.Tensor) -> torch.Tensor:
    """After a backward pass."""
    assert tensor.grad is not None
    return tensor.grad


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient"),
    [
        (1.0, 1.0, -1.0, -1.0),
        (1.2, 1.0, -1.2, -1.2),
        (1.5, 1.0, -1.28, 0.0),
        (0.5, 1.0, -0.5, -0.5),
        (1.5, -2.0, 3.0, 3.0),
        (5.0, -2.0, 6.0, 0.0),
        (0.5, -2.0, 1.6, 0.0),
        (0.9, -2.0, 1.8, 1.8),
    ],
)
def test_loss_by_hand(ratio: float, advantage: float, loss: float, gradient: float) -> None:
    """-min(rho A, clip(rho, .8, 1.28) A), at most -3 A; d/dlogprob is -rho A where the clip does not hold, else 0."""
    term, logprobs = loss_of([ratio], [advantage])
    assert term.loss.item() == pytest.approx(loss, rel=1e-5)
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert gradient_of(logprobs).item() == pytest.approx(gradient, rel=1e-5, abs=1e-7)
    assert bool(term.clipped_N.item()) == (gradient == 0.0)


def test_absurd_ratio_stays_finite() -> None:
    """A token that the trainer finds e^60 times likelier weighs 3, and is counted."""
    term, logprobs = loss_of([math.exp(60.0)], [-1.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == pytest.approx(3.0)
    assert gradient_of(logprobs).item() == 0.0
    assert term.bounded_N.tolist() == [True]


def test_zero_advantage_gives_zero_gradient() -> None:
    """So such rows need not be computed."""
    term, logprobs = loss_of([1.3, 0.4], [0.0, 0.0])
    term.loss.backward()  # type: ignore[no-untyped-call]
    assert term.loss.item() == 0.0
    assert torch.equal(gradient_of(logprobs), torch.zeros_like(logprobs))


@pytest.mark.parametrize(
    ("aggregation", "expected"), [("token_mean", 1 / 3), ("rollout_mean", 0.0), ("constant", 1 / 10)]
)
def test_worked_example_of_the_docs(aggregation: Any, expected: float) -> None:
    """docs/training.md: returns 1 and 0, two and four tokens, rho = 1."""
    recipe = Recipe(aggregation=aggregation, length=10)
    both = advantages(["r0", "r1"], [1.0, 0.0], baseline="leave_one_out")
    weights = token_weights(recipe, [2, 4], ["g0", "g0"])
    assert both == [1.0, -1.0]
    term, _ = loss_of([1.0] * 6, [1.0] * 2 + [-1.0] * 4, [weights[0]] * 2 + [weights[1]] * 4)
    assert term.loss.item() == pytest.approx(expected, abs=1e-6)


def advantages(rollouts: list[str], returns: list[float], **axes: Any) -> list[float]:
    """Of turns of one group and of equal peers."""
    recipe, num = Recipe(**axes), len(returns)
    return turn_advantages(recipe, Turns(["g0"] * num, ["0"] * num, rollouts, returns, [1] * num))[0]


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out", "length_weighted"])
@pytest.mark.parametrize("scale", ["none", "std", "batch_std"])
def test_equal_returns_give_exactly_zero(baseline: str, scale: str) -> None:
    """0.1 summed seven times rounds; a group without spread must still cost nothing."""
    for size in range(2, 20):
        got = advantages([str(i) for i in range(size)], [0.1] * size, baseline=baseline, scale=scale)
        assert got == [0.0] * size


@pytest.mark.parametrize("baseline", ["none", "running_mean"])
@pytest.mark.parametrize("scale", ["std", "batch_std"])
def test_equal_returns_have_no_std_to_divide_by(baseline: str, scale: str) -> None:
    """Nor has their rounding, 1e-17: not 7e15, but 0."""
    for size in range(1, 20):
        got = advantages([str(i) for i in range(size)], [0.1] * size, baseline=baseline, scale=scale)
        assert got == [0.0] * size


def test_scale_divides_by_the_std() -> None:
    """GRPO: returns 1 and 0, mean .5, std sqrt(.5)."""
    assert advantages(["r0", "r1"], [1.0, 0.0], scale="std") == pytest.approx([0.5**0.5, -(0.5**0.5)])


@pytest.mark.parametrize("baseline", ["mean", "leave_one_out"])
def test_turn_without_peers_gets_zero(baseline: str) -> None:
    """Whatever its return, scaled or not."""
    for scale in ("none", "std"):
        assert advantages(["r0"], [5.0], baseline=baseline, scale=scale) == [0.0]


TWO_GROUPS = Turns(["g0", "g0", "g1", "g1"], ["0"] * 4, ["a", "b", "c", "d"], [1.0, 0.0, 4.0, 0.0], [1, 1, 1, 1])


@pytest.mark.parametrize(
    ("axes", "expected"),
    [
        ({}, [0.5, -0.5, 2.0, -2.0]),
        ({"over": "batch"}, [-0.25, -1.25, 2.75, -1.25]),
        # sqrt((.25 + .25 + 4 + 4) / 3)
        ({"scale": "batch_std"}, [value / (8.5 / 3) ** 0.5 for value in (0.5, -0.5, 2.0, -2.0)]),
        ({"outcome": "passed", "bound": 1.0}, [0.5, -0.5, 0.5, -0.5]),
        ({"outcome": "one", "baseline": "none"}, [1.0] * 4),
        # The length is the limit: each return is less by 1, but b is too.
        ({"overlong": 1, "baseline": "none"}, [0.0, -1.0, 3.0, -1.0]),
    ],
    ids=["by group", "by batch", "std of the batch", "passed", "one", "overlong"],
)
def test_advantages_of_two_groups_by_hand(axes: dict[str, Any], expected: list[float]) -> None:
    """Returns 1, 0 and 4, 0."""
    assert turn_advantages(Recipe(**axes), TWO_GROUPS)[0] == pytest.approx(expected)


def test_all_turns_of_a_group_may_be_compared() -> None:
    """Two turns of two agents: by peers nothing to compare with, by group the mean of 1 and 0."""
    turns = Turns(["g0", "g0"], ["planner:0", "coder:0"], ["a", "b"], [1.0, 0.0], [1, 1])
    assert turn_advantages(Recipe(), turns)[0] == [0.0, 0.0]
    assert turn_advantages(Recipe(over="group"), turns)[0] == [0.5, -0.5]


def test_rollouts_without_groups_are_compared_with_the_nearest_of_the_batch() -> None:
    """Four reach the planner's first turn: b is the mean of the others there. Its second turn two reach, so all five
    turns of the planner's are compared, each rollout once; the coder's one with all."""
    rollouts = ["a", "b", "c", "d", "a", "b", "e"]
    peers = ["planner:0"] * 4 + ["planner:1"] * 2 + ["coder:0"]
    turns = Turns([f"g{name}" for name in rollouts], peers, rollouts, [4.0, 0.0, 0.0, 0.0, 2.0, 0.0, 9.0], [1] * 7)
    found, _ = turn_advantages(Recipe(baseline="leave_one_out", over="nearest"), turns)
    by_turn = [4.0, -4 / 3, -4 / 3, -4 / 3]
    # Of the agent: a 3, b 0, c 0, d 0. Of all: e 9 besides.
    assert found == pytest.approx([*by_turn, 2.0, -1.0, 9.0 - 0.75])


def test_turns_that_no_span_names_are_of_one_agent() -> None:
    """Too few reach its second turn, so that all of its turns are compared, and not with the coder's; where all turns
    of an agent are peers its name may hold a colon."""
    recipe, rollouts = Recipe(baseline="leave_one_out", over="nearest"), ["a", "b", "c", "d"]
    turns = Turns(["g"] * 6, [*[":0"] * 4, ":1", "coder:0"], [*rollouts, "a", "e"], [0.0] * 4 + [1.0, 9.0], [1] * 6)
    assert turn_advantages(recipe, turns)[0][4] == 1.0
    turns = Turns(["g"] * 5, ["team:x"] * 4 + ["team:y"], [*rollouts, "e"], [0.0] * 4 + [1.0], [1] * 5)
    assert turn_advantages(recipe, turns)[0][:4] == [0.0] * 4


def test_running_mean_is_what_earlier_batches_gave() -> None:
    """Nothing before the first; of turns with equal peers, whatever the group."""
    recipe = Recipe(baseline="running_mean", decay=0.5)
    first, after = turn_advantages(recipe, TWO_GROUPS)
    assert (first, after) == ([1.0, 0.0, 4.0, 0.0], {"0": 1.25})
    assert turn_advantages(recipe, TWO_GROUPS, after) == ([-0.25, -1.25, 2.75, -1.25], {"0": 1.25})


def test_a_rollout_counts_once_in_the_running_mean() -> None:
    """As in every other baseline: r1 failed in three turns."""
    turns = Turns(["g0"] * 4, ["0"] * 4, ["r0", "r1", "r1", "r1"], [1.0, 0.0, 0.0, 0.0], [1] * 4)
    assert turn_advantages(Recipe(baseline="running_mean"), turns)[1] == {"0": 0.5}


@pytest.mark.parametrize(
    ("surrogate", "advantage", "is_bounded"), [("clip", -1.0, True), ("clip", 1.0, False), ("reinforce", -1.0, False)]
)
def test_bounded_tokens_are_counted_where_there_is_a_bound(surrogate: Any, advantage: float, is_bounded: bool) -> None:
    """`dual` is of `clip` where A < 0; another surrogate with the default's keys has none."""
    term = loss(
        Recipe(surrogate=surrogate, dual=3.0),
        logprobs_N=torch.full((1,), math.log(0.9)),
        sampler_logprobs_N=torch.full((1,), math.log(0.1)),
        advantages_N=torch.full((1,), advantage),
        weights_N=torch.ones(1),
    )
    assert term.bounded_N.tolist() == [is_bounded]
