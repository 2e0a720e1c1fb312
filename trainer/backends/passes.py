"""What a pass over micro-batches comes to: a gradient and a loss, a number a trained token, a mean a unit.

In: micro-batches, and what is made of one. Out: sums and arrays on the host. Invariant: a gradient's pass waits for the
device once, at its end, and one of scores once a micro-batch. Suffixes: N trained tokens of a micro-batch, T tokens of
a row, U units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from tracegrad.schemas.beat import busy

from ..algorithm.form import log_ratios
from ..algorithm.level import unit_means
from ..algorithm.recipe import Recipe
from ..batch.advantages import Doubles
from ..batch.packing import MicroBatch
from ..batch.rows import TrainingRow
from ..model.policy import Policy


def accumulate(losses: Iterable[Tensor], policy: Policy) -> float:
    """The sum of micro-batches' losses; its gradient is in the masters."""
    told: list[Tensor] = []
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]
        policy.collect_gradients()
        told.append(loss.detach())
    with busy("the end of a pass"):
        values: list[float] = torch.stack(told).tolist() if told else []
    # fsum refuses infinities of both signs; the plain sum says NaN, which the caller reports as non-finite.
    return math.fsum(values) if all(map(math.isfinite, values)) else math.nan


@torch.no_grad()
def copy_to_host(tensors: Mapping[str, Tensor], copies: dict[str, Tensor]) -> dict[str, Tensor]:
    """What they are now, in `copies`: host memory that is taken once, and page-locked where a GPU fills it."""
    for name, tensor in tensors.items():
        if name not in copies:
            copies[name] = torch.empty_like(tensor, device="cpu", pin_memory=tensor.is_cuda)
        copies[name].copy_(tensor, non_blocking=True)
    if any(tensor.is_cuda for tensor in tensors.values()):
        torch.cuda.synchronize()
    return {name: copies[name] for name in tensors}


def scores_of_rows(
    rows: Sequence[TrainingRow], batches: Iterable[MicroBatch], score: Callable[[MicroBatch], Tensor]
) -> list[Doubles]:
    """[T] of each row, what a score says of each trained token; 0 elsewhere."""
    found = [np.zeros(len(row.token_ids_T)) for row in rows]
    for batch in batches:
        for place, part in zip(
            batch.places, torch.split(score(batch).double().cpu(), batch.sizes_R.tolist()), strict=True
        ):
            found[place][rows[place].loss_mask_T] = part.numpy()
    return found


def unit_log_ratios(recipe: Recipe, batches: Iterable[MicroBatch], logprobs: Callable[[MicroBatch], Tensor]) -> Tensor:
    """[U] the mean log ratio of each unit, whose rows may lie in several micro-batches."""
    seen = []
    for batch in batches:
        assert batch.units_N is not None
        own_N = log_ratios(recipe, logprobs(batch), batch.sampler_logprobs_N, batch.old_logprobs_N)
        seen.append((own_N, batch.units_N))
    log_ratios_N, units_N = (torch.cat(parts) for parts in zip(*seen, strict=True))
    return unit_means(log_ratios_N, units_N, int(units_N.max()) + 1)
