"""The critic: a value head on the hidden states of a trunk, which is the policy's, or a model of its own.

In: micro-batches of rows that say what values should have been. Out: V of the state before each trained token, float32;
the losses by which it learns. On the policy's trunk the head alone learns, from hidden states without gradient, so that
no value moves the policy; a model of its own learns with it. The head begins at 0: first advantages are the returns.
Invariant: nothing here is ever published. Failure: ConfigurationError names the key.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import msgspec
import numpy as np
import torch
from torch import Tensor

from tracegrad.schemas.errors import ConfigurationError

from ..algorithm.gae import value_losses
from ..algorithm.recipe import Recipe
from ..batch.packing import MicroBatch
from ..batch.rows import TrainingRow
from ..config import TrainerConfig
from ..optimiser import Optimiser
from .policy import Policy, load_policy

_HEAD_LR, _MODEL_LR = 1e-3, 1e-5
"""A head of zeros has far to go; the other is verl's of a critic."""


class Critic:
    """V and its optimiser; the trunk learns with the head where it is not the policy's."""

    def __init__(self, trunk: Policy, config: TrainerConfig, *, is_own: bool = False) -> None:
        self.trunk = trunk
        """What makes the hidden states."""
        self._is_own = is_own
        self._head = {
            "head.weight": torch.zeros(trunk.width, device=trunk.device, requires_grad=True),
            "head.bias": torch.zeros(1, device=trunk.device, requires_grad=True),
        }
        own = {f"trunk.{name}": master for name, master in trunk.masters.items()} if is_own else {}
        lr = config.critic_lr if config.critic_lr is not None else _MODEL_LR if is_own else _HEAD_LR
        self.optimiser = Optimiser(self._head | own, msgspec.structs.replace(config, lr=lr))
        """Its masters are what learns, by name, float32."""

    def values(self, batch: MicroBatch) -> Tensor:
        """[N] V before each trained token."""
        with torch.set_grad_enabled(torch.is_grad_enabled() and self._is_own):
            hidden_ND = self.trunk.hidden(batch).flatten(0, 1)[batch.trained_N].float()
        return hidden_ND @ self._head["head.weight"] + self._head["head.bias"]

    def losses(self, batches: Iterable[MicroBatch], num_asked: int, clip: float | None) -> Iterator[Tensor]:
        """The mean loss over the `num_asked` values that the batches ask for, a share of it from each.

        Args:
            clip: `value_losses` has it.
        """
        for batch in batches:
            assert batch.values_N is not None and batch.targets_N is not None
            is_asked_N = ~batch.targets_N.isnan()
            values_N, targets_N, old_N = (
                each_N[is_asked_N] for each_N in (self.values(batch), batch.targets_N, batch.values_N)
            )
            yield value_losses(values_N, targets_N, old_N, clip).sum(dtype=torch.float64) / num_asked

    def tensors(self) -> dict[str, Tensor]:
        """All that its next values depend on, but the policy: weights, and `optimiser/*`."""
        moments = {f"optimiser/{name}": tensor for name, tensor in self.optimiser.tensors().items()}
        return self.optimiser.masters | moments

    @torch.no_grad()
    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes `tensors()` back; none of a run that had no critic yet. Raises ConfigurationError when names or shapes
        differ."""
        masters = self.optimiser.masters
        moments = {name.removeprefix("optimiser/"): tensors[name] for name in tensors if name.startswith("optimiser/")}
        got = {name: tensors[name].shape for name in tensors if not name.startswith("optimiser/")}
        if got and got != {name: master.shape for name, master in masters.items()}:
            raise ConfigurationError(
                f"[trainer] critic: expected {len(masters)} tensors of its names and shapes in the checkpoint, got "
                f"{len(got)} that differ: it changed since this run began; use another run"
            )
        for name in got:
            masters[name].copy_(tensors[name])
        self.optimiser.restore(moments)
        self.trunk.refresh()


def num_asked(rows: Sequence[TrainingRow]) -> int:
    """How many values the rows ask for."""
    return sum(int((~np.isnan(row.targets_T)).sum()) for row in rows if row.targets_T is not None)


def load_critic(config: TrainerConfig, recipe: Recipe, policy: Policy) -> Critic | None:
    """What `[trainer] critic` says; None where the recipe asks none. Raises ConfigurationError."""
    if "values" not in recipe.needs:
        if config.critic is not None:
            raise ConfigurationError(
                f"[trainer] critic: expected a recipe that asks it, got baseline = {recipe.baseline!r}: set "
                "[algorithm] baseline = 'critic', or leave critic out"
            )
        return None
    if config.critic is None:
        return Critic(policy, config)
    try:
        trunk = load_policy(config, config.critic, policy.device)
    except ConfigurationError as error:
        raise ConfigurationError(f"[trainer] critic: {error}") from error
    if trunk.vocabulary < policy.vocabulary:
        raise ConfigurationError(
            f"[trainer] critic: expected a model of the policy's tokenizer, {policy.vocabulary} ids or more, got "
            f"{trunk.vocabulary} in {config.critic}"
        )
    return Critic(trunk, config, is_own=True)
