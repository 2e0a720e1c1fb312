"""Random batches for the libraries, padded as they want them, and flat as the references tell them.

In: a seed and a shape. Out: `Batch`: float64 tensors [R, T] whose trained positions have gaps (a rollout's turns), with
junk at the others, and the flat record of the trained tokens alone. Values are decimals of six places, so that a reader
in float32 or float64 has the same ones. Invariant: nothing outside the mask reaches a result; `gradient` checks it.
Tensor suffixes: R rollouts, T positions, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


def digits(values: Tensor | list[float]) -> list[float]:
    """Ten significant digits: enough for 1e-9, half the bytes."""
    return [float(f"{value:.10g}") for value in torch.as_tensor(values).double().tolist()]


def _drawn(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _rounded(values: Tensor) -> Tensor:
    return (values * 1e6).round() / 1e6


@dataclass(frozen=True)
class Batch:
    """Padded inputs; trained where `mask_RT`."""

    mask_RT: Tensor
    logprobs_RT: Tensor
    old_RT: Tensor
    sampler_RT: Tensor
    reference_RT: Tensor
    entropies_RT: Tensor
    advantages_RT: Tensor
    values_RT: Tensor
    rewards_R: Tensor
    group_R: list[int]

    def flat(self, values_RT: Tensor) -> list[float]:
        """[N] the trained ones, by rows."""
        return digits(values_RT[self.mask_RT.bool()])

    @property
    def record(self) -> dict[str, Any]:
        """What the cases of a file share."""
        rows, positions = self.mask_RT.bool().nonzero(as_tuple=True)
        turns: list[int] = []
        before = (-1, -1)
        for row, position in zip(rows.tolist(), positions.tolist(), strict=True):
            is_next = (row, position - 1) == before
            turns.append(turns[-1] if is_next else (turns[-1] + 1 if turns else 0))
            before = (row, position)
        return {
            "group_R": self.group_R,
            "tokens_R": self.mask_RT.sum(1).int().tolist(),
            "rewards_R": digits(self.rewards_R),
            "rollout_N": rows.tolist(),
            "row_N": rows.tolist(),
            "turn_N": turns,
            "logprobs_N": self.flat(self.logprobs_RT),
            "old_logprobs_N": self.flat(self.old_RT),
            "sampler_logprobs_N": self.flat(self.sampler_RT),
            "reference_logprobs_N": self.flat(self.reference_RT),
            "entropies_N": self.flat(self.entropies_RT),
            "advantages_N": self.flat(self.advantages_RT),
            "values_N": self.flat(self.values_RT),
        }


def _batch(seed: int, *, groups: int, size: int, spread: float, by_token: bool) -> Batch:
    """`spread` is the std of log pi - log pi_old; mu is half as far from pi_old, the reference as far."""
    generator = torch.Generator().manual_seed(seed)
    rollouts, positions = groups * size, 8
    kept = torch.rand(rollouts, positions, generator=generator) < 0.55
    kept[:, 1] = True
    logprobs = _rounded(-0.05 - 1.2 * _drawn(generator, rollouts, positions).abs())
    old = _rounded((logprobs + spread * _drawn(generator, rollouts, positions)).clamp(max=-0.01))
    sampler = _rounded((old + spread / 2 * _drawn(generator, rollouts, positions)).clamp(max=-0.01))
    reference = _rounded((old + spread * _drawn(generator, rollouts, positions)).clamp(max=-0.01))
    advantages = _rounded(_drawn(generator, rollouts, positions if by_token else 1)).expand(-1, positions).clone()
    advantages[0] = 0.0
    rewards = _rounded(_drawn(generator, rollouts))
    rewards[-size:] = 0.25  # a group without spread
    return Batch(
        mask_RT=kept.double(),
        logprobs_RT=logprobs,
        old_RT=old,
        sampler_RT=sampler,
        reference_RT=reference,
        entropies_RT=_rounded(_drawn(generator, rollouts, positions).abs()),
        advantages_RT=advantages,
        values_RT=_rounded(_drawn(generator, rollouts, positions)),
        rewards_R=rewards,
        group_R=[rollout // size for rollout in range(rollouts)],
    )


def batches() -> dict[str, Batch]:
    """`near`: ratios within some thousandths; `far`: beyond the bounds; `tokens`: advantages by token."""
    return {
        "near": _batch(1, groups=4, size=2, spread=0.002, by_token=False),
        "far": _batch(21, groups=2, size=4, spread=0.9, by_token=False),
        "tokens": _batch(3, groups=2, size=3, spread=0.4, by_token=True),
    }


def gradient(batch: Batch, loss_of: Callable[[Tensor], Tensor], dtype: torch.dtype = torch.float64) -> dict[str, Any]:
    """Value of a library's loss and its gradient with respect to the trained tokens' logprobs.

    Raises:
        AssertionError: an untrained position has a gradient.
    """
    logprobs_RT = batch.logprobs_RT.to(dtype).clone().requires_grad_(True)
    loss = loss_of(logprobs_RT)
    loss.backward()  # type: ignore[no-untyped-call]
    found = logprobs_RT.grad
    assert found is not None
    assert not found[~batch.mask_RT.bool()].any()
    return {"loss": digits([float(loss)])[0], "gradient_N": batch.flat(found)}
