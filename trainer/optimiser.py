"""AdamW on the policy's float32 masters, and its learning rate.

In: gradients in the masters; where the run stands. Out: moved masters. Invariant: the learning rate is a function of
this optimiser's updates and of the run's, both of which a checkpoint tells, and no state of its own: a resumed run, a
replay and a rollback need nothing else. Failure: none; who calls looks for what is no number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from .config import TrainerConfig

SCHEDULES: Mapping[str, Callable[[float], float]] = {
    "constant": lambda share: 1.0,
    "linear": lambda share: 1.0 - share,
    "cosine": lambda share: 0.5 * (1.0 + math.cos(math.pi * share)),
}
"""Share of the updates after the warm-up that are done -> share of `lr`: torch's LinearLR (1 to 0) and
CosineAnnealingLR, in closed form, for theirs is a state that counts calls."""


class Optimiser:
    """The masters' own; one thread."""

    def __init__(self, masters: Mapping[str, Tensor], config: TrainerConfig) -> None:
        # By name, so that sums over them do not depend on the order in which the model was built.
        self.masters = dict(sorted(masters.items()))
        self._config = config
        self._is_fused = all(master.device.type == "cuda" for master in self.masters.values())
        self.forget()

    def forget(self) -> None:
        """Makes it new (a start, a rollback): no moments, and a warm-up before it. How many updates it made is counted
        here, for AdamW's own counts are on the device, and reading them waits for it."""
        config = self._config
        self._num_updates = 0
        groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
        for master in self.masters.values():
            groups[master.dim() < 2]["params"].append(master)
        self._adamw = torch.optim.AdamW(
            groups,
            lr=config.lr,
            betas=(config.adam_beta1, config.adam_beta2),
            eps=config.adam_eps,
            weight_decay=config.weight_decay,
            fused=self._is_fused or None,
        )

    def learning_rate(self, update: int, num_updates: int) -> float:
        """Of the next update, which is the run's `update`-th, from 0, of `num_updates`.

        lr * min(1, (u + 1) / w) * schedule((update - w) / (num_updates - w)) with w = `warmup_steps` and u the updates
        of this optimiser: a restored one knows its own, a new one warms up again while the schedule goes on.
        """
        config = self._config
        share = max(0, update - config.warmup_steps) / max(1, num_updates - config.warmup_steps)
        warm = min(1.0, (self._num_updates + 1) / max(1, config.warmup_steps))
        return config.lr * warm * SCHEDULES[config.lr_schedule](min(1.0, share))

    def clip(self) -> float:
        """Clips the gradient's norm; returns it as it was before."""
        return float(torch.nn.utils.clip_grad_norm_(self.masters.values(), self._config.clip_norm))

    def step(self, learning_rate: float) -> None:
        """Moves the masters."""
        for group in self._adamw.param_groups:
            group["lr"] = learning_rate
        self._adamw.step()
        self._num_updates += 1

    def drop_gradients(self) -> None:
        """Of all masters."""
        self._adamw.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """`<master>.<moment>`; none before the first update."""
        return {
            f"{name}.{moment}": torch.as_tensor(value)
            for name, master in self.masters.items()
            for moment, value in self._adamw.state.get(master, {}).items()
        }

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Takes `tensors()` back, copied."""
        self.forget()
        for key, tensor in tensors.items():
            name, _, moment = key.rpartition(".")
            master = self.masters[name]
            if moment == "step":
                self._num_updates = max(self._num_updates, int(tensor))
            # The count of updates is on the host, unless it is a kernel that reads it.
            device = torch.device("cpu") if moment == "step" and not self._is_fused else master.device
            self._adamw.state[master][moment] = tensor.to(device, copy=True)
