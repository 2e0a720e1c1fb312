"""Losses and advantages are those of other libraries' functions (references/*.json) and of the literal form."""

from __future__ import annotations

import random

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor

from tests.seeds import any_seed
from tests.trainer.algorithm import literal
from tests.trainer.algorithm.literal import Token
from tests.trainer.algorithm.reading import FILES, Case, cases, close, tokens_of
from tests.trainer.algorithm.reference_axes import NAMES, drawn_axes, recipe_of
from tracegrad.trainer.algorithm.form import Turns, loss, token_weights, turn_advantages
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.scale import whitened
from tracegrad.trainer.algorithm.selection import overlong

pytestmark = pytest.mark.torch


def loss_of(tokens: list[Token], axes: Case, dtype: torch.dtype) -> tuple[float, list[float]]:
    """The trainer's loss of a batch, and its gradient."""
    recipe = recipe_of(axes)
    rollouts = sorted({token.rollout for token in tokens})
    of_rollout = {one: [token for token in tokens if token.rollout == one] for one in rollouts}
    weights = dict(
        zip(
            rollouts,
            token_weights(
                recipe, [len(of_rollout[one]) for one in rollouts], [str(of_rollout[one][0].group) for one in rollouts]
            ),
            strict=True,
        )
    )

    def column(name: str) -> Tensor:
        return torch.tensor([getattr(token, name) for token in tokens], dtype=dtype)

    logprobs_N = column("logprob").requires_grad_(True)
    advantages_N = column("advantage")
    found = loss(
        recipe,
        logprobs_N=logprobs_N,
        sampler_logprobs_N=column("sampler"),
        old_logprobs_N=None if axes["anchor"] == "self" else column("old"),
        reference_logprobs_N=column("reference"),
        entropies_N=column("entropy"),
        advantages_N=torch.full_like(advantages_N, axes["advantages"]) if "advantages" in axes else advantages_N,
        weights_N=torch.tensor([weights[token.rollout] for token in tokens], dtype=dtype),
        rows_N=column("row").long(),
        units_N=None if recipe.level == "token" else column(recipe.level).long(),
    ).loss
    found.backward()  # type: ignore[no-untyped-call]
    assert logprobs_N.grad is not None
    return float(found.detach()), logprobs_N.grad.tolist()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize(("case", "batch"), cases("losses"))
def test_loss_and_gradient_are_the_librarys(case: Case, batch: Case, dtype: torch.dtype) -> None:
    """Value, where the library's form defines one, and gradient of every trained token."""
    value, gradient = loss_of(tokens_of(batch), case["axes"], dtype)
    exactness = {"dtype": "float32"} if dtype == torch.float32 else case
    assert gradient == close(exactness, case["gradient_N"])
    if "loss" in case["compare"]:
        assert value == close(exactness, case["loss"])


@pytest.mark.parametrize(("case", "batch"), cases("advantages"))
def test_advantages_are_the_librarys(case: Case, batch: Case) -> None:
    """One a trained token, or one a rollout; a rollout is one turn."""
    axes = {
        name: NAMES.get(value, value) for name, value in case["axes"].items() if name in ("baseline", "over", "scale")
    }
    rollouts = list(range(len(batch["group_R"])))
    turns = Turns(
        groups_P=[str(group) for group in batch["group_R"]],
        peers_P=["0"] * len(rollouts),
        rollouts_P=[str(rollout) for rollout in rollouts],
        returns_P=batch["rewards_R"],
        lengths_P=batch["tokens_R"],
    )
    found, _ = turn_advantages(Recipe(**axes), turns)
    if "advantages_R" in case:
        assert found == close(case, case["advantages_R"])
        return
    advantages_N = torch.tensor([found[rollout] for rollout in batch["rollout_N"]], dtype=torch.float64)
    advantages_N = whitened(advantages_N) if axes["scale"] == "whiten" else advantages_N
    assert advantages_N.tolist() == close(case, case["advantages_N"])


def test_overlong_penalty_is_the_librarys() -> None:
    """From 12 tokens of 20 on."""
    (case,) = FILES["areal"]["penalties"]
    found = [overlong(length, case["axes"]["length"], case["axes"]["buffer"]) for length in case["tokens_R"]]
    assert found == close(case, case["penalties_R"])


def drawn_tokens(rng: random.Random) -> list[Token]:
    """Rollouts of one or two rows, rows of one to three turns, turns of one to three tokens."""
    tokens: list[Token] = []
    rows = turns = 0
    for rollout in range(rng.randint(2, 6)):
        for _ in range(rng.randint(1, 2)):
            rows += 1
            for _ in range(rng.randint(1, 3)):
                turns += 1
                advantage = rng.choice([0.0, rng.gauss(0, 1), rng.gauss(0, 1)])
                for _ in range(rng.randint(1, 3)):
                    old = -0.02 - abs(rng.gauss(0, 1))
                    near = [min(old + rng.gauss(0, 0.5), -0.01) for _ in range(3)]
                    tokens.append(
                        Token(
                            rollout=rollout,
                            row=rows - 1,
                            turn=turns - 1,
                            group=rollout // 2,
                            logprob=near[0],
                            old=old,
                            sampler=near[1],
                            reference=near[2],
                            entropy=abs(rng.gauss(0, 1)),
                            advantage=advantage,
                        )
                    )
    return tokens


@any_seed
def test_random_recipes_are_the_literal_form(seed: int) -> None:
    """A random point on every axis, on a random batch."""
    rng = random.Random(seed)
    tokens, axes = drawn_tokens(rng), drawn_axes(rng)
    value, gradient = loss_of(tokens, axes, torch.float64)
    expected, slopes = literal.loss(tokens, axes)
    assert gradient == pytest.approx(slopes, rel=1e-6, abs=1e-9), axes
    if axes["surrogate"] != "dppo_tv":  # rho A here, sg(rho) A log pi there
        assert value == pytest.approx(expected, rel=1e-6, abs=1e-9), axes
