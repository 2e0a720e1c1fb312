"""What a step asks the device, which it then waits for: counted on a CPU, where it costs nothing."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.trainer.test_step import learner_of, row
from tracegrad.trainer.batch.packing import micro_batches
from tracegrad.trainer.config import TrainerConfig
from tracegrad.trainer.optimiser import Optimiser

pytestmark = pytest.mark.torch

READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "nonzero", "cpu")
ROWS = [row((-1.0) ** seed, seed=seed) for seed in range(12)]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often a value of a tensor was asked for."""
    found: Counter[str] = Counter()
    for name in READS:
        original: Any = getattr(torch.Tensor, name)

        def read(self: torch.Tensor, *args: Any, name: str = name, original: Any = original, **named: Any) -> Any:
            found[name] += 1
            return original(self, *args, **named)

        monkeypatch.setattr(torch.Tensor, name, read)
    return found


def test_a_micro_batch_of_a_step_asks_the_device_for_hardly_anything(untied: Path, reads: Counter[str]) -> None:
    """Figures and losses are gathered and read once an update; packing is the host's own, and not counted."""
    totals = []
    for tokens in (72, 12):
        learner = learner_of(untied, micro_batch_tokens=tokens)
        batches = list(learner.micro_batches(ROWS))
        sized: Any = learner._size

        def handed(rows: Any, batches: Any = batches) -> Any:
            return iter(batches[-len(rows) :])

        sized.micro_batches = handed
        reads.clear()
        assert learner.step(ROWS, version=0, step=1).is_updated
        totals.append(reads.total())
    assert (totals[1] - totals[0]) / (12 - 2) <= 5, totals


def test_the_learning_rate_reads_no_count_of_the_device(reads: Counter[str]) -> None:
    """The optimiser counts its updates itself; restored, it knows them from the checkpoint."""
    config = TrainerConfig(lr=4.0, warmup_steps=4)
    first, second = (Optimiser({"w": torch.zeros(2, 2, requires_grad=True)}, config) for _ in range(2))
    for _ in range(2):
        first.masters["w"].grad = torch.ones(2, 2)
        first.step(1.0)
    reads.clear()
    assert first.learning_rate(2, 9) == 3.0 and not reads
    second.restore({name: tensor.detach().clone() for name, tensor in first.tensors().items()})
    assert second.learning_rate(2, 9) == 3.0


def test_weight_decay_leaves_vectors_alone() -> None:
    """Norms and biases, whose size says nothing of how much the model fits."""
    masters = {name: torch.ones(shape, requires_grad=True) for name, shape in (("norm", (3,)), ("matrix", (3, 3)))}
    optimiser = Optimiser(masters, TrainerConfig(lr=0.1, weight_decay=0.5))
    for master in masters.values():
        master.grad = torch.zeros_like(master)
    optimiser.step(0.1)
    assert torch.equal(masters["norm"], torch.ones(3))
    torch.testing.assert_close(masters["matrix"].detach(), torch.full((3, 3), 0.95))


def test_inputs_go_to_a_gpu_from_page_locked_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copied without a wait, each tensor of the micro-batch; the GPU is played."""
    pinned: list[torch.Tensor] = []
    calls: list[tuple[str, bool]] = []

    def pin_memory(self: torch.Tensor) -> torch.Tensor:
        pinned.append(self)
        return self

    def to(self: torch.Tensor, device: torch.device, non_blocking: bool = False) -> torch.Tensor:
        calls.append((str(device), non_blocking))
        return self

    (batch,) = micro_batches(ROWS[:2], max_tokens=24)
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    moved = batch.to(torch.device("cuda:1"))
    assert set(calls) == {("cuda:1", True)} and len(calls) == len(pinned)
    assert any(one is moved.input_ids_BL for one in pinned)
