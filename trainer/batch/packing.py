"""Rows become micro-batches. No attention crosses a row.

Rows of like length share a micro-batch, padded on the right. Under causal attention a token never sees what
follows it, so right padding needs no mask, leaks nothing between rows, and leaves the kernels' causal fast path.
Packing many rows into one long one was measured against this on a CPU and lost: attention there costs the square
of the packed length (docs/training.md has the figures). What rows begin with alike can be computed once: by the
packing `tree` a micro-batch's tokens are those of its rows' tree (prefix_tree.py), and all else is as it would be.

Tensor suffixes: B rows of the micro-batch, L its longest row, K kept positions, T tokens of a row, N trained tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tracegrad.schemas.records.tokens import Ids

from .prefix_tree import by_prefix, prefix_tree, tree_sizes
from .rows import TrainingRow


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """What one forward pass takes, [B, K], and what the loss takes of its trained tokens, [N], row by row.

    Of rows side by side position k predicts token `keep_K[k] + 1`; a tree is one line, [1, S], with K = N.
    """

    input_ids_BL: Tensor
    keep_K: Tensor
    targets_BK: Tensor
    temperatures_BK: Tensor | None
    """None where all are 1."""
    trained_N: Tensor
    """Where the trained tokens are, as indices of [B * K], so that no device is asked how many there are."""
    sampler_logprobs_N: Tensor
    advantages_N: Tensor
    weights_N: Tensor
    versions_N: Tensor
    units_N: Tensor | None
    """None where each token's ratio is its own."""
    old_logprobs_N: Tensor | None
    """None where nothing reads them."""
    reference_logprobs_N: Tensor | None
    """None where they are not known yet, or nothing reads them."""
    values_N: Tensor | None
    """What the critic expected before each trained token; None without one."""
    targets_N: Tensor | None
    """What it should have been; NaN where it is not asked."""
    sizes_R: Tensor
    """Trained tokens of each row."""
    places: Sequence[int]
    """Of its rows, among those that all micro-batches were made of."""
    depths_BL: Tensor | None = None
    """Positions in a tree, [1, S]; None: rows side by side."""
    sees_BLL: Tensor | None = None
    """Which tokens of a tree see which, [1, 1, S, S]."""

    @property
    def rows_N(self) -> Tensor:
        """Whose row each trained token is in, within this micro-batch."""
        rows_R, num = torch.arange(len(self.sizes_R), device=self.sizes_R.device), len(self.weights_N)
        return rows_R.repeat_interleave(self.sizes_R, output_size=num)

    def to(self, device: torch.device) -> MicroBatch:
        """The same on another device."""
        given: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}
        if device.type == "cuda":
            # From page-locked memory a copy waits for nothing, and nothing waits for it.
            tensors = {name: value.pin_memory().to(device, non_blocking=True) for name, value in tensors.items()}
        else:
            tensors = {name: value.to(device) for name, value in tensors.items()}
        return MicroBatch(**given | tensors)


def micro_batches(rows: Sequence[TrainingRow], *, max_tokens: int, packing: str = "rows") -> Iterator[MicroBatch]:
    """Rows by length, as many in a micro-batch as the bound allows; a row beyond it goes alone. The order is fixed by
    content (length, then the rows' own order), so equal batches add up alike.

    Args:
        packing: "rows", or "tree": rows by their ids, and of each micro-batch the tree.
    """
    if packing == "tree":
        yield from _trees(rows, max_tokens)
        return
    ordered = sorted(range(len(rows)), key=lambda place: -len(rows[place].token_ids_T))
    begin = 0
    while begin < len(ordered):
        longest = len(rows[ordered[begin]].token_ids_T)
        end = begin + max(1, max_tokens // longest)
        places = ordered[begin:end]
        yield _micro_batch([rows[place] for place in places], longest, places)
        begin = end


def _trees(rows: Sequence[TrainingRow], max_tokens: int) -> Iterator[MicroBatch]:
    # What no trained token is predicted from is not looked at.
    asked = [row.token_ids_T[: int(np.flatnonzero(row.loss_mask_T)[-1])] for row in rows]
    ordered = by_prefix(asked)
    parts: list[list[int]] = []
    size = 0
    for place, added in zip(ordered, tree_sizes([asked[place] for place in ordered]), strict=True):
        if not parts or size + added > max_tokens:
            parts.append([])
            size, added = 0, len(asked[place])
        parts[-1].append(place)
        size += added
    # One at a time: who sees whom in a tree of 16,384 tokens takes 268 MB.
    yield from (_tree_of(rows, asked, part) for part in parts)


def _tree_of(rows: Sequence[TrainingRow], asked: Sequence[Ids], places: Sequence[int]) -> MicroBatch:
    own = [rows[place] for place in places]
    batch = _micro_batch(own, max(len(row.token_ids_T) for row in own), places)
    tree = prefix_tree([asked[place] for place in places])
    kept = [own_T[np.flatnonzero(row.loss_mask_T) - 1] for row, own_T in zip(own, tree.places, strict=True)]
    # The head looks at trained tokens alone, which lie in one line.
    trained_N, heat_BK = batch.trained_N, batch.temperatures_BK
    return replace(
        batch,
        input_ids_BL=torch.from_numpy(tree.ids_S)[None],
        depths_BL=torch.from_numpy(tree.depths_S)[None],
        sees_BLL=torch.from_numpy(tree.sees_SS)[None, None],
        keep_K=torch.from_numpy(np.concatenate(kept)),
        targets_BK=batch.targets_BK.flatten()[trained_N][None],
        temperatures_BK=None if heat_BK is None else heat_BK.flatten()[trained_N][None],
        trained_N=torch.arange(len(trained_N)),
    )


def _micro_batch(rows: Sequence[TrainingRow], longest: int, places: Sequence[int]) -> MicroBatch:
    def stack(name: str, fill: float = 0) -> npt.NDArray[Any]:
        arrays = [getattr(row, name) for row in rows]
        padded = np.full((len(rows), longest), fill, dtype=arrays[0].dtype)
        for number, array in enumerate(arrays):
            padded[number, : len(array)] = array
        return padded

    ids, mask = stack("token_ids_T").astype(np.int64), stack("loss_mask_T")
    # Token t is predicted at position t - 1; logits are made only where some row trains the next token.
    targets = np.flatnonzero(mask.any(axis=0))

    def kept(padded: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(padded.take(targets, axis=1))

    def trained(name: str) -> Tensor | None:
        if getattr(rows[0], name) is None:
            return None
        return torch.from_numpy(np.concatenate([getattr(row, name)[row.loss_mask_T] for row in rows]))

    # Each other x_N is the rows' x_T, None where they have none.
    names = [name for name in MicroBatch.__slots__ if name.endswith("_N") and name not in ("weights_N", "trained_N")]
    of_trained: dict[str, Any] = {name: trained(name.removesuffix("N") + "T") for name in names}
    sizes = torch.from_numpy(mask.sum(axis=1))
    weights = torch.tensor([row.token_weight for row in rows], dtype=torch.float64).float()
    temperatures_BK = kept(stack("temperatures_T", 1))
    return MicroBatch(
        input_ids_BL=torch.from_numpy(np.ascontiguousarray(ids[:, : int(targets[-1])])),
        keep_K=torch.from_numpy(targets - 1),
        targets_BK=kept(ids),
        temperatures_BK=temperatures_BK if bool((temperatures_BK != 1.0).any()) else None,
        trained_N=kept(mask).flatten().nonzero()[:, 0],
        weights_N=weights.repeat_interleave(sizes),
        sizes_R=sizes,
        places=places,
        **of_trained,
    )
