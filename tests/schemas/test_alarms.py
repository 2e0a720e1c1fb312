"""Alarms: each holds on a run that goes its way wrong, and none on runs that learn, stand still or are solved."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest

from tracegrad.schemas.alarms import ALARMS, alarms_of
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.training import Accounting, TrainingStep

RECORDED = json.loads(Path(__file__).with_name("recorded_rewards.json").read_text())
"""The six curves of docs/results/calculator.svg: right ones of the 64 rollouts of each of 80 steps."""


def step(number: int, **figures: Any) -> TrainingStep:
    """A healthy one but for the figures given."""
    known: dict[str, Any] = {
        "reward": 0.5,
        "reward_std": 0.4,
        "entropy": 0.5,
        "grad_norm": 1.0,
        "is_updated": True,
        "num_tokens": 2000,
        "accounting": Accounting(),
    }
    return TrainingStep(
        run=RunHash("7c1f3e9a"),
        policy="policy",
        step=number,
        epoch=1,
        version=number,
        loss=0.0,
        begin_offset=0,
        next_offset=8,
        batch_hash="",
        group_ids=(),
        learning_rate=1e-3,
        num_rollouts=64,
        **(known | figures),
    )


def run_of(seed: int, means: Sequence[float], *, is_recorded: bool = False, air: float = 0.4) -> list[TrainingStep]:
    """Eight groups of eight rollouts a step, tasks of unlike difficulty; the entropy falls as the reward rises.

    Args:
        means: the chance of a right rollout, by step.
        is_recorded: they are the rewards themselves.
        air: what the rule pays beside .1 where all are right; it is learnt with the task.
    """
    rng = random.Random(seed)
    made = []
    for number, mean in enumerate(means):
        chances = [min(1.0, max(0.0, mean + rng.gauss(0.0, 0.3) * 4 * mean * (1 - mean))) for _ in range(8)]
        groups = [[float(rng.random() < chance) for _ in range(8)] for chance in chances]
        made.append(
            step(
                number + 1,
                reward=mean if is_recorded else fmean(map(fmean, groups)),
                reward_std=fmean(map(stdev, groups)),
                entropy=(1.2 - mean) * rng.gauss(1.0, 0.05),
                reward_parts={"air:tool_success": (0.1 + air * mean) * rng.gauss(1.0, 0.1)},
                grad_norm=rng.lognormvariate(0.0, 0.4),
                ess=rng.uniform(0.9, 1.0),
                clip_fraction=rng.uniform(0.0, 0.05),
            )
        )
    return made


def raised(steps: list[TrainingStep]) -> dict[str, int]:
    """Name -> the step at which it holds first."""
    first: dict[str, int] = {}
    for end in range(1, len(steps) + 1):
        for name in alarms_of(steps[:end]):
            first.setdefault(name, end)
    return first


MADE = {
    "stands still": [0.5] * 80,
    "is rarely right": [0.1] * 80,
    "is solved": [min(0.97, number / 40) for number in range(80)],
    "finds nothing": [0.0] * 80,
    "learns slowly": [0.006 * number for number in range(80)],
}


def clean(name: str, seed: int) -> list[TrainingStep]:
    """A run that needs no alarm."""
    if name in MADE:
        return run_of(seed, MADE[name])
    rewards = [right / 64 for right in RECORDED[name]]
    return run_of(seed, rewards, is_recorded=True, air=0.4 if name.startswith("AIR") else 0.0)


@pytest.mark.parametrize("name", [*RECORDED, *MADE])
def test_a_clean_run_gives_no_alarm(name: str) -> None:
    """Eighty steps of each of three seeds."""
    for seed in range(3):
        assert not raised(clean(name, seed))


HEALTHY = run_of(0, [0.5] * 30)


def wrong(**by_number: Callable[[int], Any]) -> list[TrainingStep]:
    """Thirty steps of a run that stands still, and ten on which figures go their way."""
    noise = random.Random(1)
    return HEALTHY + [
        step(31 + number, **{"reward": 0.5 + noise.gauss(0, 0.02)} | {k: f(number) for k, f in by_number.items()})
        for number in range(10)
    ]


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        (wrong(reward_std=lambda n: 0.05, reward=lambda n: 0.45), "echo_trap"),
        (wrong(entropy=lambda n: 0.1 - n / 100, reward=lambda n: 0.45), "entropy_collapse"),
        (wrong(reward=lambda n: 0.01 * (n % 2)), "reward_collapse"),
        (wrong(reward_parts=lambda n: {"air:format": 1.0}, reward=lambda n: 0.45), "rules_alone"),
        (wrong(grad_norm=lambda n: 1640.0 if n == 4 else 2.7), "gradient_spike"),
        (wrong(ess=lambda n: 0.4), "ess_low"),
        (wrong(clip_fraction=lambda n: 0.4), "clip_high"),
        (wrong(num_tokens=lambda n: 0), "nothing_trains"),
    ],
    ids=list(ALARMS),
)
def test_a_run_that_goes_wrong_is_told_within_five_steps(steps: list[TrainingStep], name: str) -> None:
    """And nothing else is."""
    told = raised(steps)
    assert list(told) == [name] and 30 < told[name] <= 35


def test_a_rule_that_pays_more_is_seen_beside_one_that_pays_less() -> None:
    """Their sum stays."""
    steps = wrong(reward_parts=lambda n: {"air:format": 0.3}, reward=lambda n: 0.45)
    assert raised(steps) == {"rules_alone": 35}


def test_a_short_run_is_judged_from_its_fifteenth_step_on() -> None:
    """Ten steps to compare five with."""
    assert raised(HEALTHY[:10] + wrong(reward=lambda n: 0.0)[30:]) == {"reward_collapse": 15}


def test_one_bad_batch_is_no_alarm() -> None:
    """Neither sample size nor clips, and no skipped step, which has no gradient."""
    assert not raised(wrong(ess=lambda n: 0.1 if n == 3 else 1.0, clip_fraction=lambda n: 0.9 if n == 5 else 0.0))
    assert not raised(wrong(is_updated=lambda n: False, ess=lambda n: 0.1, grad_norm=lambda n: 1e6))


def test_a_fall_is_told_where_groups_have_one_member() -> None:
    """They have no spread to measure it by: to less than half of what was, whatever a rule pays."""
    alone = [step(number + 1, reward=0.3 + 0.02 * (number % 3), reward_std=None) for number in range(30)]
    fallen = [step(31 + number, reward=0.1, reward_std=None) for number in range(5)]
    assert raised([*alone, *fallen]) == {"reward_collapse": 35}
    assert not raised([*alone, *(step(31 + number, reward=0.25, reward_std=None) for number in range(5))])
