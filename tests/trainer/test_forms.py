"""The forms of rows on random groups, and as a model sees them, whose logprobs depend on their contexts."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import pytest

pytest.importorskip("torch")

import torch

from tests.seeds import any_seed
from tests.trainer.algorithm.drawn_batches import batch_of
from tests.trainer.material import (
    group_in,
    groups_of,
    segment,
    summary,
    turn,
)
from tests.trainer.toy_policy import ToyPolicy, learn
from tracegrad.schemas.records.transitions import encode_group
from tracegrad.trainer.algorithm.form import loss
from tracegrad.trainer.algorithm.recipe import Recipe, Rows
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.groups import Group, in_form
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.model.policy import configure_torch, load_policy

pytestmark = pytest.mark.torch

FORMS: tuple[Rows, ...] = ("segments", "transitions", "concatenated")


def sampled(groups: Any) -> Counter[tuple[Any, ...]]:
    """Each trained token: of which call, its place there, its id, its logprob."""
    return Counter(
        (row.rollout_id, turn.call_id, at - turn.start, int(row.token_ids[at]), float(row.logprobs[at]))
        for group in groups
        for row in group.rows
        for turn in row.turns
        for at in range(turn.start, turn.end)
        if row.loss_mask[at]
    )


@pytest.mark.parametrize("form", FORMS)
@any_seed
def test_each_sampled_token_trains_once_in_a_record_that_is_well_formed(form: Rows, seed: int) -> None:
    """Random rollouts of one or two segments, some calls masked; the contract of `transitions` holds of each form."""
    groups = batch_of(seed)
    made = in_form(groups, form, max_row_tokens=9)
    assert sampled(made) == sampled(groups)
    assert set(sampled(groups).values()) == {1}
    for group in made:
        assert group_in(encode_group(group.summary, list(group.rows))).turns.keys() == group.turns.keys()


@pytest.mark.parametrize(("form", "level"), [("transitions", "turn"), ("concatenated", "rollout")])
def test_a_row_is_a_turn_or_a_rollout(form: Rows, level: Any) -> None:
    """What goes by rows goes by the form."""
    groups = batch_of(0)
    (by_row, row_policy), (by_unit, unit_policy) = (
        learn(groups, recipe) for recipe in (Recipe(level="row", rows=form), Recipe(level=level))
    )
    assert by_row.loss == pytest.approx(by_unit.loss, abs=1e-6)
    torch.testing.assert_close(row_policy.gradient, unit_policy.gradient, atol=1e-6, rtol=1e-5)


Seen = tuple[dict[tuple[str, str, int], float], dict[str, torch.Tensor]]


def seen_by_a_model(model: Path, groups: list[Group], form: Rows) -> Seen:
    """Log pi of each trained token by (rollout, call, place), and the gradient of the token mean."""
    config, recipe = TrainerConfig(), Recipe(rows=form)
    policy = load_policy(config, str(model), configure_torch(config, seed=0))
    learner = SingleLearner(policy, config, recipe)
    rows, _ = learner.rows(groups, {})
    formed = in_form(groups, form, max_row_tokens=config.max_row_tokens)
    places = [
        [
            (row.rollout_id, t.call_id, n)
            for t in row.turns
            for n in range(t.end - t.start)
            if row.loss_mask[t.start + n]
        ]
        for group in formed
        for row in group.rows
        if row.loss_mask.any()
    ]
    logprobs: dict[tuple[str, str, int], float] = {}
    for batch in learner.micro_batches(rows):
        logprobs_N = learner.logprobs(batch)
        term = loss(
            recipe,
            logprobs_N=logprobs_N,
            sampler_logprobs_N=batch.sampler_logprobs_N,
            advantages_N=batch.advantages_N,
            weights_N=batch.weights_N,
        )
        term.loss.backward()  # type: ignore[no-untyped-call]
        policy.collect_gradients()
        logprobs |= zip([one for at in batch.places for one in places[at]], logprobs_N.tolist(), strict=True)
    return logprobs, {name: master.grad.clone() for name, master in policy.masters.items() if master.grad is not None}


def assert_alike(one: Seen, other: Seen) -> None:
    """Logprobs to the rounding of other shapes, gradients to 1e-6."""
    assert one[0].keys() == other[0].keys()
    assert [one[0][key] for key in other[0]] == pytest.approx([*other[0].values()], abs=2e-5)
    for name, gradient in one[1].items():
        torch.testing.assert_close(gradient, other[1][name], atol=1e-6, rtol=1e-4, msg=name)
    assert max(float(gradient.abs().max()) for gradient in one[1].values()) > 1e-3


def test_rollouts_that_only_append_are_the_same_in_each_form(untied: Path) -> None:
    """To a model: contexts are equal."""
    groups = groups_of(3)
    segments, transitions, concatenated = (seen_by_a_model(untied, groups, form) for form in FORMS)
    assert_alike(transitions, segments)
    assert_alike(concatenated, segments)


def test_other_contexts_are_other_logprobs_in_concatenated_rows_alone(untied: Path) -> None:
    """Two calls of two prompts: the first stands where it was sampled, the second does not."""
    rollouts = ["r0", "r1"]
    rows = [
        segment(rollout, [turn(4, 8, call=call, returned=float(number), index=index)], number=index, rollout_tokens=8)
        for number, rollout in enumerate(rollouts)
        for index, call in enumerate("ab")
    ]
    groups = [Group(summary("g", rollouts), tuple(rows))]
    segments, transitions, concatenated = (seen_by_a_model(untied, groups, form) for form in FORMS)
    assert_alike(transitions, segments)
    gaps = {key: abs(concatenated[0][key] - value) for key, value in segments[0].items()}
    assert max(gap for (_, call, _), gap in gaps.items() if call == "a") < 2e-5
    assert max(gap for (_, call, _), gap in gaps.items() if call == "b") > 1e-3


def test_the_bound_is_the_trainers() -> None:
    """`[trainer] max_row_tokens`."""
    group = Group(
        summary("g", ["r0"]),
        tuple(segment("r0", [turn(1, 3, call=c)], num_tokens=4, number=n) for n, c in enumerate("abc")),
    )
    learner = SingleLearner(cast(Any, ToyPolicy(0)), TrainerConfig(max_row_tokens=8), Recipe(rows="concatenated"))
    assert [len(row.token_ids_T) for row in learner.rows([group], {})[0]] == [8, 4]
