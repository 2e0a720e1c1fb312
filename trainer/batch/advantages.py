"""Returns of a batch's calls become the advantage of each trained token, among peers or against what a critic expected.

In: the groups that train, and a recipe. Out: one number a call, then one a token, 0 outside the loss mask. Pure. Turns
with equal `peers` are compared with each other and, by the rule `turn_or_end`, with the final reward of each member
that ended before it had such a turn. Those train nothing; without them a turn that only the successful reach would have
an advantage of 0. Masked calls are peers too: what the policy did there was worth what it was worth, even if their
tokens leave the loss.

With a critic the steps of a rollout are the turns of each agent that train a token, in their order, or their trained
tokens. A turn's reward is the difference of its worth and the next one's: exact, since credit's returns are
undiscounted sums of what comes from a turn on; what was earned between (by masked calls, by other agents) and at the
end is in it. So rows are one sequence however a rollout was cut into them.
Tensor suffixes: T tokens of a row, N trained tokens of the batch, K steps of one rollout and agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, Turn

from ..algorithm.form import Turns, turn_advantages
from ..algorithm.gae import generalised
from ..algorithm.recipe import Recipe
from ..algorithm.scale import whitened
from .groups import CallKey, Group

Doubles = npt.NDArray[np.float64]


def call_advantages(
    groups: Sequence[Group],
    recipe: Recipe,
    lengths: Mapping[str, int],
    *,
    running: Mapping[str, float] | None = None,
    taken: Mapping[CallKey, float] | None = None,
) -> tuple[dict[CallKey, float], dict[str, float]]:
    """The advantage of each call of the batch, before its turn's weight; and the running means after it.

    Args:
        lengths: trained tokens of each rollout.
        running: the means before this batch.
        taken: what a call's return is less by.
    """
    columns: list[tuple[str, str, str, float, int]] = []
    calls: list[CallKey | None] = []
    for group in groups:
        turns = group.turns
        by_peers: defaultdict[str, list[CallKey]] = defaultdict(list)
        for call, turn in turns.items():
            by_peers[turn.peers].append(call)
        for peers, compared in by_peers.items():
            worth = [(call[0], turns[call].return_ - (taken or {}).get(call, 0.0)) for call in compared]
            ended = _ended(group.summary, {call[0] for call in compared}) if recipe.over != "group" else {}
            calls += [*compared, *([None] * len(ended))]
            columns += [
                (group.summary.group_id, peers, rollout, value, lengths[rollout])
                for rollout, value in (*worth, *ended.items())
            ]
    turns_P = Turns(*zip(*columns, strict=True)) if columns else Turns((), (), (), (), ())
    values_P, after = turn_advantages(recipe, turns_P, running or {})
    finals = _finals(groups, recipe, lengths) if recipe.final else {}
    return {
        call: value + recipe.final * finals.get(call[0], 0.0)
        for call, value in zip(calls, values_P, strict=True)
        if call is not None
    }, after


def _finals(groups: Sequence[Group], recipe: Recipe, lengths: Mapping[str, int]) -> dict[str, float]:
    """The advantage of each rollout's final reward, among those of its group."""
    columns = [
        (group.summary.group_id, "", member.rollout_id, member.reward, lengths[member.rollout_id])
        for group in groups
        for member in group.summary.members
        if not member.excluded and member.reward is not None
    ]
    turns_P = Turns(*zip(*columns, strict=True)) if columns else Turns((), (), (), (), ())
    values_P, _ = turn_advantages(msgspec.structs.replace(recipe, over="group"), turns_P)
    return dict(zip(turns_P.rollouts_P, values_P, strict=True))


def _ended(summary: GroupSummary, present: set[str]) -> dict[str, float]:
    """The final rewards of the members that count as peers where they have no turn."""
    if summary.peers != "turn_or_end":
        return {}
    return {
        member.rollout_id: member.reward
        for member in summary.members
        if not member.excluded and member.reward is not None and member.rollout_id not in present
    }


def token_advantages(
    rows: Sequence[SegmentRow], calls: Mapping[CallKey, float], recipe: Recipe, to_go: Sequence[Doubles] | None
) -> list[npt.NDArray[np.float32]]:
    """[T] of each row, times the turn's weight.

    Args:
        rows: those of the batch that train a token.
        calls: the advantage of each of their calls.
        to_go: of each row, what is taken from the rewards from a token on.
    """
    values = [_spread(row, (calls[row.rollout_id, turn.call_id] for turn in row.turns)) for row in rows]
    if to_go is not None and recipe.kl_in == "tokens":
        values = [value - less for value, less in zip(values, to_go, strict=True)]
    return weighted_advantages(rows, values, recipe)


def weighted_advantages(
    rows: Sequence[SegmentRow], values: Sequence[Doubles], recipe: Recipe
) -> list[npt.NDArray[np.float32]]:
    """[T] of each row, from those of its tokens: whitened where the recipe says so, times the turn's weight."""
    if recipe.scale == "whiten" and rows:
        masks = [row.loss_mask.view(np.bool_) for row in rows]
        all_N = torch.from_numpy(np.concatenate([value[mask] for value, mask in zip(values, masks, strict=True)]))
        ends = np.cumsum([mask.sum() for mask in masks])[:-1]
        for value, mask, part in zip(values, masks, np.split(whitened(all_N).numpy(), ends), strict=True):
            value[mask] = part
    weights = (_spread(row, (turn.weight for turn in row.turns)) for row in rows)
    return [
        np.where(row.loss_mask.view(np.bool_), value * weight, 0.0).astype(np.float32)
        for row, value, weight in zip(rows, values, weights, strict=True)
    ]


def _spread(row: SegmentRow, numbers: Iterable[float]) -> Doubles:
    """[T] each turn's number at its tokens, 0 elsewhere."""
    values_T = np.zeros(len(row.token_ids))
    for turn, number in zip(row.turns, numbers, strict=True):
        values_T[turn.start : turn.end] = number
    return values_T


def sums_to_go(rollouts: Sequence[str], values: Sequence[Doubles]) -> list[Doubles]:
    """[T] of each row: the sum of what stands from a token on, in the row and the later ones of its rollout."""
    later: defaultdict[str, float] = defaultdict(float)
    sums: list[Doubles] = []
    for rollout, value_T in zip(reversed(rollouts), reversed(values), strict=True):
        sums.append(value_T[::-1].cumsum()[::-1] + later[rollout])
        later[rollout] += float(value_T.sum())
    return sums[::-1]


Step = tuple[int, Turn, npt.NDArray[np.int64]]
"""A turn: its row's place, itself, and where its trained tokens are."""


def learned_advantages(
    rows: Sequence[SegmentRow],
    worth: Mapping[CallKey, float],
    values: Sequence[Doubles],
    recipe: Recipe,
    penalties: Sequence[Doubles] | None = None,
) -> tuple[list[Doubles], list[Doubles]]:
    """[T] advantages of each row, before a turn's weight; and [T] what V should have been, NaN where it is not asked:
    by turn it is asked at a turn's first trained token only.

    Args:
        rows: those of the batch that train a token.
        worth: of each call.
        values: [T] of each row.
        penalties: [T] of each row, what is taken from the reward at a token.
    """
    advantages = [np.zeros(len(value_T)) for value_T in values]
    targets = [np.full(len(value_T), np.nan) for value_T in values]
    by_turn = recipe.gae == "turn"
    for turns in _sequences(rows):
        worths = [worth[rows[place].rollout_id, turn.call_id] for place, turn, _ in turns]
        asked = [at_k[:1] if by_turn else at_k for _, _, at_k in turns]
        rewards = [np.zeros(len(at_k)) for at_k in asked]
        for reward_k, now, then, (place, _, at_k) in zip(rewards, worths, [*worths[1:], 0.0], turns, strict=True):
            reward_k[-1] = now - then
            if penalties is not None:
                reward_k -= penalties[place][at_k].sum() if by_turn else penalties[place][at_k]
        values_K = np.concatenate([values[place][at_k] for (place, _, _), at_k in zip(turns, asked, strict=True)])
        found_K = np.array(
            generalised(np.concatenate(rewards).tolist(), values_K.tolist(), recipe.gamma, recipe.lam), np.float64
        )
        ends = np.cumsum([len(at_k) for at_k in asked])[:-1]
        parts = zip(turns, asked, np.split(found_K, ends), np.split(found_K + values_K, ends), strict=True)
        for (place, _, at_k), asked_k, found_k, target_k in parts:
            advantages[place][at_k] = found_k
            targets[place][asked_k] = target_k
    return advantages, targets


def _sequences(rows: Sequence[SegmentRow]) -> list[list[Step]]:
    """The turns that train a token, by rollout and agent, in order. Calls that no span names are of the only agent that
    is named in the rollout, as `peers` has it.
    """
    agents: defaultdict[str, set[str | None]] = defaultdict(set)
    for row in rows:
        agents[row.rollout_id].update(turn.agent for turn in row.turns if turn.agent)
    found: defaultdict[tuple[str, str | None], list[Step]] = defaultdict(list)
    for place, row in enumerate(rows):
        for turn in row.turns:
            at_k = turn.start + np.flatnonzero(row.loss_mask[turn.start : turn.end])
            if len(at_k):
                agent = turn.agent if len(agents[row.rollout_id]) > 1 else None
                found[row.rollout_id, agent].append((place, turn, at_k))
    return [sorted(turns, key=lambda step: step[1].turn) for turns in found.values()]
