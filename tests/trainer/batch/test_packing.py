"""Micro-batches: nothing leaks between rows, and how rows are packed changes no gradient."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from tests.trainer.material import VOCABULARY, groups_of
from tracegrad.trainer.algorithm.form import loss as loss_of
from tracegrad.trainer.algorithm.logprobs import sampled_logprobs
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.batch.packing import MicroBatch, micro_batches
from tracegrad.trainer.batch.rows import TrainingRow, training_rows
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.model.policy import Policy, configure_torch, load_policy

pytestmark = pytest.mark.torch

Gradients = dict[str, torch.Tensor]


def rows_of(count: int) -> list[TrainingRow]:
    """Their rows, by token mean."""
    return training_rows(groups_of(count), RECIPES[DEFAULT].recipe)[0]


@pytest.fixture(scope="module")
def policy(untied: Path) -> Policy:
    """A loaded policy."""
    config = TrainerConfig()
    return load_policy(config, str(untied), configure_torch(config, seed=0))


def logprobs_of(policy: Policy, batch: MicroBatch) -> torch.Tensor:
    """[B, K]."""
    logits = policy.logits(batch.input_ids_BL, batch.keep_K)
    return sampled_logprobs(logits, batch.targets_BK, batch.temperatures_BK)


def gradients(policy: Policy, rows: list[TrainingRow], *, max_tokens: int) -> tuple[float, Gradients]:
    """Loss and gradients through our micro-batches."""
    loss = 0.0
    for batch in micro_batches(rows, max_tokens=max_tokens):
        term = loss_of(
            RECIPES[DEFAULT].recipe,
            logprobs_N=logprobs_of(policy, batch).flatten()[batch.trained_N],
            sampler_logprobs_N=batch.sampler_logprobs_N,
            advantages_N=batch.advantages_N,
            weights_N=batch.weights_N,
        )
        term.loss.backward()  # type: ignore[no-untyped-call]
        loss += float(term.loss.detach())
    return loss, taken(policy)


def taken(policy: Policy) -> Gradients:
    """The gradients, which are then cleared."""
    found = {name: master.grad.clone() for name, master in policy.masters.items() if master.grad is not None}
    for master in policy.masters.values():
        master.grad = None
    return found


def naive_gradients(policy: Policy, rows: list[TrainingRow]) -> tuple[float, Gradients]:
    """One padded batch with an attention mask, all logits, log_softmax, a token mean: the textbook formula."""
    longest = max(len(row.token_ids_T) for row in rows)

    def padded(name: str) -> torch.Tensor:
        arrays = [np.pad(getattr(row, name), (0, longest - len(row.token_ids_T))) for row in rows]
        return torch.from_numpy(np.stack(arrays))

    ids, mask = padded("token_ids_T"), padded("loss_mask_T")[:, 1:].float()
    attention = torch.tensor([[1] * len(row.token_ids_T) + [0] * (longest - len(row.token_ids_T)) for row in rows])
    logits = policy._model(input_ids=ids, attention_mask=attention).logits[:, :-1]
    logprobs = torch.log_softmax(logits, -1).gather(2, ids[:, 1:, None])[..., 0]
    advantages = padded("advantages_T")[:, 1:]
    ratio = torch.where(mask.bool(), logprobs - padded("sampler_logprobs_T")[:, 1:], 0.0).exp()
    term = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.28) * advantages)
    loss = (term * mask).sum() / mask.sum()
    loss.backward()  # type: ignore[no-untyped-call]
    return float(loss.detach()), taken(policy)


def assert_close(got: Gradients, expected: Gradients) -> None:
    """All of them, to float32 rounding."""
    assert got.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(got[name], gradient, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("max_tokens", [1, 64, 4096])
def test_gradient_equals_the_naive_padded_formula(policy: Policy, max_tokens: int) -> None:
    """Row by row, a few rows, all rows at once."""
    rows = rows_of(3)
    expected_loss, expected = naive_gradients(policy, rows)
    loss, got = gradients(policy, rows, max_tokens=max_tokens)
    assert loss == pytest.approx(expected_loss, abs=1e-6)
    assert_close(got, expected)


def test_order_of_rows_changes_no_gradient(policy: Policy) -> None:
    """Beyond rounding."""
    rows = rows_of(3)
    assert_close(gradients(policy, rows[::-1], max_tokens=64)[1], gradients(policy, rows, max_tokens=64)[1])


def test_rows_do_not_see_each_other(policy: Policy) -> None:
    """A row's logprobs are the same whatever stands beside it, and what follows it in its own line."""
    rows = sorted(rows_of(2), key=lambda row: -len(row.token_ids_T))
    together = next(micro_batches(rows, max_tokens=4096))
    with torch.no_grad():
        beside = logprobs_of(policy, together)
        trained = torch.split(beside.flatten()[together.trained_N], together.sizes_R.tolist())
        for number, row in enumerate(rows):
            (alone,) = micro_batches([row], max_tokens=1)
            expected = logprobs_of(policy, alone).flatten()[alone.trained_N]
            torch.testing.assert_close(trained[number], expected, atol=1e-5, rtol=1e-5)
        noisy = together.input_ids_BL.clone()
        noisy[1:] = torch.randint(0, VOCABULARY, noisy[1:].shape)
        logits = policy.logits(noisy, together.keep_K)
        assert torch.equal(sampled_logprobs(logits, together.targets_BK, together.temperatures_BK)[0], beside[0])


def test_bounds_hold_unless_a_row_is_alone() -> None:
    """Padded tokens per forward pass."""
    rows = rows_of(4)
    for max_tokens in (64, 4096, 1):
        batches = [*micro_batches(rows, max_tokens=max_tokens)]
        for batch in batches:
            count, length = batch.input_ids_BL.shape
            assert count == 1 or count * length <= max_tokens
        assert sum(len(batch.input_ids_BL) for batch in batches) == len(rows)
        assert sum(len(batch.trained_N) for batch in batches) == sum(int(r.loss_mask_T.sum()) for r in rows)
