"""Real SIGKILLs on a real broker: the surviving lineage equals an undisturbed run's, bit for bit."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
import threading
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from tests.memory_log import MemoryLog
from tests.trainer import doomed_trainer
from tests.trainer.doomed_trainer import SEAMS
from tests.trainer.material import append_groups, group_bytes
from tests.versions import RUN
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.ids import RunName
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer import loop
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles

pytestmark = [pytest.mark.torch, pytest.mark.kafka, pytest.mark.timeout(300)]

GROUPS = [group_bytes(i) for i in range(8)]
FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload([doomed_trainer.__name__, "transformers.models.qwen3.modeling_qwen3"])
Outcome = tuple[list[Any], dict[int, dict[str, torch.Tensor]], Lineage]


def config_of(
    model: Path, work_dir: Path, *, every: int = 1, algorithm: AlgorithmConfig | None = None
) -> tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles]:
    """Four batches of two groups, a checkpoint every so many."""
    config = TrainerConfig(steps=4, groups_per_step=2, lr=5e-4, checkpoint_every=every)
    return (
        config,
        algorithm or AlgorithmConfig(),
        AlarmsConfig(),
        TrainerHandles(run_hash=RUN, policy="policy", model=str(model), work_dir=str(work_dir), seed=0),
    )


def start(
    servers: str,
    topics: Topics,
    config: tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles],
    seam: str,
    call: int,
    errors: Path,
) -> BaseProcess:
    """A trainer in a process of its own, forked from one that has torch already: importing it takes 8 s."""
    arguments = (servers, topics, *config, seam, call, errors)
    process = FORKS.Process(target=doomed_trainer.train, args=arguments, daemon=True)
    process.start()
    return process


def folded(log: Log, topics: Topics) -> tuple[Lineage, int]:
    """The lineage, and how many records are void."""
    lineage = Lineage("policy")
    counted = [lineage.fold(WEIGHTS.decode(record.value)) for record in read_to_end(log, topics.name(Topic.WEIGHTS))]
    return lineage, counted.count(False)


def steps_of(log: Log, topics: Topics) -> list[TrainingStep]:
    """All steps on `training_steps`."""
    name = topics.name(Topic.TRAINING_STEPS)
    records = [TRAINING_STEPS.decode(record.value) for record in read_to_end(log, name)]
    return [record for record in records if isinstance(record, TrainingStep)]


def outcome(log: Log, topics: Topics) -> Outcome:
    """What the run led to: the surviving steps without clock and epoch, and versions' weights; the lineage."""
    steps = surviving_steps(steps_of(log, topics))
    lineage, _ = folded(log, topics)
    content = {v: load_file(Path(m.uri) / "model.safetensors") for v, m in lineage.versions.items()}
    timeless = [msgspec.structs.replace(step, seconds={}, started_at_ms=0, ended_at_ms=0, epoch=0) for step in steps]
    return timeless, content, lineage


def undisturbed(model: Path, work_dir: Path, algorithm: AlgorithmConfig) -> Outcome:
    """Of a trainer that nobody kills."""
    log, topics = MemoryLog(), Topics(run=RunName("undisturbed"))
    log.create_topics(topics, policies=["policy"])
    append_groups(log, topics.name(Topic.TRANSITIONS), GROUPS)
    plain = config_of(model, work_dir, algorithm=algorithm)
    loop.run(*plain, topics=topics, log=log, stop=threading.Event(), metrics=Metrics())
    return outcome(log, topics)


ALGORITHMS = {
    "one update": AlgorithmConfig(),
    "passes": AlgorithmConfig(passes=2, minibatches=2, anchor="old", correction="tis"),
    "critic": AlgorithmConfig(recipe="ppo"),
}


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("every", [1, 3])
@pytest.mark.parametrize("seam", SEAMS)
def test_sigkilled_trainer_resumes_bit_for_bit(
    seam: str,
    every: int,
    algorithm: str,
    broker: str,
    kafka_log: KafkaLog,
    fresh_topics: Topics,
    untied: Path,
    tmp_path: Path,
) -> None:
    """Killed at its second step (of a checkpoint that is half written every third step: at its last); the next batch's
    hash and loss, and all weights, are an undisturbed run's, whether the log is replayed or not.
    """
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), GROUPS)
    keys = ALGORITHMS[algorithm]
    config = config_of(untied, tmp_path / "b", every=every, algorithm=keys)
    # Versions and checkpoints begin at 0, steps at 1.
    call = 2 if SEAMS[seam][1] == "_learn" else 3
    process = start(broker, fresh_topics, config, seam, call, tmp_path / "stderr")
    process.join(120)
    assert process.exitcode == -signal.SIGKILL, (tmp_path / "stderr").read_text()
    half_written = list((tmp_path / "b").rglob(".tmp-*"))
    assert bool(half_written) == seam.startswith("half-written")

    loop.run(*config, topics=fresh_topics, log=kafka_log, stop=threading.Event(), metrics=Metrics())
    expected_steps, expected, _ = undisturbed(untied, tmp_path / "a", keys)
    steps, content, _ = outcome(kafka_log, fresh_topics)
    assert steps == expected_steps
    assert every > 1 or len(steps_of(kafka_log, fresh_topics)) == len(steps)
    assert content.keys() == expected.keys()
    for version, tensors in expected.items():
        assert all(torch.equal(tensor, content[version][name]) for name, tensor in tensors.items())
    assert folded(kafka_log, fresh_topics)[1] == 0
    assert not list((tmp_path / "b").rglob(".tmp-*"))


def test_a_batch_that_kills_three_times_is_refused_by_name(
    broker: str, kafka_log: KafkaLog, fresh_topics: Topics, untied: Path, tmp_path: Path
) -> None:
    """Status 78 without a fourth try; nothing was left out, so the next start trains as an undisturbed one."""
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), GROUPS)
    config = config_of(untied, tmp_path)
    for seam, status in [*[("before the step", -signal.SIGKILL)] * 3, ("before the step", 78)]:
        process = start(broker, fresh_topics, config, seam, 1, tmp_path / "stderr")
        process.join(120)
        assert process.exitcode == status, (tmp_path / "stderr").read_text()
    told = (tmp_path / "stderr").read_text()
    assert f"[0, 2) of {fresh_topics.name(Topic.TRANSITIONS)!r} partition 0" in told and "micro_batch_tokens" in told
    loop.run(*config, topics=fresh_topics, log=kafka_log, stop=threading.Event(), metrics=Metrics())
    assert [len(step.group_ids) for step in outcome(kafka_log, fresh_topics)[0]] == [2, 2, 2, 2]


def test_two_trainers_at_once_one_stops(
    broker: str, kafka_log: KafkaLog, fresh_topics: Topics, untied: Path, tmp_path: Path
) -> None:
    """The first waits in its process; a second claims; the first exits 78 with one clear message."""
    config = config_of(untied, tmp_path)
    first = start(broker, fresh_topics, config, "none", 0, tmp_path / "stderr")
    weights = fresh_topics.name(Topic.WEIGHTS)
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        assert first.exitcode is None
        time.sleep(0.1)
        # A topic that was made a moment ago may have no leader yet.
        with contextlib.suppress(UnavailableError):
            if kafka_log.offsets(weights)[0].end >= 2:
                break
    stop = threading.Event()
    second = threading.Thread(
        target=loop.run,
        args=config,
        kwargs={"topics": fresh_topics, "log": kafka_log, "stop": stop, "metrics": Metrics()},
    )
    second.start()
    first.join(90)
    errors = (tmp_path / "stderr").read_text()
    assert first.exitcode == 78, errors
    assert errors.count("FencedError") == 1
    assert "run one trainer per policy" in errors
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), GROUPS)
    second.join(120)
    assert not second.is_alive()
    steps, _, lineage = outcome(kafka_log, fresh_topics)
    assert [step.step for step in steps] == [1, 2, 3, 4]
    assert [manifest.epoch for _, manifest in sorted(lineage.versions.items())] == [1, 2, 2, 2, 2]
