"""A user's functions are tried before the first batch."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.metrics import Metrics
from tracegrad.trainer.algorithm.aggregation import AGGREGATIONS
from tracegrad.trainer.algorithm.baseline import BASELINES
from tracegrad.trainer.algorithm.correction import CORRECTIONS
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.algorithm.scale import SCALES
from tracegrad.trainer.algorithm.surrogate import SURROGATES
from tracegrad.trainer.algorithm.trial import try_functions
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.run import run

pytestmark = pytest.mark.torch

OURS = {
    "baseline": BASELINES,
    "scale": SCALES,
    "surrogate": SURROGATES,
    "correction": CORRECTIONS,
    "aggregation": AGGREGATIONS,
}


def recipe_with(axis: str, function: Callable[..., Any]) -> Recipe:
    """Of which one axis is the function."""
    given: dict[str, Any] = {axis: function}
    return Recipe(anchor="old", **given)


@pytest.mark.parametrize(
    ("axis", "function"),
    [
        pytest.param(axis, function, id=f"{axis} {name}")
        for axis, table in OURS.items()
        for name, function in table.items()
    ],
)
def test_each_of_our_own_functions_would_do(axis: str, function: Callable[..., Any]) -> None:
    """As a user's."""
    try_functions(recipe_with(axis, function))


@pytest.mark.parametrize(
    ("axis", "function", "message"),
    [
        ("baseline", lambda rollouts, returns, lengths: [0.0], "3 finite number"),
        ("baseline", lambda rollouts, returns, lengths: [float("nan")] * len(returns), "3 finite number"),
        ("baseline", lambda rollouts, returns, lengths: ["0"] * len(returns), "3 finite number"),
        ("baseline", lambda rollouts, returns, lengths: None, "an answer, got TypeError"),
        ("baseline", lambda rollouts, returns: [0.0] * 3, "an answer, got TypeError: .* 2 positional arguments but 3"),
        ("baseline", lambda rollouts, returns, lengths: [max(returns[1:])] * len(returns), "an answer, got ValueError"),
        ("scale", lambda returns: returns, "1 finite number"),
        ("scale", lambda returns: sum(returns) / (len(returns) - 1), "an answer, got ZeroDivisionError"),
        ("aggregation", lambda tokens, groups, length: [1.0 / sum(tokens)], "3 finite number"),
        ("aggregation", lambda tokens, groups, length: [1.0 / n for n in tokens], "an answer, got ZeroDivisionError"),
        ("correction", lambda old, mu, a, rows, low, high: 1.0, "a finite factor of each of 4 tokens, got 1.0"),
        ("correction", lambda old, mu, a, rows, low, high: (mu - old).log(), "a finite factor of each of 4 tokens"),
        ("surrogate", lambda rho, a, logp, low, high, dual: rho * a, "an answer, got ValueError: too many values"),
        ("surrogate", lambda rho, a, logp, low, high, dual: ((rho * a).sum(), rho > 1), "f of each of 4 tokens"),
        ("surrogate", lambda rho, a, logp, low, high, dual: (rho * a, rho), "and a bool of each"),
        ("surrogate", lambda rho, a, logp, low, high, dual: (rho.detach() * a, rho > 1), "an answer, got RuntimeError"),
        (
            "surrogate",
            lambda rho, a, logp, low, high, dual: (0.0 * rho.sub(1).log() * a, rho > 1),
            "finite as its",
        ),
    ],
)
def test_what_would_end_the_first_batch_is_refused(axis: str, function: Callable[..., Any], message: str) -> None:
    """With the axis and the function's name."""
    with pytest.raises(ConfigurationError, match=f"^{axis}: expected of .*lambda.*{message}"):
        try_functions(recipe_with(axis, function))


def test_the_names_of_axes_are_not_tried() -> None:
    """They have tests."""
    try_functions(Recipe())
    assert torch.is_grad_enabled()


def test_the_trainer_does_not_start_with_it(tmp_path: Path) -> None:
    """Before the model is loaded: with the section, the axis and the function."""
    (tmp_path / "mine.py").write_text(
        "from tracegrad.trainer.algorithm.recipe import Recipe\n"
        "def half(returns_P):\n    return 1 / (len(returns_P) - 1)\n\nmine = Recipe(scale=half)\n"
    )
    handles = TrainerHandles(
        run_hash=RunHash("7c1f3e9a"), policy="policy", model="/nowhere", work_dir=str(tmp_path), seed=0
    )
    with pytest.raises(ConfigurationError, match=r"^\[algorithm\] scale: expected of half\(\) an answer, got ZeroDiv"):
        run(
            TrainerConfig(),
            AlgorithmConfig(recipe=f"{tmp_path}/mine.py:mine"),
            AlarmsConfig(),
            handles,
            topics=cast(Any, None),
            log=cast(Any, None),
            stop=threading.Event(),
            metrics=Metrics(),
        )
