"""Groups become rows of numbers, rows become micro-batches. No attention crosses a row.

Rows of like length share a micro-batch, padded on the right. Under causal attention a token never sees what
follows it, so right padding needs no mask, leaks nothing between rows, and leaves the kernels' causal fast path.
Packing many rows into one long one was measured against this on a CPU and lost: attention there costs the square
of the packed length (docs/training.md has the figures).

Tensor suffixes: B rows of the micro-batch, L its longest row, K kept positions, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tracegrad.schemas.records.transitions import SegmentRow

from ..algorithm.baseline import group_advantages
from ..algorithm.surrogate import Denominator
from .groups import Group, token_versions

__all__ = ["MicroBatch", "TrainingRow", "micro_batches", "training_rows"]

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One segment with all that the loss needs, aligned with its tokens."""

    rollout_id: str
    token_ids_T: Ints
    loss_mask_T: npt.NDArray[np.bool_]
    sampler_logprobs_T: Floats
    advantages_T: Floats
    """0 outside the loss mask."""
    temperatures_T: Floats
    versions_T: Ints
    """-1 outside the loss mask."""
    token_weight: float
    """What one trained token weighs in the loss: 1 / the denominator."""

    @property
    def has_gradient(self) -> bool:
        """Whether computing it can change the weights."""
        return bool(np.any(self.advantages_T != 0.0))


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes. Position k predicts token `keep_K[k] + 1`; all but ids are [B, K]."""

    input_ids_BL: Tensor
    keep_K: Tensor
    targets_BK: Tensor
    loss_mask_BK: Tensor
    sampler_logprobs_BK: Tensor
    advantages_BK: Tensor
    temperatures_BK: Tensor
    token_weights_BK: Tensor
    versions_BK: Tensor

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        return MicroBatch(**{name: getattr(self, name).to(device) for name in self.__slots__})


def training_rows(groups: Iterable[Group], denominator: Denominator, *, scale: bool = False) -> list[TrainingRow]:
    """All rows of a batch, advantages applied, in the order of records and rows."""
    rows: list[TrainingRow] = []
    for group in groups:
        advantages = group_advantages(group.rows, scale=scale)
        for row in group.rows:
            if any(row.loss_mask):
                rows.append(_training_row(row, advantages, denominator))
    return rows


def _training_row(row: SegmentRow, advantages: dict[tuple[str, str], float], denominator: Denominator) -> TrainingRow:
    num_tokens = len(row.token_ids)
    mask = np.asarray(row.loss_mask, dtype=np.bool_)
    advantages_T = np.zeros(num_tokens, dtype=np.float32)
    temperatures_T = np.ones(num_tokens, dtype=np.float32)
    versions_T = np.full(num_tokens, -1, dtype=np.int64)
    for turn in row.turns:
        advantages_T[turn.start : turn.end] = advantages[row.rollout_id, turn.call_id]
        if turn.temperature > 0.0:
            temperatures_T[turn.start : turn.end] = turn.temperature
        for start, end, version in token_versions(turn):
            versions_T[start:end] = version
    return TrainingRow(
        rollout_id=row.rollout_id,
        token_ids_T=np.asarray(row.token_ids, dtype=np.int64),
        loss_mask_T=mask,
        sampler_logprobs_T=np.asarray(row.logprobs, dtype=np.float32),
        advantages_T=np.where(mask, advantages_T, np.float32(0.0)),
        temperatures_T=temperatures_T,
        versions_T=np.where(mask, versions_T, -1),
        token_weight=denominator.token_weight(row.rollout_tokens),
    )


def micro_batches(
    rows: Sequence[TrainingRow], *, max_tokens: int, max_logits: int, vocabulary: int
) -> list[MicroBatch]:
    """Rows by length, as many in a micro-batch as the bounds allow; a row beyond them goes alone.

    The order is fixed by content (length, then the rows' own order), so equal batches add up alike.
    """
    ordered = sorted(rows, key=lambda row: -len(row.token_ids_T))
    batches: list[MicroBatch] = []
    begin = 0
    while begin < len(ordered):
        longest = len(ordered[begin].token_ids_T)
        fits = min(max_tokens // longest, max_logits // (longest * vocabulary))
        end = begin + max(1, fits)
        batches.append(_micro_batch(ordered[begin:end], longest))
        begin = end
    return batches


def _micro_batch(rows: Sequence[TrainingRow], longest: int) -> MicroBatch:
    def stack(name: str, fill: float) -> npt.NDArray[np.generic]:
        arrays = [getattr(row, name) for row in rows]
        padded = np.full((len(rows), longest), fill, dtype=arrays[0].dtype)
        for number, array in enumerate(arrays):
            padded[number, : len(array)] = array
        return padded

    mask = stack("loss_mask_T", 0)
    # Token t is predicted at position t - 1; logits are made only where some row trains the next token.
    targets = np.flatnonzero(mask.any(axis=0))

    def kept(name: str, fill: float = 0) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(stack(name, fill)[:, targets]))

    weights = torch.tensor([[row.token_weight] for row in rows], dtype=torch.float64)
    return MicroBatch(
        input_ids_BL=torch.from_numpy(np.ascontiguousarray(stack("token_ids_T", 0)[:, : int(targets[-1])])),
        keep_K=torch.from_numpy(targets - 1),
        targets_BK=kept("token_ids_T"),
        loss_mask_BK=kept("loss_mask_T"),
        sampler_logprobs_BK=kept("sampler_logprobs_T"),
        advantages_BK=kept("advantages_T"),
        temperatures_BK=kept("temperatures_T", 1),
        token_weights_BK=(weights * kept("loss_mask_T")).float(),
        versions_BK=kept("versions_T", -1),
    )
