"""What is told of advantages is what the loss was given: call by call, in each form of rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.material import group_bytes, group_in
from tests.trainer.run_loop import TOPICS, config_of, steps_of, stopped_after, train
from tracegrad.schemas.records.training import ADVANTAGES, GroupAdvantages
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.algorithm.recipe import Rows
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.batch.advantages import call_advantages
from tracegrad.trainer.batch.groups import Group, in_form
from tracegrad.trainer.batch.rows import rollout_tokens, training_rows
from tracegrad.trainer.describe import describe_advantages

pytestmark = pytest.mark.torch

RECIPE = RECIPES[DEFAULT].recipe


def some_groups() -> list[Group]:
    """Of different spread; the last has none."""
    return [group_in(group_bytes(index, spread=spread)) for index, spread in enumerate((1.0, 0.25, 0.0))]


@pytest.mark.parametrize("form", ["segments", "transitions", "concatenated"])
def test_each_call_is_told_as_its_tokens_were_given(form: Rows) -> None:
    """By hand: the call's own advantage times its turn's weight, whichever row it lies in."""
    groups = some_groups()
    formed = in_form(groups, form, max_row_tokens=10_000)
    rows, _ = training_rows(formed, RECIPE)
    told = dict(describe_advantages(formed, rows))
    expected = call_advantages(groups, RECIPE, rollout_tokens(groups))[0]
    assert [*told] == [group.summary.group_id for group in groups]
    for group in groups:
        of_calls = {call.call_id: call for call in told[group.summary.group_id]}
        trained = {
            turn.call_id: (row.rollout_id, turn)
            for row in group.rows
            for turn in row.turns
            if row.loss_mask[turn.start : turn.end].any()
        }
        assert of_calls.keys() == trained.keys() and of_calls
        for call_id, (rollout, turn) in trained.items():
            value = float(np.float32(expected[rollout, call_id] * turn.weight))
            assert (of_calls[call_id].low, of_calls[call_id].high) == (value, value)
            assert of_calls[call_id].mean == pytest.approx(value, abs=1e-12)
    tokens = sum(call.num_tokens for calls in told.values() for call in calls)
    assert tokens == sum(int(row.loss_mask.sum()) for group in groups for row in group.rows)


def told_on(log: MemoryLog) -> list[GroupAdvantages]:
    """What lies on the topic."""
    return [ADVANTAGES.decode(one.value) for one in log.records(TOPICS.name(Topic.ADVANTAGES))]


def test_a_step_tells_of_each_group_that_it_trains(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """And of no other; the numbers of tokens are those of the step's record."""
    train(log, config_of(untied, tmp_path))
    told, steps = told_on(log), steps_of(log)
    assert steps
    for step in steps:
        own = [one for one in told if one.step == step.step]
        assert tuple(one.group_id for one in own) == step.group_ids
        assert {one.epoch for one in own} <= {step.epoch}
        assert sum(call.num_tokens for one in own for call in one.calls) == step.num_tokens


def test_a_run_that_is_stopped_and_goes_on_tells_the_same(
    log: MemoryLog, untied: Path, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Bit for bit, whatever epoch tells it."""
    config = config_of(untied, tmp_path)
    with stopped_after(2) as stop:
        train(log, config, stop=stop)
    train(log, config)
    whole = told_on(log)
    assert {one.epoch for one in whole} == {1, 2}
    by_step = {(one.step, one.group_id): one.calls for one in whole}
    assert len(by_step) == len({(step.step, group) for step in steps_of(log) for group in step.group_ids})
