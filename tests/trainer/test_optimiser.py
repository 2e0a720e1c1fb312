"""The learning rate's schedules, against torch's own; what a restored optimiser knows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch.optim.lr_scheduler import ConstantLR, CosineAnnealingLR, LambdaLR, LinearLR, LRScheduler, SequentialLR

from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.optimiser import SCHEDULES, Optimiser

pytestmark = pytest.mark.torch

WARM, NUM = 4, 20


def optimiser_of(schedule: Any, *, seed: int = 0) -> Optimiser:
    """Of one master of three numbers."""
    master = torch.randn(3, generator=torch.Generator().manual_seed(seed)).requires_grad_(True)
    config = TrainerConfig(lr=3e-4, warmup_steps=WARM, lr_schedule=schedule)
    return Optimiser({"w": master}, config)


def update(optimiser: Optimiser, number: int) -> float:
    """The number-th of the run, from 0; its learning rate."""
    rate = optimiser.learning_rate(number, NUM)
    optimiser.masters["w"].grad = torch.tensor([1.0, -2.0, number - 3.5])
    optimiser.step(rate)
    optimiser.drop_gradients()
    return rate


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_schedules_are_torchs(schedule: Any) -> None:
    """Warm-up, then LinearLR or CosineAnnealingLR by SequentialLR, over a whole run."""
    toy = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=3e-4)
    made: dict[str, Callable[[], LRScheduler]] = {
        "constant": lambda: ConstantLR(toy, factor=1.0),
        "linear": lambda: LinearLR(toy, start_factor=1.0, end_factor=0.0, total_iters=NUM - WARM),
        "cosine": lambda: CosineAnnealingLR(toy, T_max=NUM - WARM),
    }
    after = made[schedule]()
    warm = LambdaLR(toy, lambda number: min(1.0, (number + 1) / WARM))
    torchs = SequentialLR(toy, [warm, after], milestones=[WARM])
    ours, expected = optimiser_of(schedule), []
    rates = []
    for number in range(NUM):
        expected.append(toy.param_groups[0]["lr"])
        rates.append(update(ours, number))
        toy.step()
        torchs.step()
    assert rates == pytest.approx(expected, rel=1e-12, abs=1e-15)
    assert rates[:WARM] == pytest.approx([3e-4 * (number + 1) / WARM for number in range(WARM)])


def test_a_rollback_warms_up_again_while_the_schedule_goes_on() -> None:
    """A new optimiser in the middle of the run: a quarter of what the schedule says there, then all of it."""
    ours, fresh = optimiser_of("cosine"), optimiser_of("cosine")
    expected = [update(ours, number) for number in range(NUM)]
    found = [update(fresh, number) for number in range(10, NUM)]
    shares = [rate / whole for rate, whole in zip(found, expected[10:], strict=True)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, *[1.0] * 7])


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_restored_optimiser_goes_on_bit_for_bit(schedule: Any) -> None:
    """Moments, their count and the learning rate."""
    first, second = optimiser_of(schedule), optimiser_of(schedule, seed=1)
    for number in range(7):
        update(first, number)
    second.restore({name: tensor.detach().clone() for name, tensor in first.tensors().items()})
    with torch.no_grad():
        second.masters["w"].copy_(first.masters["w"])
    assert [update(first, number) for number in range(7, NUM)] == [update(second, number) for number in range(7, NUM)]
    assert torch.equal(first.masters["w"], second.masters["w"])


def test_more_warm_up_than_run_never_falls() -> None:
    """Nothing is left for the schedule."""
    config = TrainerConfig(lr=1.0, warmup_steps=50, lr_schedule="linear")
    ours = Optimiser({"w": torch.zeros(3, requires_grad=True)}, config)
    assert [update(ours, number) for number in range(3)] == pytest.approx([0.02, 0.04, 0.06])
