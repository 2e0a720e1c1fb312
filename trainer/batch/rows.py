"""Groups become rows of numbers: what the loss needs beside each token, advantages and weights included.

In: the groups that train, and a recipe. Out: one TrainingRow a segment that trains a token, in the order of records
and rows. Pure. Masked calls are peers too: what the policy did there was worth what it was worth, even if their tokens
leave the loss.

Tensor suffix: T tokens of a row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tracegrad.schemas.records.tokens import Ids, Logprobs
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow

from ..algorithm.form import token_weights, turn_advantages
from ..algorithm.recipe import Recipe
from .groups import CallKey, Group, token_versions

__all__ = ["TrainingRow", "group_advantages", "rollout_tokens", "training_rows"]

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

    @property
    def has_gradient(self) -> bool:
        """Whether computing it can change the weights."""
        return bool(np.any(self.advantages_T != 0.0))


def training_rows(groups: Sequence[Group], recipe: Recipe) -> list[TrainingRow]:
    """All rows of a batch that train a token, advantages and weights applied."""
    tokens = rollout_tokens(groups)
    weights = dict(zip(tokens, token_weights(recipe, [*tokens.values()]), strict=True))
    units = _Units(recipe.units, [*tokens])
    rows: list[TrainingRow] = []
    for group in groups:
        advantages = group_advantages(group, recipe)
        for row in group.rows:
            if row.loss_mask.any():
                rows.append(_training_row(row, advantages, weights[row.rollout_id], units.of(row)))
    return rows


class _Units:
    """Numbers for what the ratio is of, over the whole batch."""

    def __init__(self, level: str | None, rollouts: Sequence[str]) -> None:
        self._level = level
        self._rollouts = {rollout: number for number, rollout in enumerate(rollouts)}
        self._next = 0

    def of(self, row: SegmentRow) -> npt.NDArray[np.int64] | None:
        """[T] each token's unit; the prompt's, which train nothing, are some turn's too."""
        if self._level is None:
            return None
        if self._level == "rollout":
            return np.full(len(row.token_ids), self._rollouts[row.rollout_id])
        units_T = np.full(len(row.token_ids), self._next)
        for number, turn in enumerate(row.turns if self._level == "turn" else ()):
            units_T[turn.start : turn.end] = self._next + number
        self._next += max(1, len(row.turns))
        return units_T


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


def group_advantages(group: Group, recipe: Recipe) -> dict[CallKey, float]:
    """The advantage of each call of a group, times its turn's weight.

    Turns with equal `peers` are compared with each other and, by the rule `turn_or_end`, with the final reward of each
    member that ended before it had such a turn. Those train nothing; without them a turn that only the successful
    reach would have an advantage of 0.
    """
    turns = group.turns
    calls_by_peers: defaultdict[str, list[CallKey]] = defaultdict(list)
    for call, turn in turns.items():
        calls_by_peers[turn.peers].append(call)
    advantages: dict[CallKey, float] = {}
    for calls in calls_by_peers.values():
        returns = [turns[call].return_ for call in calls]
        ended = _ended(group.summary, {rollout for rollout, _ in calls})
        values = turn_advantages(recipe, [*(rollout for rollout, _ in calls), *ended], [*returns, *ended.values()])
        for call, value in zip(calls, values, strict=False):  # those of `ended` come last
            advantages[call] = value * turns[call].weight
    return advantages


def _ended(summary: GroupSummary, present: set[str]) -> dict[str, float]:
    """The final rewards of the members that count as peers where they have no turn."""
    if summary.peers != "turn_or_end":
        return {}
    return {
        member.rollout_id: member.reward
        for member in summary.members
        if not member.excluded and member.reward is not None and member.rollout_id not in present
    }


def _training_row(
    row: SegmentRow,
    advantages: Mapping[CallKey, float],
    token_weight: float,
    units_T: npt.NDArray[np.int64] | None,
) -> TrainingRow:
    num_tokens = len(row.token_ids)
    mask = row.loss_mask.view(np.bool_)  # its bytes were checked to be 0 and 1
    advantages_T = np.zeros(num_tokens, dtype=np.float32)
    temperatures_T = np.ones(num_tokens, dtype=np.float32)
    versions_T = np.full(num_tokens, -1, dtype=np.int64)
    for turn in row.turns:
        advantages_T[turn.start : turn.end] = advantages[row.rollout_id, turn.call_id]
        if turn.temperature > 0.0:
            temperatures_T[turn.start : turn.end] = turn.temperature
        for start, end, span in token_versions(turn):
            versions_T[start:end] = span.version
    return TrainingRow(
        rollout_id=row.rollout_id,
        token_ids_T=row.token_ids,
        loss_mask_T=mask,
        sampler_logprobs_T=row.logprobs,
        advantages_T=np.where(mask, advantages_T, np.float32(0.0)),
        temperatures_T=temperatures_T,
        versions_T=np.where(mask, versions_T, -1),
        token_weight=token_weight,
        units_T=units_T,
    )
