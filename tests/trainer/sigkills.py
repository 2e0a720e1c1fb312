"""Trainers in processes of their own that die by SIGKILL, and what a run led to all the same."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

import msgspec
import torch
from safetensors.torch import load_file

from tests.trainer import doomed_trainer
from tests.trainer.material import group_bytes
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.store.checkpoint import Checkpoints

USELESS = (1, 3, 4)
"""Without spread, of the groups that a trainer reads who has its batches refilled: batches of 3, 4, 2 and 2."""
SPARSE = tuple(group_bytes(i, spread=float(i not in USELESS)) for i in range(11))
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([doomed_trainer.__name__, "transformers.models.qwen3.modeling_qwen3"])


class Death(NamedTuple):
    """How a trainer ends."""

    seam: str
    call: int = 1
    num_groups: int = len(SPARSE)
    """That lie on the log by then."""


class Outcome(NamedTuple):
    """What a run led to."""

    steps: list[TrainingStep]
    """Those that survive, without clock and epoch."""
    content: dict[int, dict[str, torch.Tensor]]
    """The weights of each version."""
    lineage: Lineage
    kept: dict[str, torch.Tensor]
    """What the last checkpoint holds: moments, generators and the critic, too."""
    running: dict[str, float]


def start(
    servers: str,
    topics: Topics,
    config: tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles],
    seam: str,
    call: int,
    errors: Path,
    *,
    overlaps: bool | None = None,
) -> BaseProcess:
    """A trainer in a process of its own, forked from one that has torch already: importing it takes 8 s."""
    arguments = (servers, topics, *config, seam, call, errors, overlaps)
    process = FORKS.Process(target=doomed_trainer.train, args=arguments, daemon=True)
    process.start()
    return process


def folded(log: Log, topics: Topics) -> tuple[Lineage, int]:
    """The lineage, and how many records are void."""
    lineage = Lineage("policy")
    counted = [lineage.fold(WEIGHTS.decode(record.value)) for record in read_to_end(log, topics.name(Topic.WEIGHTS))]
    return lineage, counted.count(False)


def said(log: Log, topics: Topics) -> list[TrainingStep | GroupsGivenBack]:
    """All records of `training_steps`."""
    return [TRAINING_STEPS.decode(record.value) for record in read_to_end(log, topics.name(Topic.TRAINING_STEPS))]


def steps_of(log: Log, topics: Topics) -> list[TrainingStep]:
    """Of these the steps."""
    return [record for record in said(log, topics) if isinstance(record, TrainingStep)]


def outcome(log: Log, topics: Topics, work_dir: Path) -> Outcome:
    """Of the run in a folder, by its log."""
    steps = surviving_steps(steps_of(log, topics))
    lineage, _ = folded(log, topics)
    content = {v: load_file(Path(m.uri) / "model.safetensors") for v, m in lineage.versions.items()}
    timeless = [msgspec.structs.replace(step, seconds={}, started_at_ms=0, ended_at_ms=0, epoch=0) for step in steps]
    loaded = Checkpoints(work_dir / "checkpoints", keep=2).load_newest()
    assert loaded is not None
    return Outcome(timeless, content, lineage, loaded[1], loaded[0].state.running)


def is_same(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> bool:
    """Bit for bit."""
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in expected)


def assert_exactly_once(found: Outcome, expected: Outcome) -> None:
    """Each step once, each group in one batch, and all as if nobody had been killed, bit for bit."""
    assert [step.step for step in found.steps] == [1, 2, 3, 4]
    named = [group for step in found.steps for group in (*step.group_ids, *step.excluded_ids)]
    assert sorted(named) == [f"{index:024x}" for index in range(found.steps[-1].next_offset)]
    assert found.steps == expected.steps
    assert found.content.keys() == expected.content.keys()
    assert all(is_same(found.content[version], expected.content[version]) for version in expected.content)
    assert is_same(found.kept, expected.kept)
    assert found.running == expected.running
