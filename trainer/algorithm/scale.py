"""What advantages are divided by, s. In: returns of P peers, or the advantages of a whole batch. Suffix: N tokens."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

ROUNDING = 1e-9
"""Below this share of the greatest value a difference is rounding: equal returns must give exactly 0, else every group
without spread would cost a forward pass and feed noise to the optimiser."""


def unscaled(returns_P: Sequence[float]) -> float:
    """s = 1: with leave-one-out RLOO's advantage (arXiv:2402.14740), with the mean Dr. GRPO's (arXiv:2503.20783)."""
    return 1.0


def sample_std(values_P: Sequence[float]) -> float:
    """s = std (ddof 1) of the P values: of peers' returns GRPO's (arXiv:2402.03300), of the batch's advantages
    ScaleRL's (arXiv:2510.13786). 0 for one value alone, and for values that are equal but for rounding.
    """
    if len(values_P) < 2:
        return 0.0
    mean = math.fsum(values_P) / len(values_P)
    std = math.sqrt(math.fsum((value - mean) ** 2 for value in values_P) / (len(values_P) - 1))
    return std if std > ROUNDING * max(map(abs, values_P)) else 0.0


def whitened(advantages_N: Tensor) -> Tensor:
    """[N] (A - mean) / std (ddof 0) over the batch's trained tokens, float64; all 0 where they are equal.

    REINFORCE++ (arXiv:2501.03262), as its authors' code has it: long rollouts count more.
    """
    centred_N = advantages_N - advantages_N.mean()
    std = float(centred_N.square().mean().sqrt())
    return centred_N / std if std > ROUNDING * float(advantages_N.abs().max()) else centred_N * 0.0


SCALES: Mapping[str, Callable[[Sequence[float]], float]] = {"none": unscaled, "std": sample_std}
"""[P] returns of peers -> s; asked only where some return differs from its baseline. 0: nothing to tell them apart by.
`batch_std` and `whiten` are of the whole batch: form.py, batch/rows.py."""
