"""The literal form gives what other libraries' own functions gave: references/*.json, made by references/make.py."""

from __future__ import annotations

import math

import pytest

from tests.trainer.algorithm.literal import correction, loss, penalty
from tests.trainer.algorithm.literal_advantages import advantages, gae
from tests.trainer.algorithm.reading import FILES, Case, cases, close, rollouts_of, tokens_of


@pytest.mark.parametrize(("case", "batch"), cases("losses"))
def test_loss_and_gradient_are_the_librarys(case: Case, batch: Case) -> None:
    """Value, where the library's form defines one, and gradient of every trained token."""
    value, gradient = loss(tokens_of(batch), case["axes"], rollouts=len(batch["group_R"]))
    assert gradient == close(case, case["gradient_N"])
    if "loss" in case["compare"]:
        assert value == close(case, case["loss"])


@pytest.mark.parametrize(("case", "batch"), cases("losses"))
def test_every_number_of_a_reference_tells(case: Case, batch: Case) -> None:
    """Without it, halved or doubled, the loss is another one: a bound that no token reaches would prove nothing."""
    tokens, axes = tokens_of(batch), case["axes"]
    told = loss(tokens, axes)
    for name in {"beta", "cap", "correction", "correction_high", "delta", "dual", "entropy", "high", "low"} & set(axes):
        if axes[name] is None or (axes["anchor"] == "self" and name in ("high", "low")):
            continue
        others = (None,) if name == "correction" else (axes[name] / 2, axes[name] * 2)
        assert any(loss(tokens, {**axes, name: other}) != told for other in others), name


@pytest.mark.parametrize(("case", "batch"), cases("kls"))
def test_penalties_are_the_librarys(case: Case, batch: Case) -> None:
    """Estimator and slope."""
    tokens = tokens_of(batch)
    axes = {"anchor": "self", **case["axes"]}
    found = [penalty(token, axes) for token in tokens]
    if case["name"] == "openrlhf_k3_unbiased":  # its slope is weighted by pi / pi_old
        weights = [math.exp(token.logprob - token.old) for token in tokens]
        found = [(value, slope * weight) for (value, slope), weight in zip(found, weights, strict=True)]
    assert [value for value, _ in found] == close(case, case["kl_N"])
    if "gradient_N" in case:
        assert [slope for _, slope in found] == close(case, case["gradient_N"])


@pytest.mark.parametrize(("case", "batch"), cases("corrections"))
def test_corrections_are_the_librarys(case: Case, batch: Case) -> None:
    """Weights of tokens, 0 for what is rejected."""
    tokens = tokens_of(batch)
    assert [correction(tokens, token, case["axes"]) for token in tokens] == close(case, case["corrections_N"])


@pytest.mark.parametrize(("case", "batch"), [one for one in cases("advantages") if "gae" not in str(one.id)])
def test_advantages_are_the_librarys(case: Case, batch: Case) -> None:
    """One a trained token, or one a rollout."""
    found = advantages(rollouts_of(batch), case["axes"])
    if "advantages_R" in case:
        assert [values[0] for values in found] == close(case, case["advantages_R"])
    else:
        assert [value for values in found for value in values] == close(case, case["advantages_N"])


def test_generalised_advantages_are_the_librarys() -> None:
    """By step (OpenRLHF), and over the trained tokens of a rollout, the others skipped (verl), then whitened."""
    (case,) = (one for one in FILES["openrlhf"]["advantages"] if one["name"] == "openrlhf_gae")
    values_RK, rewards_R = case["inputs"]["values_RK"], case["inputs"]["rewards_R"]
    for values, reward, expected in zip(values_RK, rewards_R, case["advantages_RK"], strict=True):
        steps = [0.0] * (len(values) - 1) + [reward]
        assert gae(steps, values, case["axes"]["gamma"], case["axes"]["lam"]) == close(case, expected)
    (case,) = (one for one in FILES["verl"]["advantages"] if one["name"] == "verl_gae_token")
    batch = FILES["verl"]["batches"][case["batch"]]
    found: list[float] = []
    for index, reward in enumerate(batch["rewards_R"]):
        values = [
            value for value, rollout in zip(batch["values_N"], batch["rollout_N"], strict=True) if rollout == index
        ]
        found += gae([0.0] * (len(values) - 1) + [reward], values, case["axes"]["gamma"], case["axes"]["lam"])
    assert [a + v for a, v in zip(found, batch["values_N"], strict=True)] == close(case, case["returns_N"])
    mean = math.fsum(found) / len(found)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in found) / (len(found) - 1))
    assert [(value - mean) / std for value in found] == close(case, case["advantages_N"])
