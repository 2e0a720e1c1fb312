"""The literal form gives what other libraries' own functions gave: references/*.json, made by references/make.py."""

from __future__ import annotations

import pytest

from tests.trainer.algorithm.literal import loss
from tests.trainer.algorithm.reading import Case, cases, close, tokens_of


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
