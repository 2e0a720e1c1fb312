"""Values become advantages: what a critic expected at each turn, or at each token, against what came.

In: the rows of a batch that train a token, what each call is worth, and V at each trained token, the value of the state
before it. Out: an advantage a token, and what V should have been. Pure. The steps of a rollout are the turns of each
agent that train a token, in their order, or their trained tokens. A turn's reward is the difference of its worth and
the next one's: exact, since credit's returns are undiscounted sums of what comes from a turn on; what was earned
between (by masked calls, by other agents) and at the end is in it. So rows are one sequence however a rollout was cut
into them. Tensor suffixes: T tokens of a row, K steps of one rollout and agent.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tracegrad.schemas.records.transitions import SegmentRow, Turn

from ..algorithm.gae import generalised
from ..algorithm.recipe import Recipe
from .advantages import Doubles
from .groups import CallKey

__all__ = ["learned_advantages"]

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
