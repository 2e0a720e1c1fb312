"""The critic beside the policy: it learns what turns are worth, moves no policy, and goes on from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tests.tiny_models import small_model
from tests.trainer.material import groups_of
from tests.trainer.toy_policy import ToyPolicy, critic_of
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.training import StepResult
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.groups import Group
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.learner import STOPPED
from tracegrad.trainer.model.critic import Critic, load_critic
from tracegrad.trainer.model.policy import configure_torch, load_policy

pytestmark = pytest.mark.torch

TURN = Recipe(baseline="critic", lam=0.9)
TOKEN = Recipe(baseline="critic", gae="token", lam=0.9)


def rows_of(learner: SingleLearner, groups: Sequence[Group]) -> list[TrainingRow]:
    """As the loop makes them."""
    return learner.rows(groups, {})[0]


def toy(recipe: Recipe, *, max_tokens: int = 4096, **changes: Any) -> tuple[SingleLearner, ToyPolicy, Critic]:
    """A learner of one number a token id, with a critic of four."""
    policy = ToyPolicy(0)
    critic = critic_of(policy, warmup_steps=0, **changes)
    config = TrainerConfig(lr=0.0, micro_batch_tokens=max_tokens)
    return SingleLearner(cast(Any, policy), config, recipe, critic=critic), policy, critic


def errors_of(rows: Sequence[TrainingRow]) -> float:
    """The mean squared error of the values asked for."""
    errors = [row.values_T - row.targets_T for row in rows if row.values_T is not None and row.targets_T is not None]
    return float(np.nanmean(np.square(np.concatenate(errors))))


def stepped(learner: SingleLearner, num: int = 1) -> list[StepResult]:
    """So many steps on three groups."""
    return [learner.step(rows_of(learner, groups_of(3)), version=0, step=1 + i) for i in range(num)]


def learner_of(model: Path, recipe: Recipe = TURN, **changes: Any) -> SingleLearner:
    """A policy of the tiny model, with the critic that the settings say."""
    config = TrainerConfig(**{"lr": 5e-4, "critic_lr": 1e-2, "warmup_steps": 0, **changes})
    policy = load_policy(config, str(model), configure_torch(config, seed=0))
    return SingleLearner(policy, config, recipe, critic=load_critic(config, recipe, policy))


def copied(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """As a checkpoint holds them."""
    return {name: tensor.detach().clone() for name, tensor in tensors.items()}


@pytest.mark.parametrize("recipe", [TURN, TOKEN], ids=["turn", "token"])
@pytest.mark.parametrize("max_tokens", [1, 64])
def test_micro_batches_change_no_value_and_no_gradient(recipe: Recipe, max_tokens: int) -> None:
    """The loss is a mean over all values asked for: micro-batches add up to it."""
    (whole, _, one), (cut, _, other) = toy(recipe), toy(recipe, max_tokens=max_tokens)
    groups = groups_of(3)
    for rows in (rows_of(whole, groups), rows_of(cut, groups)):
        assert any(row.has_advantage for row in rows)
    for mine, theirs in zip(rows_of(whole, groups), rows_of(cut, groups), strict=True):
        np.testing.assert_allclose(mine.advantages_T, theirs.advantages_T, atol=1e-6)
    stepped(whole)
    stepped(cut)
    # The first moment is a tenth of the gradient.
    for name in ("optimiser/head.weight.exp_avg", "optimiser/head.bias.exp_avg"):
        assert float(one.tensors()[name].abs().max()) > 1e-3
        torch.testing.assert_close(one.tensors()[name], other.tensors()[name], atol=1e-6, rtol=1e-5)


def test_gradient_is_that_of_the_mean_squared_error() -> None:
    """Over the turns' first tokens, by torch on the whole batch at once."""
    learner, policy, critic = toy(TURN)
    rows = rows_of(learner, groups_of(3))
    hidden, targets = [], []
    for row in rows:
        assert row.targets_T is not None
        at = np.flatnonzero(~np.isnan(row.targets_T))
        ids_1K = torch.from_numpy(row.token_ids_T[at].astype(np.int64))
        hidden.append(torch.stack([torch.cos(ids_1K * (d + 1.0)) for d in range(policy.width)], dim=-1))
        targets.append(torch.from_numpy(row.targets_T[at]))
    weight, bias = (
        critic.tensors()[name].detach().clone().requires_grad_(True) for name in ("head.weight", "head.bias")
    )
    loss = (torch.cat(hidden) @ weight + bias - torch.cat(targets)).square().mean() / 2.0
    loss.backward()  # type: ignore[no-untyped-call]
    norm = float(torch.nn.utils.clip_grad_norm_([weight, bias], 1.0))
    assert norm > 0.1
    learner.step(rows, version=0, step=1)
    assert weight.grad is not None
    torch.testing.assert_close(critic.tensors()["optimiser/head.weight.exp_avg"], 0.1 * weight.grad)


def test_values_come_nearer_to_the_returns() -> None:
    """Their mean squared error falls."""
    learner, _, _ = toy(Recipe(baseline="critic", gae="token"), critic_lr=0.05)
    first, *_, last = (errors_of(rows_of(learner, groups_of(3))) for _ in range(60) if stepped(learner))
    assert last < 0.9 * first


def test_policy_moves_as_without_the_critics_loss(untied: Path) -> None:
    """A head on its trunk sends no gradient there: with the same advantages the weights are the same, bit for bit."""
    learner, plain = learner_of(untied), learner_of(untied, critic_lr=0.0)
    rows = rows_of(learner, groups_of(2))
    for one in (learner, plain):
        assert one.step(rows, version=0, step=1).is_updated
    assert not torch.equal(learner.tensors()["critic/head.weight"], plain.tensors()["critic/head.weight"])
    for name, master in learner.policy.masters.items():
        assert torch.equal(master, plain.policy.masters[name])
    assert not [name for name in learner.policy.export() if "critic" in name or name.startswith("head")]


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
@pytest.mark.parametrize("is_own", [False, True], ids=["head", "model"])
def test_restored_critic_goes_on_bit_for_bit(is_own: bool, lora_rank: int | None, untied: Path, tied: Path) -> None:
    """Weights, trunk and moments: the next values and the next step are those that would have been."""
    critic = {"lora_rank": lora_rank} | ({"critic": str(tied)} if is_own else {})
    first, second = (learner_of(untied, TOKEN, **critic) for _ in range(2))
    stepped(first)
    second.restore(copied(first.tensors()))
    ours, theirs = stepped(first)[0], stepped(second)[0]
    assert ours.loss == theirs.loss
    assert first.tensors().keys() == second.tensors().keys()
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in first.tensors().items())
    assert any(name.startswith("critic/trunk.") for name in first.tensors()) == is_own


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_model_of_its_own_learns_as_a_whole(dtype: str, untied: Path, tied: Path) -> None:
    """From its second step on: a head of zeros sends nothing back. Its model holds the masters' rounding."""
    learner = learner_of(untied, TOKEN, critic=str(tied), dtype=dtype)
    before = copied(learner.tensors())
    stepped(learner, 2)
    moved = {name for name, tensor in learner.tensors().items() if name in before and not tensor.equal(before[name])}
    trunk = {name for name in before if name.startswith("critic/trunk.") and "lm_head" not in name}
    assert trunk and trunk <= moved
    assert learner._critic is not None
    model, masters = learner._critic.trunk._parameters, learner._critic.trunk.masters
    assert all(parameter.equal(masters[name].to(parameter.dtype)) for name, parameter in model.items())


def test_step_that_is_broken_off_leaves_the_critic_as_before() -> None:
    """Told to stop while the critic learns."""
    learner, _, critic = toy(TURN, max_tokens=1, critic_lr=0.05)
    rows, before = rows_of(learner, groups_of(1)), copied(critic.tensors())
    answers = iter([False] * (len(rows) + 1))
    learner._is_told_to_stop = lambda: next(answers, True)
    assert learner.step(rows, version=0, step=1).skipped == STOPPED
    assert all(torch.equal(tensor, before[name]) for name, tensor in critic.tensors().items())
    assert all(master.grad is None for master in critic.optimiser.masters.values())


def test_values_that_are_no_number_skip_the_step() -> None:
    """Policy and critic stay."""
    learner, _, critic = toy(TURN, critic_lr=0.05)
    rows = rows_of(learner, groups_of(2))
    critic.restore({"head.weight": torch.full((4,), torch.inf), "head.bias": torch.zeros(1)})
    assert learner.step(rows, version=0, step=1).skipped == "non_finite"
    assert not [name for name in critic.tensors() if name.startswith("optimiser/")]


def test_a_run_that_had_no_critic_begins_one(untied: Path) -> None:
    """And one whose critic is another is refused."""
    learner = learner_of(untied)
    without = {name: tensor for name, tensor in copied(learner.tensors()).items() if not name.startswith("critic/")}
    learner.restore(without)
    assert not learner.tensors()["critic/head.weight"].any()
    with pytest.raises(ConfigurationError, match=r"\[trainer\] critic: expected 2 tensors .* got 1 that differ"):
        learner.restore(without | {"critic/head.bias": torch.zeros(1)})


def test_critic_that_cannot_be_is_refused_by_its_key(untied: Path, tied: Path, tmp_path: Path) -> None:
    """No recipe that asks it; no folder; too few token ids."""
    with pytest.raises(ConfigurationError, match=r"\[trainer\] critic: .*baseline = 'mean'"):
        learner_of(untied, Recipe(), critic=str(tied))
    with pytest.raises(ConfigurationError, match=r"\[trainer\] critic: .*expected a folder"):
        learner_of(untied, critic=str(tmp_path))
    small_model("qwen2", vocab_size=100).save_pretrained(tmp_path / "few")
    with pytest.raises(ConfigurationError, match=r"\[trainer\] critic: .*261 ids or more, got 100"):
        learner_of(untied, critic=str(tmp_path / "few"))
