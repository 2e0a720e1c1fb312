"""A loaded policy: moved as by a step, published, opened as any user opens it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.versions import RUN
from tracegrad.trainer.algorithm.recipe import Recipe
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.config import TrainerConfig, TrainerHandles
from tracegrad.trainer.model.policy import Policy, configure_torch, load_policy
from tracegrad.trainer.store.checkpoint import CheckpointState, Progress
from tracegrad.trainer.store.publish import Publisher

IDS = torch.arange(40).reshape(2, 20) + 30
KEEP = torch.arange(20)


def loaded(model: Path, **changes: Any) -> Policy:
    """A policy of the model."""
    config = TrainerConfig(**changes)
    return load_policy(config, str(model), configure_torch(config, seed=0))


def disturb(policy: Policy) -> None:
    """Moves every trainable tensor, as a step does."""
    generator = torch.Generator().manual_seed(1)
    moved = {n: m.detach() + 0.02 * torch.randn(m.shape, generator=generator) for n, m in policy.masters.items()}
    policy.restore(moved)


def published(policy: Policy, base: Path, tmp_path: Path) -> Path:
    """The folder of its version 1."""
    handles = TrainerHandles(run_hash=RUN, policy="policy", model=str(base), work_dir=str(tmp_path), seed=0)
    publisher = Publisher(handles, keep=0, is_held=lambda _: False)
    learner = SingleLearner(policy, TrainerConfig(), Recipe())
    progress = Progress(CheckpointState(policy="policy", run=RUN, step=1, version=1))
    manifest = publisher.write(publisher.snapshot(learner, progress, epoch=1))
    return Path(manifest.uri)


def opened(folder: Path) -> Any:
    """As any user opens it."""
    import transformers

    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
    transformers.AutoTokenizer.from_pretrained(folder)
    return model.eval()
