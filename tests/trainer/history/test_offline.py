"""Off-policy training and the likelihood of good episodes, on history that lies there."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.history.past import Settings
from tests.trainer.material import group_bytes, segment, summary, turn
from tests.trainer.run_loop import (
    config_of,
    content,
    is_same,
    killed_in,
    log_of,
    steps_of,
    train,
)
from tests.versions import OTHER_RUN, RUN, sampled_by
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.metrics import GROUPS_EXCLUDED, REPLAY_STEP, REPLAY_STEPS
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.records.transitions import decode_group, encode_group
from tracegrad.trainer.batch.groups import Group, filtered
from tracegrad.trainer.history.config import History, ReplayConfig
from tracegrad.trainer.store.publish import Versions

pytestmark = pytest.mark.torch


def history_of(
    values: Sequence[bytes], model: Path, work_dir: Path, *, mode: Any = "offline", **changes: Any
) -> tuple[MemoryLog, Settings]:
    """Of a run that trains on these, batches of two."""
    named = {name: changes.pop(name) for name in ("min_ess", "bound") if name in changes}
    config, algorithm, alarms, handles = config_of(model, work_dir, OTHER_RUN, **{"steps": 9, **changes})
    history = History(mode=mode, run=RUN, end_offset=len(values), config=ReplayConfig(**named))
    return log_of(values), (config, algorithm, alarms, replace(handles, history=history))


def scored(index: int, rewards: Sequence[float | None], *, low: int | None = None) -> bytes:
    """A group of rollouts of one turn of twenty tokens with these final rewards; in the rollout `low` the sampler found
    one token e^-19 times as likely as the model."""
    group = f"{index:024x}"
    rollouts = [f"{group}{member:04x}" for member in range(len(rewards))]
    rows = []
    for member, (rollout, reward) in enumerate(zip(rollouts, rewards, strict=True)):
        row = segment(rollout, [turn(3, 23, returned=reward or 0.0, version=5)], num_tokens=23)
        logprobs = row.logprobs.copy()
        logprobs[9] -= 19.0 if member == low else 0.0
        rows.append(replace(row, logprobs=logprobs))
    told = summary(group, rollouts)
    members = tuple(replace(one, reward=reward) for one, reward in zip(told.members, rewards, strict=True))
    return encode_group(replace(told, members=members), rows)


def test_tokens_of_the_source_train_whatever_their_version(untied: Path, tmp_path: Path) -> None:
    """Its numbers say nothing here: version 40 is neither newer nor stale, and nothing is counted from it."""
    values = [group_bytes(index, version=40 * (index % 2)) for index in range(5)]
    log, settings = history_of(values, untied, tmp_path)
    metrics = train(log, settings)
    steps = steps_of(log)
    assert [len(step.group_ids) for step in steps] == [2, 2, 1], "the last batch is what is left"
    assert [step.version for step in steps] == [1, 2, 3]
    assert {(step.staleness_mean, step.staleness_max, step.num_checked_tokens) for step in steps} == {(0.0, 0, 0)}
    assert (metrics.value(REPLAY_STEP), metrics.value(REPLAY_STEPS)) == (3, 3)


def test_the_end_of_the_history_leads_to_a_version(untied: Path, tmp_path: Path) -> None:
    """Wherever it comes: `steps` would allow more, and nothing that was learnt stays unpublished."""
    log, settings = history_of([group_bytes(index) for index in range(9)], untied, tmp_path, publish=2)
    train(log, settings)
    told = [(step.step, step.version, step.num_unpublished) for step in steps_of(log)]
    assert told == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 3, 0)]


def test_tokens_of_a_third_run_are_excluded(untied: Path, tmp_path: Path) -> None:
    """Only the source's are known to be the history."""
    values = [group_bytes(0), group_bytes(1, version=sampled_by(0, run=RunHash("5eed5eed")))]
    log, settings = history_of(values, untied, tmp_path)
    train(log, settings)
    assert steps_of(log)[0].excluded_ids == {f"{1:024x}": "other_run"}


def test_steps_bound_a_longer_history(untied: Path, tmp_path: Path) -> None:
    """`[trainer] steps` is the user's word."""
    log, settings = history_of([group_bytes(index) for index in range(8)], untied, tmp_path, steps=2)
    metrics = train(log, settings)
    assert [step.step for step in steps_of(log)] == [1, 2]
    assert metrics.value(REPLAY_STEPS) == 2


def test_a_killed_run_goes_on_and_doubles_nothing(untied: Path, tmp_path: Path) -> None:
    """The same command again, and again when all is done: figures and weights of a run that nobody killed."""
    values = [group_bytes(index) for index in range(7)]
    log, settings = history_of(values, untied, tmp_path / "killed")
    with killed_in(Versions, "write", step=2):
        train(log, settings)
    train(log, settings)
    train(log, settings)
    other, undisturbed = history_of(values, untied, tmp_path / "undisturbed")
    train(other, undisturbed)
    assert is_same(content(log), content(other))
    assert [(s.step, s.group_ids, s.loss, s.row_ess) for s in steps_of(log)] == [
        (s.step, s.group_ids, s.loss, s.row_ess) for s in steps_of(other)
    ]


def first_step(log: MemoryLog, settings: Settings) -> TrainingStep:
    """What the first of them says."""
    train(log, settings)
    return steps_of(log)[0]


def test_a_group_of_small_effective_sample_size_is_excluded(untied: Path, tmp_path: Path) -> None:
    """One token of forty carries all of it: 1/40 < .1; its row has 1/20. The other group trains alone."""
    values = [scored(0, [1.0, 0.0], low=0), scored(1, [1.0, 0.0])]
    log, settings = history_of(values, untied, tmp_path)
    metrics = train(log, settings)
    (step,) = steps_of(log)
    assert (step.group_ids, step.excluded_ids) == ((f"{1:024x}",), {f"{0:024x}": "low_ess"})
    assert step.accounting.excluded == {"low_ess": 1}
    assert metrics.value(GROUPS_EXCLUDED, "low_ess") == 1
    assert step.num_tokens == 40
    assert step.row_ess["min"] == pytest.approx(1 / 20, abs=1e-4)
    assert step.row_ess["low"] == 0.5
    assert step.row_ess["p50"] > 0.7


@pytest.mark.parametrize("min_ess", [0.0, 0.02])
def test_the_bound_is_a_key(min_ess: float, untied: Path, tmp_path: Path) -> None:
    """Below 1/40, or at 0, that group trains too."""
    values = [scored(0, [1.0, 0.0], low=0), scored(1, [1.0, 0.0])]
    step = first_step(*history_of(values, untied, tmp_path, min_ess=min_ess))
    assert len(step.group_ids) == 2
    assert step.row_ess["low"] == 0.0


def test_what_all_is_excluded_of_is_consumed_without_a_version(untied: Path, tmp_path: Path) -> None:
    """The run goes on with the next batch."""
    values = [*(scored(index, [1.0, 0.0], low=1) for index in range(2)), *(group_bytes(index) for index in (2, 3))]
    log, settings = history_of(values, untied, tmp_path)
    train(log, settings)
    assert [(step.version, step.skipped) for step in steps_of(log)] == [(0, "no_tokens"), (1, "")]


# filter


def test_filter_trains_the_likelihood_of_good_episodes_alone(untied: Path, tmp_path: Path) -> None:
    """As a log on which only they were ever written, to the bit; a group without one is excluded."""
    values = [scored(0, [1.0, 0.0, 1.0]), scored(1, [0.0, 0.5])]
    log, settings = history_of(values, untied, tmp_path / "all", mode="filter", recipe="sft")
    train(log, settings)
    (step,) = steps_of(log)
    assert step.excluded_ids == {f"{1:024x}": "below_bound"}
    told, _ = decode_group(values[0])
    assert step.below_bound == (told.members[1].episode_id,), "of the group that trained"
    assert step.num_tokens == 40, "the denominator counts what trains"
    assert (step.reward, step.row_ess) == (0.5, {})

    winners, rows = decode_group(values[0])
    members = (winners.members[0], winners.members[2])
    only = encode_group(replace(winners, members=members), [rows[0], rows[2]])
    alone, settings = history_of([only], untied, tmp_path / "alone", mode="filter", recipe="sft")
    train(alone, settings)
    assert is_same(content(log), content(alone))


def test_the_filters_bound_is_a_key(untied: Path, tmp_path: Path) -> None:
    """An episode at the bound is in."""
    values = [scored(0, [1.0, 0.0]), scored(1, [0.0, 0.5])]
    step = first_step(*history_of(values, untied, tmp_path, mode="filter", recipe="sft", bound=0.5))
    assert len(step.group_ids) == 2


@given(rewards=st.lists(st.none() | st.floats(-2, 2), min_size=1, max_size=6), bound=st.floats(-2, 2))
def test_filter_keeps_exactly_what_reaches_the_bound(rewards: list[float | None], bound: float) -> None:
    """Rows and members that count are of the same episodes; rewards stay told of all."""
    told, rows = decode_group(scored(0, [0.0 if reward is None else reward for reward in rewards]))
    members = tuple(
        replace(one, reward=reward, excluded="unscored" if reward is None else "")
        for one, reward in zip(told.members, rewards, strict=True)
    )
    out = {one.rollout_id for one in members if one.excluded}
    kept = filtered(
        Group(replace(told, members=members), tuple(row for row in rows if row.rollout_id not in out)),
        ReplayConfig(bound=bound),
    )
    expected = [
        one.rollout_id for one, reward in zip(members, rewards, strict=True) if reward is not None and reward >= bound
    ]
    assert [row.rollout_id for row in kept.rows] == expected
    assert [one.rollout_id for one in kept.summary.members if not one.excluded] == expected
    assert [one.reward for one in kept.summary.members] == [*rewards]


@pytest.mark.parametrize("recipe", ["rloo_clip", "raft", "grpo"])
def test_filter_refuses_a_recipe_that_compares(recipe: str, untied: Path, tmp_path: Path) -> None:
    """Before anything is loaded or claimed; the message names the recipe to set."""
    log, settings = history_of([group_bytes(0)], untied, tmp_path, mode="filter", recipe=recipe)
    with pytest.raises(ConfigurationError, match='recipe = "sft"'):
        train(log, settings)
    assert steps_of(log) == []
