"""The trainer's loop on an in-memory log: a run's topics, its settings, and what it led to."""

from __future__ import annotations

import shutil
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups, group_bytes, segment, summary, turn
from tests.versions import RUN
from tracegrad.consumers.audit.read import gather
from tracegrad.consumers.audit.versions import check_versions
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.mac import KeyRing
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, surviving_steps
from tracegrad.schemas.records.transitions import encode_group
from tracegrad.schemas.records.weights import WEIGHTS, Lineage, RollbackRequest
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer import loop
from tracegrad.trainer.config import (
    AlarmsConfig,
    AlgorithmConfig,
    PublishConfig,
    TrainerConfig,
    TrainerHandles,
    Waits,
)
from tracegrad.trainer.run import run

TOPICS = Topics(run=RunName("mine"))
TRANSITIONS = TOPICS.name(Topic.TRANSITIONS)
WEIGHTS_TOPIC = TOPICS.name(Topic.WEIGHTS)
STEPS = TOPICS.name(Topic.TRAINING_STEPS)

ALGORITHMS: dict[str, dict[str, Any]] = {
    "one update": {},
    "passes": {"passes": 2, "minibatches": 2, "anchor": "old", "correction": "tis"},
    "running means": {"recipe": "grpo", "baseline": "running_mean", "scale": "batch_std", "entropy": 0.01},
    "critic": {"recipe": "ppo", "passes": 2, "minibatches": 2},
    "moving reference": {"beta": 0.1, "kl_to": "moving", "reference_every": 2, "reference_share": 0.5},
    "refill": {"selection": "spread", "refill": 9},
}
"""What differs in what a checkpoint holds, or in what happens between two: keys of `[algorithm]`."""


QUICK = Waits(poll_s=0.005)


class Killed(BaseException):
    """Stands for SIGKILL: nothing catches it, nothing is cleaned up behind it on the log."""


def log_of(values: Sequence[bytes | None] = ()) -> MemoryLog:
    """With all topics of the run, and these transitions."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    append_groups(log, TRANSITIONS, values)
    return log


def new_log() -> MemoryLog:
    """With twelve groups, some of them repeated, unreadable or useless: six batches of two."""
    values: list[bytes | None] = [group_bytes(i) for i in range(10)]
    bad = encode_group(summary("bad", ["r0"]), [segment("r0", [turn(0, 3)])])
    values[3:3] = [b"garbage", group_bytes(0), bad, group_bytes(11, spread=0.0)]
    return log_of(values)


def config_of(
    model: Path, work_dir: Path, run: RunHash = RUN, **changes: Any
) -> tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles]:
    """Four batches of two groups, a version every `publish`-th update; other `changes` are keys of `[trainer]`,
    `[algorithm]` and `[alarms]`."""
    publish = PublishConfig(every=changes.pop("publish", 1))
    alarms = AlarmsConfig(on=changes.pop("on", "warn"), rollback_window=changes.pop("rollback_window", None))
    algorithm = {name: changes.pop(name) for name in AlgorithmConfig.kinds() if name in changes}
    config = TrainerConfig(**{"steps": 4, "groups_per_step": 2, "lr": 5e-4, **changes})
    return (
        config,
        AlgorithmConfig(**algorithm),
        alarms,
        TrainerHandles(
            run_hash=run, policy="policy", model=str(model), work_dir=str(work_dir), seed=0, publish=publish
        ),
    )


def train(
    log: Log,
    settings: tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles],
    stop: threading.Event | None = None,
    waits: Waits = QUICK,
    topics: Topics = TOPICS,
    *,
    overlaps: bool | None = None,
) -> Metrics:
    """As compose calls it, but that it waits shortly: a test writes all at once; what it counted."""
    metrics, stop = Metrics(), stop or threading.Event()
    run(*settings, topics=topics, log=log, stop=stop, metrics=metrics, waits=waits, overlaps=overlaps)
    return metrics


@contextmanager
def after_each_step(act: Callable[[TrainingStep], object]) -> Iterator[None]:
    """Something is done as soon as the trainer has told of a step."""
    original = loop.Trainer._say

    def say(self: loop.Trainer, record: TrainingStep, *args: Any) -> None:
        original(self, record, *args)
        act(record)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop.Trainer, "_say", say)
        yield


@contextmanager
def killed_in(
    owner: type, name: str, *, step: int | None = None, call: int = 1, is_after: bool = False
) -> Iterator[None]:
    """The trainer dies before that call of a method, or after it; with `step` those count that it makes where it stands
    there."""
    original: Callable[..., Any] = getattr(owner, name)
    calls = 0

    def killing(self: Any, *args: Any, **named: Any) -> Any:
        nonlocal calls
        counts = step is None or getattr(self, "store", self).state.step == step
        calls += counts
        is_due = counts and calls == call
        if is_due and not is_after:
            raise Killed
        result = original(self, *args, **named)
        if is_due:
            raise Killed
        return result

    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        patch.setattr(owner, name, killing)
        yield


@contextmanager
def stopped_after(step: int | None = None) -> Iterator[threading.Event]:
    """The event by which a trainer is told to stop as soon as it has told of that step, or of any; for `train`."""
    stop = threading.Event()
    with after_each_step(lambda record: stop.set() if step in (None, record.step) else None):
        yield stop


def steps_of(log: MemoryLog) -> list[TrainingStep]:
    """All steps on `training_steps`."""
    records = [TRAINING_STEPS.decode(record.value) for record in log.records(STEPS)]
    return [record for record in records if isinstance(record, TrainingStep)]


def lineage_of(log: MemoryLog) -> Lineage:
    """What any reader makes of `weights`."""
    lineage = Lineage("policy")
    for record in log.records(WEIGHTS_TOPIC):
        lineage.fold(WEIGHTS.decode(record.value))
    return lineage


def content(log: MemoryLog) -> dict[int, dict[str, torch.Tensor]]:
    """The weights of every surviving version."""
    return {v: load_file(Path(m.uri) / "model.safetensors") for v, m in lineage_of(log).versions.items()}


def is_same(a: dict[int, dict[str, torch.Tensor]], b: dict[int, dict[str, torch.Tensor]]) -> bool:
    """Bit for bit."""
    return a.keys() == b.keys() and all(torch.equal(a[v][name], b[v][name]) for v in a for name in a[v])


class _Trusting(KeyRing):
    """Of a log on which nobody signs: that is the shell's part."""

    def refusal(self, topic: Topic, record: Record) -> Reason | None:
        return None


def audited(log: MemoryLog, run: RunHash = RUN) -> list[str]:
    """What the audit says of steps and versions."""
    seen = gather(log, TOPICS, run, "policy", ring=_Trusting(run, {}), starts=None)
    return list(check_versions(seen, surviving_steps(seen.steps), is_live=False, look=None, num_kept=0))


def lose_checkpoints(work_dir: Path, *, after: int) -> None:
    """Those of later steps."""
    for path in (work_dir / "checkpoints").iterdir():
        if int(path.name.split("-")[1]) > after:
            shutil.rmtree(path)


def request_rollback(log: MemoryLog, version: int) -> None:
    """As `weights rollback` does."""
    request = RollbackRequest(
        policy="policy", run=RUN, to_version=version, request_id=uuid.uuid4().hex, requested_by="test"
    )
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(request), partition=0)
