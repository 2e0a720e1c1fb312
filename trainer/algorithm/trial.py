"""The functions of a user's recipe are tried before the first batch, on numbers made for it.

In: a recipe. Out: nothing. A function that raises, or gives something else than the table of its axis tells, would end
the trainer in the middle of a batch, which a restart takes again. Failure: ConfigurationError with axis and function.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from tracegrad.schemas.errors import ConfigurationError

from .recipe import Recipe

_PEERS: Sequence[tuple[Any, ...]] = (
    (["a", "b", "b"], [1.0, 0.0, 0.5], [3, 5, 5]),
    (["a", "b"], [0.5, 0.5], [0, 0]),
    (["a"], [1.0], [3]),
)
_PLAIN: Mapping[str, Sequence[tuple[Any, ...]]] = {
    "baseline": _PEERS,
    "scale": [(returns_P,) for _, returns_P, _ in _PEERS],
    "aggregation": [([2, 4, 0], ["g0", "g0", "g1"], 10)],
}
"""Of each axis whose functions take and give plain numbers, what they are tried on."""


def try_functions(recipe: Recipe) -> None:
    """Asks each function of the recipe that is the user's own.

    Raises:
        ConfigurationError: one raises, or gives other shapes or types than are asked for, or no finite numbers.
    """
    for axis in (*_PLAIN, "surrogate", "correction"):
        function = getattr(recipe, axis)
        if callable(function):
            trial = _plain if axis in _PLAIN else _tensors
            try:
                problem = trial(recipe, axis, function)
            except Exception as error:  # the user's code, which may raise anything: whatever it is, no start mends it
                problem = f"an answer, got {type(error).__name__}: {error}"
            if problem:
                name = getattr(function, "__qualname__", repr(function))
                raise ConfigurationError(f"{axis}: expected of {name}() {problem}; mend it and start again")


def _plain(recipe: Recipe, axis: str, function: Any) -> str:
    """What is expected and came instead; "" where nothing is wrong."""
    for arguments in _PLAIN[axis]:
        found, num = function(*arguments), 1 if axis == "scale" else len(arguments[0])
        values = [found] if axis == "scale" else list(found)
        if len(values) != num or not all(isinstance(value, Real) and math.isfinite(value) for value in values):
            return f"{num} finite number(s) for {arguments}, got {found!r}"
    return ""


def _tensors(recipe: Recipe, axis: str, function: Any) -> str:
    logprobs_N = torch.tensor([-0.5, -2.0, -3.0, -0.1], requires_grad=True)
    mu_N, advantages_N = torch.tensor([-1.0, -1.0, -3.0, -0.01]), torch.tensor([1.0, -1.0, 0.0, 2.0])
    if axis == "correction":
        rows_N, bounds = torch.tensor([0, 0, 1, 1]), (recipe.correction_low, recipe.correction_high)
        factors_N = function(logprobs_N.detach(), mu_N, advantages_N, rows_N, *bounds)
        return "" if _is_fit(factors_N) else f"a finite factor of each of 4 tokens, got {factors_N!r}"
    found = function((logprobs_N - mu_N).exp(), advantages_N, logprobs_N, recipe.low, recipe.high, recipe.dual)
    terms_N, held_N = found
    (slopes_N,) = torch.autograd.grad(terms_N.sum(), logprobs_N)
    if _is_fit(terms_N) and _is_fit(slopes_N) and _is_fit(held_N) and held_N.dtype == torch.bool:
        return ""
    return f"f of each of 4 tokens, finite as its gradient, and a bool of each, got {found!r}"


def _is_fit(values_N: Any) -> bool:
    return isinstance(values_N, Tensor) and values_N.shape == (4,) and bool(values_N.isfinite().all())
