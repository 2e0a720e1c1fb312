"""Whole batches: named and random recipes, from groups to the gradient, against plain numbers; to 1e-6."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch

from tests.seeds import any_seed
from tests.trainer.algorithm import literal
from tests.trainer.algorithm.drawn_batches import POLICIES, batch_of
from tests.trainer.algorithm.literal_batch import tokens_of_batch
from tests.trainer.algorithm.reference_axes import drawn_axes, recipe_of
from tests.trainer.toy_policy import learn
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.recipes import RECIPES
from tracegrad.trainer.batch.batches import unselected
from tracegrad.trainer.batch.groups import Group

pytestmark = pytest.mark.torch

Axes = dict[str, Any]
PLAIN = {name: getattr(Recipe(), name) for name in Recipe.__struct_fields__}


def assert_literal(groups: list[Group], recipe: Recipe, credit: Axes, form: Axes) -> None:
    """Loss and gradient of every trained token are those of the literal form."""
    tokens, ids = tokens_of_batch(groups, POLICIES, PLAIN | credit)
    rollouts = sum(len(group.summary.members) for group in groups)
    result, policy = learn(groups, recipe)
    assert result.skipped == ("" if tokens else "no_tokens") or not any(token.advantage for token in tokens)
    if result.skipped:
        return
    value, slopes = literal.loss(tokens, form, rollouts=rollouts, groups=len(groups))
    expected = torch.zeros(261, dtype=torch.float64)
    for token, slope, at in zip(tokens, slopes, ids, strict=True):
        # The toy's entropy is (log pi)^2.
        share = literal._share(tokens, token, form, rollouts, len(groups))
        expected[at] = slope - share * form.get("entropy", 0.0) * 2.0 * token.logprob
    torch.testing.assert_close(policy.gradient.double(), expected, atol=1e-6, rtol=2e-5)
    if form["surrogate"] != "dppo_tv":  # rho A here, sg(rho) A log pi there
        assert result.loss == pytest.approx(value, abs=2e-6, rel=1e-5)


def drawn_credit(rng: random.Random) -> Axes:
    """What a turn is worth and with what it is compared; a KL in the reward now and then."""
    credit: Axes = {
        "outcome": rng.choice(["return", "return", "return", "passed"]),
        "bound": rng.choice([0.5, 1.0]),
        "baseline": rng.choice(["none", "mean", "leave_one_out", "length_weighted", "running_mean", "critic"]),
        "over": rng.choice(["peers", "group", "batch", "nearest"]),
        "scale": rng.choice(["none", "std", "batch_std", "whiten"]),
    }
    if credit["baseline"] == "critic":
        scale, gae = rng.choice(["none", "whiten"]), rng.choice(["turn", "token"])
        credit |= {"scale": scale, "gae": gae, "gamma": rng.uniform(0.5, 1), "lam": rng.uniform(0, 1)}
    elif credit["baseline"] != "running_mean" and rng.random() < 0.3:
        credit |= {"final": rng.choice([0.5, 1.0])}
    if rng.random() < 0.3:
        credit |= {"overlong": rng.randint(3, 8), "overlong_buffer": 3}
    if rng.random() < 0.4:
        kl_to = rng.choice(["reference", "sampler"])
        credit |= {"kl_in": rng.choice(["return", "tokens"]), "kl": "k1", "kl_to": kl_to, "beta": 0.1}
    return credit


@any_seed
def test_random_recipes_on_random_batches(seed: int) -> None:
    """A point on every axis, from groups to the gradient."""
    rng = random.Random(seed)
    form, credit = drawn_axes(rng), drawn_credit(rng)
    form["anchor"] = {"none": "self", "decoupled": "decoupled"}.get(form["anchor"], form["anchor"])
    if credit.get("kl"):
        form = {key: value for key, value in form.items() if key not in ("kl", "kl_to", "beta")}
    recipe = msgspec.structs.replace(recipe_of(form), **credit)
    if recipe.level != "row" and recipe.correction not in ("tis_row", "reject_row"):
        # The toy sees no context, so the form of the rows is nothing to it.
        rows = rng.choice(["segments", "transitions", "concatenated"])
        recipe = msgspec.structs.replace(recipe, rows=rows)
    assert_literal(batch_of(seed), recipe, credit, form)


GRPO: Axes = {"baseline": "mean", "scale": "std"}
CRITIC: Axes = {"baseline": "critic", "gae": "turn", "gamma": 1.0, "lam": 1.0, "scale": "whiten"}
CLIP: Axes = {"anchor": "bypass", "surrogate": "clip", "low": 0.2, "high": 0.2, "aggregation": "token_mean"}
K1: Axes = {"kl": "k1", "kl_to": "reference"}
TAUS: Axes = {"surrogate": "sapo", "tau_pos": 1.0, "tau_neg": 1.05}
CISPO: Axes = {"surrogate": "cispo", "low": None, "high": 4.0}
NLL: Axes = {"surrogate": "nll"}
K2_TO_SAMPLER: Axes = {"kl": "k2", "kl_to": "sampler", "beta": 2e-3}
OPSM: Axes = {"correction": "opsm", "delta": 0.5}
ICEPOP: Axes = {"anchor": "self", "correction": "icepop"}
POINTS: dict[str, tuple[Axes, Axes, Axes]] = {
    "rloo_clip": ({"baseline": "leave_one_out"}, CLIP | {"high": 0.28, "dual": 3.0}, {}),
    "rloo_batch": ({"baseline": "leave_one_out", "over": "nearest"}, CLIP | {"high": 0.28, "dual": 3.0}, {}),
    "rloo": (
        {"baseline": "leave_one_out", "kl_in": "return", "beta": 0.05, **K1},
        CLIP | NLL | {"aggregation": "row_sum"},
        {},
    ),
    "loop": (
        {"baseline": "leave_one_out"},
        CLIP | {"low": 1 - 1 / 1.1, "high": 0.1, "aggregation": "rollout_mean"},
        {"passes": 2},
    ),
    "grpo": (GRPO, CLIP | {"aggregation": "rollout_mean", "kl": "k3", "beta": 0.04}, {}),
    "dr_grpo": ({"baseline": "mean"}, CLIP | {"aggregation": "constant", "length": 1024}, {}),
    "dapo": (GRPO, CLIP | {"high": 0.28}, {"selection": "spread", "refill": 10}),
    "gspo": (GRPO, CLIP | {"level": "row", "low": 3e-4, "high": 4e-4, "aggregation": "rollout_mean"}, {}),
    "cispo": (GRPO, CLIP | CISPO, {}),
    "scalerl": (GRPO | {"scale": "batch_std"}, CLIP | CISPO | {"aggregation": "group_mean"}, {"selection": "spread"}),
    "reinforce++": ({"baseline": "none", "scale": "whiten", "kl_in": "tokens", "beta": 0.01, **K1}, CLIP, {}),
    "reinforce++_baseline": (GRPO | {"scale": "whiten"}, CLIP | {"kl": "k2", "beta": 0.01}, {}),
    "opo": ({"baseline": "length_weighted"}, CLIP | NLL, {}),
    "ppo": (
        CRITIC | {"gae": "token", "kl_in": "tokens", "beta": 0.001, **K1},
        CLIP | {"dual": 3.0},
        {"minibatches": 4},
    ),
    "turn_ppo": (CRITIC | {"gamma": 0.99, "lam": 0.9}, CLIP | {"level": "turn"}, {}),
    "mt_grpo": (GRPO | {"final": 1.0}, CLIP | {"kl": "k3", "beta": 0.04}, {}),
    "gigpo": (GRPO | {"final": 1.0}, CLIP | {"aggregation": "rollout_mean", "kl": "k3", "beta": 0.01}, {}),
    "flow_grpo": (
        GRPO | {"over": "group"},
        CLIP | {"high": 0.3, "aggregation": "rollout_mean", "kl": "k3", "beta": 0.001},
        {},
    ),
    "starpo_s": (GRPO, CLIP | {"high": 0.28, "entropy": 0.001}, {"selection": "top_std", "share": 0.25}),
    "epo": (GRPO, CLIP | {"entropy": 0.001}, {}),
    "sapo": (GRPO, CLIP | TAUS | {"aggregation": "rollout_mean"}, {}),
    "dppo": ({"baseline": "mean"}, CLIP | {"surrogate": "dppo_tv", **K2_TO_SAMPLER}, {}),
    "areal": (GRPO | {"scale": "batch_std"}, CLIP | ICEPOP | {"correction_high": 5.0}, {}),
    "tis": (GRPO, CLIP | {"anchor": "self", "correction": "tis_token", "cap": 2.0}, {}),
    "icepop": (
        GRPO,
        CLIP | ICEPOP | {"correction_low": 0.5, "correction_high": 5.0, "aggregation": "rollout_mean"},
        {},
    ),
    "opsm": (GRPO, CLIP | OPSM | {"aggregation": "rollout_mean"}, {}),
    "raft": ({"outcome": "passed", "baseline": "none"}, CLIP | NLL, {}),
    "sft": ({"outcome": "one", "baseline": "none"}, CLIP | NLL, {}),
}
"""What each source says: credit, loss, and what is no formula. KL in the loss is to the reference where it says no
other."""


@pytest.mark.parametrize("name", RECIPES)
def test_named_recipes_are_what_their_sources_say(name: str) -> None:
    """Number by number; on eight batches, so that each bound is met."""
    recipe, (credit, form, rest) = RECIPES[name].recipe, POINTS[name]
    told = {"passes": 1, "minibatches": 1, "selection": "none", "share": 0.25, "refill": 1, "overlong": 0} | rest
    assert {key: getattr(recipe, key) for key in told} == told
    once = msgspec.structs.replace(recipe, passes=1, minibatches=1)
    for seed in range(8):
        groups = batch_of(seed)
        left_out = unselected(groups, once)
        groups = [group for group in groups if group.summary.group_id not in left_out]
        assert_literal(groups, once, credit, form)
