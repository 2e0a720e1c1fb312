"""A whole batch in plain numbers: groups and a recipe become the loss, slowly, from the words of docs/training.md.

In: groups, log pi and log reference of each token id, and a recipe's axes by name. Out: L, and dL / dlog pi by token
id; the advantage of each trained token. Only what is compared with whom, and what a return is worth, is here; the rest
is literal.py's. pi_old is pi: the first update of a batch.
Failure: KeyError, for a name that no axis has.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tests.trainer.algorithm.literal import Token, gae
from tracegrad.schemas.records.transitions import Turn
from tracegrad.trainer.batch.groups import Group

Axes = Mapping[str, Any]


@dataclass(frozen=True)
class Policies:
    """Log probabilities, and a critic's values, by token id."""

    pi: Sequence[float]
    reference: Sequence[float]
    values: Sequence[float]
    """What the critic expects before a token."""


@dataclass(frozen=True)
class _Place:
    """One trained token."""

    group: int
    row: int
    turn: int
    rollout: str
    token_id: int
    sampler: float
    of: Turn
    at: tuple[int, int]
    """Its row and position."""


@dataclass(frozen=True)
class _Peer:
    """One turn, or the end of a rollout that has no such turn (turn None)."""

    group: int
    rollout: str
    peers: str
    value: float
    turn: Turn | None


def _places(groups: Sequence[Group]) -> list[_Place]:
    """In the order of groups, rows and tokens."""
    rows = [(number, row) for number, group in enumerate(groups) for row in group.rows]
    return [
        _Place(group, at, at * 100 + k, row.rollout_id, int(row.token_ids[t]), float(row.logprobs[t]), turn, (at, t))
        for at, (group, row) in enumerate(rows)
        for k, turn in enumerate(row.turns)
        for t in range(turn.start, turn.end)
        if row.loss_mask[t]
    ]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _std(values: Sequence[float], ddof: int) -> float:
    mean = _mean(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - ddof))


def _cost(place: _Place, policies: Policies, axes: Axes) -> float:
    """beta k1 of a token."""
    other = place.sampler if axes["kl_to"] == "sampler" else policies.reference[place.token_id]
    return float(axes["beta"]) * (policies.pi[place.token_id] - other)


def _to_go(places: Sequence[_Place], rollout: str, at: tuple[int, int], policies: Policies, axes: Axes) -> float:
    """What is taken off from a row's position on, to the end of the rollout."""
    return math.fsum(_cost(one, policies, axes) for one in places if one.rollout == rollout and one.at >= at)


def _worth(value: float, length: int, axes: Axes) -> float:
    if axes["overlong"]:
        limit, buffer = axes["overlong"], axes["overlong_buffer"]
        value -= 0.0 if length <= limit - buffer else 1.0 if length >= limit else (length - limit + buffer) / buffer
    return {"return": value, "one": 1.0, "passed": 1.0 if value >= axes["bound"] else 0.0}[axes["outcome"]]


def _peers(groups: Sequence[Group], places: Sequence[_Place], policies: Policies, axes: Axes) -> list[_Peer]:
    """All that is compared in the batch."""
    lengths = {row.rollout_id: row.rollout_tokens for group in groups for row in group.rows}
    found = []
    rows = 0
    for number, group in enumerate(groups):
        for at, row in enumerate(group.rows, rows):
            for turn in row.turns:
                start = (at, turn.start)
                is_taxed = axes["kl_in"] == "return"
                less = _to_go(places, row.rollout_id, start, policies, axes) if is_taxed else 0.0
                value = _worth(turn.return_ - less, lengths[row.rollout_id], axes)
                found.append(_Peer(number, row.rollout_id, turn.peers, value, turn))
        rows += len(group.rows)
        turns = [(row.rollout_id, turn) for row in group.rows for turn in row.turns]
        for peers in sorted({turn.peers for _, turn in turns}) if axes["over"] != "group" else ():
            present = {rollout for rollout, turn in turns if turn.peers == peers}
            for member in group.summary.members:
                if group.summary.peers == "turn_or_end" and not member.excluded and member.rollout_id not in present:
                    assert member.reward is not None
                    value = _worth(member.reward, lengths.get(member.rollout_id, 0), axes)
                    found.append(_Peer(number, member.rollout_id, peers, value, None))
    return found


def _agent(one: _Peer) -> str:
    """Whose turn it is: what stands before its number, if it has one."""
    return re.sub(r":\d+\Z", "", one.peers)


def _compared(peers: Sequence[_Peer], one: _Peer, over: str) -> list[_Peer]:
    """With whom one is compared, itself among them."""
    if over == "nearest":
        alike = [other for other in peers if other.peers == one.peers]
        of_agent = [other for other in peers if _agent(other) == _agent(one)]
        return next((some for some in (alike, of_agent) if len({other.rollout for other in some}) >= 4), [*peers])
    return [
        other
        for other in peers
        if (over == "batch" or other.group == one.group) and (over == "group" or other.peers == one.peers)
    ]


def _baseline(compared: Sequence[_Peer], one: _Peer, lengths: Mapping[str, int], name: str) -> float:
    rollouts = sorted({other.rollout for other in compared})
    means = {name: _mean([other.value for other in compared if other.rollout == name]) for name in rollouts}
    others = [means[rollout] for rollout in rollouts if rollout != one.rollout]
    total = sum(lengths.get(rollout, 0) for rollout in rollouts)
    if name in ("none", "running_mean"):  # before the first batch it is 0
        return 0.0
    if name == "leave_one_out":
        return _mean(others) if others else one.value
    if name == "length_weighted" and total:
        return math.fsum(lengths.get(rollout, 0) * means[rollout] for rollout in rollouts) / total
    if name in ("mean", "length_weighted"):
        return _mean(list(means.values()))
    raise KeyError(name)


def _advantages(peers: Sequence[_Peer], lengths: Mapping[str, int], axes: Axes) -> dict[int, float]:
    """By the identity of the turn."""
    found = {}
    for number, one in enumerate(peers):
        compared = _compared(peers, one, "batch" if axes["baseline"] == "running_mean" else axes["over"])
        value = one.value - _baseline(compared, one, lengths, axes["baseline"])
        if axes["scale"] == "std":
            spread = _std([other.value for other in compared], 1) if len(compared) > 1 else 0.0
            value = value / spread if spread > 1e-9 else 0.0
        found[number] = 0.0 if abs(value) < 1e-9 else value
    if axes["scale"] == "batch_std" and any(found.values()):
        spread = _std(list(found.values()), 1)
        found = {number: value / spread if spread > 1e-9 else 0.0 for number, value in found.items()}
    return {id(peers[number].turn): value for number, value in found.items()}


def _finals(groups: Sequence[Group], lengths: Mapping[str, int], axes: Axes) -> dict[str, float]:
    """By rollout: the advantage of its final reward among those of its group."""
    ends = [
        _Peer(number, member.rollout_id, "", _worth(member.reward, lengths.get(member.rollout_id, 0), axes), None)
        for number, group in enumerate(groups)
        for member in group.summary.members
        if not member.excluded and member.reward is not None
    ]
    found = {}
    for one in ends:
        alike = [other for other in ends if other.group == one.group]
        value = one.value - _baseline(alike, one, lengths, axes["baseline"])
        if axes["scale"] == "std":
            spread = _std([other.value for other in alike], 1) if len(alike) > 1 else 0.0
            value = value / spread if spread > 1e-9 else 0.0
        found[one.rollout] = 0.0 if abs(value) < 1e-9 else value
    if axes["scale"] == "batch_std" and any(found.values()):
        spread = _std(list(found.values()), 1)
        found = {name: value / spread if spread > 1e-9 else 0.0 for name, value in found.items()}
    return found


def _learned(places: Sequence[_Place], lengths: Mapping[str, int], policies: Policies, axes: Axes) -> list[float]:
    """With a critic: of each place. A turn earns the difference of its worth and the next one's, at its last token."""
    found: dict[tuple[int, int], float] = {}
    for rollout in {place.rollout for place in places}:
        own = sorted((place for place in places if place.rollout == rollout), key=lambda place: place.of.turn)
        turns = [[place for place in own if place.of.turn == number] for number in sorted({p.of.turn for p in own})]
        worths = [_worth(turn[0].of.return_, lengths[rollout], axes) for turn in turns] + [0.0]
        steps = [[place] for place in own] if axes["gae"] == "token" else turns
        rewards = [
            sum(worths[k] - worths[k + 1] for k, turn in enumerate(turns) if turn[-1] in step)
            - (0.0 if axes["kl_in"] == "loss" else sum(_cost(place, policies, axes) for place in step))
            for step in steps
        ]
        made = gae(rewards, [policies.values[step[0].token_id] for step in steps], axes["gamma"], axes["lam"])
        found |= {place.at: value for step, value in zip(steps, made, strict=True) for place in step}
    return [found[place.at] for place in places]


def tokens_of_batch(groups: Sequence[Group], policies: Policies, axes: Axes) -> tuple[list[Token], list[int]]:
    """Trained tokens with their advantages, and the id of each.

    `axes` has a value for outcome, bound, overlong, overlong_buffer, baseline, over, scale, final, beta, kl_to and
    kl_in; for a critic also gae, gamma and lam.
    """
    places = _places(groups)
    lengths = {row.rollout_id: row.rollout_tokens for group in groups for row in group.rows}
    if axes["baseline"] == "critic":
        values = _learned(places, lengths, policies, axes)
    else:
        by_turn = _advantages(_peers(groups, places, policies, axes), lengths, axes)
        finals = _finals(groups, lengths, axes) if axes["final"] else {}
        values = [by_turn[id(place.of)] + axes["final"] * finals.get(place.rollout, 0.0) for place in places]
    if axes["kl_in"] == "tokens" and axes["baseline"] != "critic":
        values = [
            value - _to_go(places, place.rollout, place.at, policies, axes)
            for value, place in zip(values, places, strict=True)
        ]
    if axes["scale"] == "whiten":
        mean, spread = _mean(values), _std(values, 0)
        values = [(value - mean) / spread if spread > 1e-9 else 0.0 for value in values]
    rollouts = sorted(lengths)
    tokens = [
        Token(
            rollout=rollouts.index(place.rollout),
            row=place.row,
            turn=place.turn,
            group=place.group,
            logprob=policies.pi[place.token_id],
            old=policies.pi[place.token_id],
            sampler=place.sampler,
            reference=policies.reference[place.token_id],
            entropy=policies.pi[place.token_id] ** 2,
            advantage=value * place.of.weight,
        )
        for place, value in zip(places, values, strict=True)
    ]
    return tokens, [place.token_id for place in places]
