"""What a process is told of the device that it trains on; the GPU is played."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.backends import single
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.history.config import History
from tracegrad.trainer.model.policy import configure_torch

pytestmark = pytest.mark.torch

WORKSPACE, SEGMENTS = "CUBLAS_WORKSPACE_CONFIG", "PYTORCH_CUDA_ALLOC_CONF"


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[str, Any]]]:
    """Two of them; the calls that would start CUDA are noted. Torch is left as a CPU is to have it."""
    calls: list[tuple[str, Any]] = []
    for name in (WORKSPACE, SEGMENTS):
        monkeypatch.delenv(name, raising=False)
    for name in ("set_device", "set_per_process_memory_fraction"):
        monkeypatch.setattr(torch.cuda, name, lambda *given, name=name: calls.append((name, given)))

    def count() -> int:
        calls.append(("count", os.environ.get(WORKSPACE)))
        return 2

    monkeypatch.setattr(torch.cuda, "device_count", count)
    yield calls
    configure_torch(TrainerConfig(device="cpu"), seed=0)


def test_a_gpu_that_torch_does_not_see_is_refused_by_name() -> None:
    """Before the model is loaded: torch's own error would be tried again and again."""
    with pytest.raises(ConfigurationError, match=r"\[trainer\] device: .*GPUs that torch sees, got 'cuda:99'"):
        configure_torch(TrainerConfig(device="cuda:99"), seed=0)


@pytest.mark.parametrize(
    ("device", "told", "expected"),
    [("cpu", None, True), ("cuda:1", None, False), ("cpu", False, False), ("cuda:1", True, True)],
)
def test_steps_repeat_where_that_is_asked_for_and_on_a_cpu(
    device: str, told: bool | None, expected: bool, gpus: list[tuple[str, Any]]
) -> None:
    """Strictly: an operation without such a kernel is an error, no warning; cuDNN's attention has none."""
    configure_torch(TrainerConfig(device=device, deterministic=told), seed=0)
    assert torch.are_deterministic_algorithms_enabled() is expected
    assert not torch.is_deterministic_algorithms_warn_only_enabled()
    assert torch.backends.cuda.cudnn_sdp_enabled() is not expected  # type: ignore[no-untyped-call]


def test_cublas_has_a_fixed_workspace_before_cuda_starts(
    gpus: list[tuple[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stands there when torch is first asked for GPUs; one that the user set stays."""
    configure_torch(TrainerConfig(device="cuda", deterministic=True), seed=0)
    assert gpus[0] == ("count", ":4096:8")
    monkeypatch.setenv(WORKSPACE, ":16:8")
    configure_torch(TrainerConfig(device="cuda", deterministic=True), seed=0)
    assert ("count", ":16:8") in gpus


@pytest.mark.parametrize(("device", "number"), [("auto", 0), ("cuda", 0), ("cuda:1", 1)])
def test_the_trainer_computes_on_its_gpu_and_leaves_the_engine_its_share(
    device: str, number: int, gpus: list[tuple[str, Any]]
) -> None:
    """1 less the engine's .4 and a margin of .05; kernels that name no device take this one, too."""
    configure_torch(TrainerConfig(device=device), seed=0, engine_share=0.4)
    assert gpus[1:] == [("set_device", (number,)), ("set_per_process_memory_fraction", (pytest.approx(0.55), number))]
    assert os.environ[SEGMENTS] == "expandable_segments:True"


_RUN = RunHash("7c1f3e9a")


@pytest.mark.parametrize(("history", "share"), [(None, 0.4), (History(run=_RUN, mode="offline", end_offset=1), 0.0)])
def test_the_trainer_of_a_replay_has_its_gpu_to_itself(
    history: History | None, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine is started beside it."""
    told = []

    def configured(*_: Any, **given: Any) -> None:
        told.append(given["engine_share"])
        raise ConfigurationError("seen")

    monkeypatch.setattr(single, "configure_torch", configured)
    given: Any = {"history": history, "engine_share": share or 0.4}
    handles = TrainerHandles(run_hash=_RUN, policy="policy", model="", work_dir="", seed=0, **given)
    with pytest.raises(ConfigurationError, match="seen"):
        single.load_learner(TrainerConfig(), RECIPES[DEFAULT].recipe, handles, is_told_to_stop=lambda: False)
    assert told == [share]


def test_a_gpu_of_its_own_is_the_trainers_whole(gpus: list[tuple[str, Any]]) -> None:
    """No bound; on a CPU neither call is made."""
    configure_torch(TrainerConfig(device="cuda"), seed=0)
    configure_torch(TrainerConfig(device="cpu"), seed=0, engine_share=0.4)
    assert [name for name, _ in gpus if name != "count"] == ["set_device"]
