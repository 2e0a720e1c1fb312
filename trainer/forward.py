"""Forward passes over rows: what a step, and the making of its rows, are told of the policy and its reference.

In: rows. Out: numbers of their trained tokens, by micro-batch or by row. Invariant: nothing here moves a weight; only
`logprobs` and `logprobs_and_entropies` have a gradient. Failure: none of its own. Suffixes: N trained tokens of a
micro-batch, U units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tracegrad.schemas.beat import busy

from .algorithm.form import log_ratios
from .algorithm.level import unit_means
from .algorithm.logprobs import logprobs_and_entropies
from .algorithm.recipe import Recipe
from .algorithm.regulariser import k1
from .batch.advantages import Doubles
from .batch.forms import in_form
from .batch.groups import Group
from .batch.packing import MicroBatch, micro_batches
from .batch.rows import Floats, TrainingRow, training_rows
from .config import TrainerConfig
from .model.critic import Critic
from .model.policy import Policy

__all__ = ["Forward"]


@dataclass(frozen=True, slots=True)
class Forward:
    """Of a policy and, where the recipe asks for them, a reference and a critic."""

    policy: Policy
    config: TrainerConfig
    recipe: Recipe
    reference: Policy | None = None
    critic: Critic | None = None

    def rows(self, groups: Sequence[Group], running: Mapping[str, float]) -> tuple[list[TrainingRow], dict[str, float]]:
        """A batch's rows, in the recipe's form as `training_rows` makes them, with what it needs of the policy before
        its first update: a pass over them for each, if anything.
        """
        recipe = self.recipe
        groups = in_form(groups, recipe.rows, max_row_tokens=self.config.max_row_tokens)
        rows, after = training_rows(groups, recipe, running=running)
        old = self._of_rows(rows, self.logprobs) if "old" in recipe.needs else None
        reference = penalties = None
        if old is not None and recipe.beta > 0 and recipe.kl_in != "loss":
            if "reference" in recipe.needs:
                reference = self._of_rows(rows, self._reference_logprobs)
            others: Sequence[Doubles | Floats] = reference or [row.sampler_logprobs_T for row in rows]
            penalties = [_penalties(recipe, *each) for each in zip(rows, old, others, strict=True)]
        values = self._of_rows(rows, self.critic.values) if self.critic is not None else None
        if penalties is not None or values is not None:
            rows, after = training_rows(groups, recipe, running=running, penalties=penalties, values=values)
        kept = old if recipe.num_updates > 1 else None
        return _with(rows, old_logprobs_T=kept, reference_logprobs_T=reference), after

    def log_weights(self, groups: Sequence[Group]) -> list[list[Doubles]]:
        """Of each group, of each of its rows that trains: [N] log pi - log mu of its trained tokens. A pass over all
        rows, which moves nothing.
        """
        formed = in_form(groups, self.recipe.rows, max_row_tokens=self.config.max_row_tokens)
        by_group = [training_rows([group], self.recipe)[0] for group in formed]
        rows = [row for of_group in by_group for row in of_group]
        told = zip(rows, self._of_rows(rows, self.logprobs), strict=True)
        found = iter([(of_T - row.sampler_logprobs_T)[row.loss_mask_T] for row, of_T in told])
        return [[next(found) for _ in of_group] for of_group in by_group]

    def micro_batches(self, rows: Sequence[TrainingRow]) -> Iterator[MicroBatch]:
        """On the policy's device, each with a beat."""
        device = self.policy.device
        limit = self.config.micro_batch_tokens or (1024 if device.type == "cpu" else 16384)
        for batch in micro_batches(rows, max_tokens=limit):
            # Until the caller asks for the next one.
            with busy("a micro-batch", batch.input_ids_BL.numel()):
                yield batch.to(device)

    def logprobs(self, batch: MicroBatch, policy: Policy | None = None) -> Tensor:
        """[N] of its trained tokens under the present weights, or another policy's."""
        made = (policy or self.policy).logprobs(batch, max_logits=self.config.micro_batch_logits)
        return made[batch.loss_mask_BK]

    def logprobs_and_entropies(self, batch: MicroBatch) -> tuple[Tensor, Tensor | None]:
        """[N] each; without entropies where the recipe needs none."""
        if "entropy" not in self.recipe.needs:
            return self.logprobs(batch), None
        limit = self.config.micro_batch_logits
        made_2BK = self.policy.logprobs(batch, max_logits=limit, score=logprobs_and_entropies)
        logprobs_N, entropies_N = made_2BK[:, batch.loss_mask_BK]
        return logprobs_N, entropies_N

    def reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        """[N] of its trained tokens under what the recipe's KL is taken to; None where that is the sampler."""
        if batch.reference_logprobs_N is not None or "reference" not in self.recipe.needs:
            return batch.reference_logprobs_N
        return self._reference_logprobs(batch)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor:
        assert self.reference is not None
        return self.logprobs(batch, self.reference)

    @torch.no_grad()
    def _of_rows(self, rows: Sequence[TrainingRow], score: Callable[[MicroBatch], Tensor]) -> list[Doubles]:
        """[T] of each row, what a score says of each trained token; 0 elsewhere: a pass of its own."""
        found = [np.zeros(len(row.token_ids_T)) for row in rows]
        for batch in self.micro_batches(rows):
            sizes = batch.loss_mask_BK.sum(dim=1).tolist()
            for place, part in zip(batch.places, torch.split(score(batch).double(), sizes), strict=True):
                found[place][rows[place].loss_mask_T] = part.cpu().numpy()
        return found

    @torch.no_grad()
    def unit_means(self, rows: Sequence[TrainingRow]) -> Tensor | None:
        """[U] the mean log ratio of each rollout, by a pass of its own: a rollout's rows may lie in several
        micro-batches. None where no ratio is of a rollout.
        """
        if "unit_means" not in self.recipe.needs:
            return None
        seen = []
        for batch in self.micro_batches(rows):
            assert batch.units_N is not None
            logprobs_N = self.logprobs(batch)
            own_N = log_ratios(self.recipe, logprobs_N, batch.sampler_logprobs_N, batch.old_logprobs_N)
            seen.append((own_N, batch.units_N))
        log_ratios_N, units_N = (torch.cat(parts) for parts in zip(*seen, strict=True))
        return unit_means(log_ratios_N, units_N, int(units_N.max()) + 1)


def _penalties(recipe: Recipe, row: TrainingRow, old_T: Doubles, other_T: Doubles | Floats) -> Doubles:
    """[T] what the recipe's KL takes from the reward at a token."""
    old_logprobs_T, other_logprobs_T = (torch.from_numpy(each_T.astype(np.float32)) for each_T in (old_T, other_T))
    kl_T = k1(old_logprobs_T, other_logprobs_T, old_logprobs_T).double().numpy()
    return np.where(row.loss_mask_T, recipe.beta * kl_T, 0.0)


def _with(rows: list[TrainingRow], **columns: Sequence[Doubles] | None) -> list[TrainingRow]:
    """The rows with more columns, those that are there."""
    for name, column in columns.items():
        changes: list[dict[str, Any]] = [{name: of_T.astype(np.float32)} for of_T in column or ()]
        rows = [replace(row, **change) for row, change in zip(rows, changes, strict=True)] if changes else rows
    return rows
