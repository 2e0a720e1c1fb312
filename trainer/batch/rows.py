"""Groups become rows of numbers: what the loss needs beside each token, advantages and weights included; and the rows
of each update, by passes over the batch and mini-batches within a pass.

In: the groups that train, a recipe, what models say of rows where the recipe asks, and a seed of the order. Out: one
TrainingRow a segment that trains a token, in the order of records and rows. Pure. Invariant: each rollout is in
exactly one mini-batch of a pass, with all its rows, so that the ratio of a unit is of the whole unit; the order depends
on the seed alone, so that a batch which is taken again is dealt alike.

Tensor suffix: T tokens of a row.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tracegrad.schemas.records.tokens import Ids, Logprobs
from tracegrad.schemas.records.transitions import SegmentRow

from ..algorithm.form import token_weights, worth
from ..algorithm.recipe import Need, Recipe
from ..algorithm.regulariser import k1
from .advantages import Doubles, call_advantages, learned_advantages, sums_to_go, token_advantages, weighted_advantages
from .groups import CallKey, Group, token_versions

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class TrainingRow:
    """One segment with all that the loss needs, aligned with its tokens."""

    rollout_id: str
    token_ids_T: Ids
    loss_mask_T: npt.NDArray[np.bool_]
    sampler_logprobs_T: Logprobs
    advantages_T: Floats
    """0 outside the loss mask."""
    temperatures_T: Floats
    versions_T: npt.NDArray[np.int64]
    """-1 outside the loss mask."""
    token_weight: float
    """What one trained token weighs in the loss."""
    units_T: npt.NDArray[np.int64] | None = None
    """The turn, row or rollout that a token's ratio is of, numbered over the batch; None: each has its own."""
    old_logprobs_T: Floats | None = None
    """Under the weights before the batch's first update, 0 outside the mask; None: nothing reads them."""
    reference_logprobs_T: Floats | None = None
    """Under the reference, where a KL to it is in the reward; None: whoever needs them computes them."""
    values_T: Floats | None = None
    """What the critic expected before each token; None without one."""
    targets_T: Floats | None = None
    """What it should have been; NaN where it is not asked."""

    @property
    def has_advantage(self) -> bool:
        """Whether the surrogate has a gradient at it."""
        return bool(np.any(self.advantages_T != 0.0))


def rows_of_batch(
    groups: Sequence[Group],
    recipe: Recipe,
    running: Mapping[str, float],
    ask: Callable[[Need, Sequence[TrainingRow]], list[Doubles]],
) -> tuple[list[TrainingRow], dict[str, float]]:
    """`training_rows`, with what the recipe needs of models before the batch's first update: a pass for each, if any.

    Args:
        ask: [T] of each row: log pi before the first update (`old`), that of the reference, what the critic expects
            (`values`) of each trained token.
    """
    rows, after = training_rows(groups, recipe, running=running)
    old = ask("old", rows) if "old" in recipe.needs else None
    reference = penalties = None
    if old is not None and recipe.beta > 0 and recipe.kl_in != "loss":
        if "reference" in recipe.needs:
            reference = ask("reference", rows)
        others: Sequence[Doubles | Floats] = reference or [row.sampler_logprobs_T for row in rows]
        penalties = [_penalties(recipe, *each) for each in zip(rows, old, others, strict=True)]
    values = ask("values", rows) if "values" in recipe.needs else None
    if penalties is not None or values is not None:
        rows, after = training_rows(groups, recipe, running=running, penalties=penalties, values=values)
    kept = old if recipe.num_updates > 1 else None
    return _with(rows, old_logprobs_T=kept, reference_logprobs_T=reference), after


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


def training_rows(
    groups: Sequence[Group],
    recipe: Recipe,
    *,
    running: Mapping[str, float] | None = None,
    penalties: Sequence[Doubles] | None = None,
    values: Sequence[Doubles] | None = None,
) -> tuple[list[TrainingRow], dict[str, float]]:
    """All rows of a batch that train a token, advantages and weights applied; and the running means after it.

    Args:
        running: the means of returns before this batch, by `peers`.
        penalties: [T] of each of these rows, what is taken from the reward at a token; 0 outside the mask.
        values: [T] of each of these rows, what the recipe's critic expects before a token.
    """
    tokens = rollout_tokens(groups)
    weights = rollout_weights(groups, recipe, tokens)
    rows = [row for group in groups for row in group.rows]
    trained = [row for row in rows if row.loss_mask.any()]
    if recipe.baseline == "critic":
        columns, after = _learned(groups, trained, tokens, recipe, values, penalties), dict(running or {})
    else:
        to_go, taken = (None, {}) if penalties is None else _to_go(rows, penalties)
        taken = taken if recipe.kl_in == "return" else {}
        calls, after = call_advantages(groups, recipe, tokens, running=running, taken=taken)
        columns = [token_advantages(trained, calls, recipe, to_go)]
    names = ("units_T", "advantages_T", "values_T", "targets_T")
    return [
        _training_row(row, weights[row.rollout_id], dict(zip(names, of_row, strict=False)))
        for row, *of_row in zip(trained, _units(trained, recipe.level), *columns, strict=True)
    ], after


def _learned(
    groups: Sequence[Group],
    rows: Sequence[SegmentRow],
    lengths: Mapping[str, int],
    recipe: Recipe,
    values: Sequence[Doubles] | None,
    penalties: Sequence[Doubles] | None,
) -> list[list[Floats]]:
    """[T] of each row: advantages; values and their targets. Without values, of the rows that give them: 0 alone."""
    if values is None:
        return [[np.zeros(len(row.token_ids), np.float32) for row in rows]]
    turns = {call: turn.return_ for group in groups for call, turn in group.turns.items()}
    worths = worth(recipe, [*turns.values()], [lengths[rollout] for rollout, _ in turns])
    found, targets = learned_advantages(rows, dict(zip(turns, worths, strict=True)), values, recipe, penalties)
    asked = [[of_T.astype(np.float32) for of_T in column] for column in (values, targets)]
    return [weighted_advantages(rows, found, recipe), *asked]


def _to_go(rows: Sequence[SegmentRow], penalties: Sequence[Doubles]) -> tuple[list[Doubles], dict[CallKey, float]]:
    """[T] of each row that trains, what is taken from a token on; and what each call's return is less by: the sum from
    its first token on, in the row where it trains. Masked calls are peers, so those of rows that do not train too.
    """
    of_trained = iter(penalties)
    all_ = [next(of_trained) if row.loss_mask.any() else np.zeros(len(row.token_ids)) for row in rows]
    taken: dict[CallKey, float] = {}
    to_go = sums_to_go([row.rollout_id for row in rows], all_)
    for row, less_T in zip(rows, to_go, strict=True):
        for turn in row.turns:
            call = (row.rollout_id, turn.call_id)
            if turn.start < turn.end and (call not in taken or row.loss_mask[turn.start : turn.end].any()):
                taken[call] = float(less_T[turn.start])
    return [less_T for row, less_T in zip(rows, to_go, strict=True) if row.loss_mask.any()], taken


def _units(rows: Sequence[SegmentRow], level: str) -> list[npt.NDArray[np.int64] | None]:
    """[T] of each row, the number of what each token's ratio is of; None where that is the token alone. Trained tokens
    are some turn's."""
    if level == "token":
        return [None] * len(rows)
    numbers: dict[object, int] = {}
    found: list[npt.NDArray[np.int64] | None] = []
    for place, row in enumerate(rows):
        units_T = np.zeros(len(row.token_ids), np.int64)
        for turn in row.turns:
            unit = {"rollout": row.rollout_id, "row": place, "turn": (place, turn.start)}[level]
            units_T[turn.start : turn.end] = numbers.setdefault(unit, len(numbers))
        found.append(units_T)
    return found


def rollout_weights(groups: Iterable[Group], recipe: Recipe, tokens: Mapping[str, int]) -> dict[str, float]:
    """What one trained token of each of these rollouts weighs in the loss; they alone are in its denominators.

    Args:
        tokens: trained tokens of each of them.
    """
    homes = {member.rollout_id: group.summary.group_id for group in groups for member in group.summary.members}
    weights_R = token_weights(recipe, [*tokens.values()], [homes[rollout] for rollout in tokens])
    return dict(zip(tokens, weights_R, strict=True))


def rollout_tokens(groups: Iterable[Group]) -> dict[str, int]:
    """Trained tokens n_r of every rollout that the loss's denominators count.

    Those are the members of trained groups that credit did not exclude (aborted, unscored); one without a trained
    token counts with n_r = 0. Groups that the batch consumed and excluded (stale, malformed, empty) do not count.
    """
    tokens = {member.rollout_id: 0 for group in groups for member in group.summary.members if not member.excluded}
    for group in groups:
        for row in group.rows:
            tokens[row.rollout_id] = row.rollout_tokens
    return tokens


def _training_row(row: SegmentRow, token_weight: float, columns: Mapping[str, Any]) -> TrainingRow:
    num_tokens = len(row.token_ids)
    mask = row.loss_mask.view(np.bool_)  # its bytes were checked to be 0 and 1
    temperatures_T = np.ones(num_tokens, dtype=np.float32)
    versions_T = np.full(num_tokens, -1, dtype=np.int64)
    for turn in row.turns:
        if turn.temperature > 0.0:
            temperatures_T[turn.start : turn.end] = turn.temperature
        for start, end, span in token_versions(turn):
            versions_T[start:end] = span.version
    return TrainingRow(
        rollout_id=row.rollout_id,
        token_ids_T=row.token_ids,
        loss_mask_T=mask,
        sampler_logprobs_T=row.logprobs,
        temperatures_T=temperatures_T,
        versions_T=np.where(mask, versions_T, -1),
        token_weight=token_weight,
        **columns,
    )


def updates(
    rows: Sequence[TrainingRow], groups: Sequence[Group], recipe: Recipe, *, seed: str
) -> list[list[TrainingRow]]:
    """The rows of each update, in turn; by default all of them, once.

    The denominators of a mini-batch count its own rollouts and tokens, as verl has it (`agg_loss`: token-mean over the
    mini-batch's tokens, sequence means over its sequences), so that each update is a step of the same length. Rollouts
    are dealt anew in each pass (as TRL shuffles them; verl by option), the k-th, k + n-th and so on to part k of n.
    """
    if recipe.minibatches == 1:
        return [list(rows)] * recipe.passes
    tokens = rollout_tokens(groups)
    order, dealer = [*tokens], random.Random(seed)
    parts: list[list[TrainingRow]] = []
    for _ in range(recipe.passes):
        dealer.shuffle(order)
        for number in range(recipe.minibatches):
            own = {rollout: tokens[rollout] for rollout in order[number :: recipe.minibatches]}
            weights = rollout_weights(groups, recipe, own)
            parts.append([replace(row, token_weight=weights[row.rollout_id]) for row in rows if row.rollout_id in own])
    return parts
