"""Memory that runs out in a pass: an exception by size stands for a GPU's; the step is that of the smaller size."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from msgspec.structs import replace

from tests.trainer.material import groups_of
from tests.trainer.model.test_critic import TURN
from tests.trainer.model.test_critic import learner_of as learner_with_critic
from tests.trainer.test_step import is_equal, learner_of, row
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.training import StepResult
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.packing import MicroBatch
from tracegrad.trainer.batch.rows import TrainingRow
from tracegrad.trainer.model.layers import layers_of
from tracegrad.trainer.model.policy import Policy

pytestmark = pytest.mark.torch

ROWS = [row((-1.0) ** seed, seed=seed) for seed in range(12)]
SIZES: dict[str, Any] = {"micro_batch_tokens": 48}
"""Four rows of twelve tokens: three micro-batches an update."""


class Memory:
    """Of a policy, from its call-th pass on: it holds so many padded tokens; a pass fails at its end."""

    def __init__(self, policy: Policy, tokens: int, *, call: int = 1, name: str = "logprobs") -> None:
        self.tokens, self._call, self.passes = tokens, call, list[int]()
        self._original: Callable[..., torch.Tensor] = getattr(policy, name)
        setattr(policy, name, self._compute)

    def _compute(self, batch: MicroBatch, **named: Any) -> torch.Tensor:
        self.passes.append(batch.input_ids_BL.numel())
        made = self._original(batch, **named)
        if len(self.passes) >= self._call and self.passes[-1] > self.tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return made


def state_of(learner: SingleLearner) -> dict[str, torch.Tensor]:
    """Apart from the size in force."""
    return {name: one.clone() for name, one in learner.tensors().items() if not name.startswith("micro_batch/")}


def told(result: StepResult) -> StepResult:
    """Apart from how long it took."""
    return replace(result, seconds={})


def longer(num: int) -> TrainingRow:
    """A row of so many tokens, the last five trained."""
    one, mask = row(), np.arange(num) >= num - 5
    arrays: dict[str, Any] = {
        name: np.where(mask, array[-1], array[0]).astype(array.dtype)
        for name in ("token_ids_T", "sampler_logprobs_T", "advantages_T", "temperatures_T", "versions_T")
        if (array := getattr(one, name)) is not None
    }
    return dataclasses.replace(one, loss_mask_T=mask, **arrays)


@pytest.mark.parametrize("call", [1, 2, 3], ids=["first", "middle", "last"])
@pytest.mark.parametrize("changes", [{}, {"dtype": "bfloat16"}, {"lora_rank": 4}], ids=["full", "bfloat16", "lora"])
def test_a_step_that_ran_out_of_memory_is_the_step_of_the_smaller_size(
    call: int, changes: dict[str, Any], untied: Path
) -> None:
    """Whichever micro-batch it was: figures, loss and weights, to the bit; and the step after it."""
    learner, small = learner_of(untied, **SIZES, **changes), learner_of(untied, micro_batch_tokens=24, **changes)
    memory = Memory(learner.policy, 22, call=call)
    for step in (1, 2):
        results = [one.step(ROWS, version=0, step=step) for one in (learner, small)]
        assert told(results[0]) == told(results[1])
        assert is_equal(state_of(learner), state_of(small))
    assert memory.passes[:call] == [44] * call and max(memory.passes[call:]) == 22


@pytest.mark.parametrize("call", [5, 7])
def test_memory_that_runs_out_in_a_later_update_undoes_the_ones_before(call: int, untied: Path) -> None:
    """The first moved the weights, by the larger size (three micro-batches and a look at the new weights)."""
    learner = learner_of(untied, **SIZES)
    Memory(learner.policy, 22, call=call)
    result = learner.step(ROWS, ROWS[:-1], version=0, step=1)
    small = learner_of(untied, micro_batch_tokens=learner._size.tokens)
    assert told(result) == told(small.step(ROWS, ROWS[:-1], version=0, step=1))
    assert is_equal(state_of(learner), state_of(small))


@pytest.mark.parametrize("call", [1, 2])
def test_memory_that_runs_out_in_the_critic_begins_the_step_again(call: int, untied: Path, tied: Path) -> None:
    """A model of its own, whose pass comes after the policy's gradients are there."""
    learner = learner_with_critic(untied, TURN, critic=str(tied), micro_batch_tokens=64)
    rows = learner.rows(groups_of(3), {})[0]
    assert learner._critic is not None
    memory = Memory(learner._critic.trunk, 32, call=call, name="hidden")
    result = learner.step(rows, version=0, step=1)
    assert max(memory.passes) > 32, "it ran out"
    small = learner_with_critic(untied, TURN, critic=str(tied), micro_batch_tokens=learner._size.tokens)
    assert told(result) == told(small.step(rows, version=0, step=1))
    assert is_equal(state_of(learner), state_of(small))


def test_a_pass_without_gradient_begins_again_too(untied: Path) -> None:
    """Old logprobs, a reference's, values."""
    learner, small = learner_of(untied, **SIZES), learner_of(untied, micro_batch_tokens=24)
    Memory(learner.policy, 22, call=2)
    for mine, other in zip(learner.logprobs_of(ROWS), small.logprobs_of(ROWS), strict=True):
        assert np.array_equal(mine, other)


@pytest.mark.parametrize("recompute", ["auto", "none"])
def test_a_row_too_long_for_a_pass_without_gradient_is_told_as_any_other(untied: Path, recompute: str) -> None:
    """To compute layers again would free nothing there, and is not tried."""
    learner = learner_of(untied, recompute=recompute)
    Memory(learner.policy, 2)
    with pytest.raises(ConfigurationError, match=r"max_row_tokens: expected rows that a pass has memory for, got one"):
        learner.logprobs_of(ROWS)
    assert not learner._size.tensors() or not learner._size._recomputes


def test_the_size_in_force_is_in_the_checkpoint(untied: Path) -> None:
    """A resumed trainer does not run out again; settings that say another size are obeyed."""
    learner = learner_of(untied, **SIZES)
    assert not [name for name in learner.tensors() if name.startswith("micro_batch/")]
    Memory(learner.policy, 22)
    learner.step(ROWS, version=0, step=1)
    saved = {name: tensor.detach().clone() for name, tensor in learner.tensors().items()}
    for tokens, most in ((48, 22), (36, 33)):
        resumed = learner_of(untied, micro_batch_tokens=tokens)
        resumed.restore(saved)
        assert max(batch.input_ids_BL.numel() for batch in resumed.micro_batches(ROWS)) == most


def test_memory_that_runs_out_as_the_weights_move_ends_the_run(untied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of them may have moved: nothing is tried again."""
    learner = learner_of(untied)

    def step(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(learner._optimiser, "step", step)
    with pytest.raises(ConfigurationError, match=r"expected memory for what AdamW keeps.*lora_rank"):
        learner.step(ROWS, version=0, step=1)


def test_below_one_row_layers_are_computed_again(untied: Path) -> None:
    """Once: from there on and in the checkpoint; micro-batches stay as they are."""
    learner, plain = learner_of(untied), learner_of(untied)
    memory = Memory(learner.policy, 30)
    originally = learner.policy.recompute_layers

    def recompute() -> None:
        originally()
        memory.tokens = 40

    learner.policy.recompute_layers = recompute  # type: ignore[method-assign]
    results = [one.step([longer(40)], version=0, step=1) for one in (learner, plain)]
    assert told(results[0]) == told(results[1])
    assert is_equal(state_of(learner), state_of(plain))
    resumed = learner_of(untied)
    resumed.restore({name: tensor.detach().clone() for name, tensor in learner.tensors().items()})
    assert {layer.training for layer in layers_of(resumed.policy.causal)} == {True}
    assert resumed._size.tokens == 1024


@pytest.mark.parametrize("recompute", ["none", "layers", "auto"])
def test_a_row_that_does_not_fit_ends_the_run_with_what_does(recompute: str, untied: Path) -> None:
    """Its length, and that of the longest of the batch that a pass has memory for."""
    learner = learner_of(untied, recompute=recompute)
    Memory(learner.policy, 30)
    rows = [*ROWS[:2], longer(40), longer(31), longer(33)]
    expected = r"max_row_tokens: .* got one of 40 tokens; the longest of the batch that fits has 31\. Set"
    with pytest.raises(ConfigurationError, match=expected):
        learner.step(rows, version=0, step=1)
