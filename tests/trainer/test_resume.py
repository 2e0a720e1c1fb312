"""A trainer that starts again on an in-memory log: killed at every seam, fenced, rolled back, refused."""

from __future__ import annotations

import functools
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import (
    ALGORITHMS,
    STEPS,
    TRANSITIONS,
    WEIGHTS_TOPIC,
    config_of,
    content,
    is_same,
    killed_in,
    lineage_of,
    log_of,
    new_log,
    request_rollback,
    steps_of,
    train,
)
from tests.versions import OTHER_RUN, claim, label
from tracegrad.schemas.errors import ConfigurationError, FencedError
from tracegrad.schemas.records.training import surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS
from tracegrad.trainer import loop
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.batch.batches import TransitionsReader
from tracegrad.trainer.model.policy import Policy
from tracegrad.trainer.store.publish import Publisher, Versions

pytestmark = pytest.mark.torch

SEAMS: dict[str, tuple[type, str, str]] = {
    "before the step": (loop.Trainer, "_learn", "before"),
    "after the step, before the checkpoint": (loop.Trainer, "_learn", "after"),
    "between checkpoint and publish": (Versions, "write", "before"),
    "between manifest and training_step": (Versions, "announce", "after"),
    "after all": (loop.Trainer, "_say", "before"),
}


@pytest.mark.parametrize("how", ["changed", "gone"])
def test_newest_version_that_was_damaged_is_published_anew(
    how: str, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Engines refuse it, and without it no batch comes: a new start is the remedy, so it must help."""
    train(log, config_of(untied, tmp_path, steps=2))
    expected, newest = content(log), lineage_of(log).versions[2]
    weights = Path(newest.uri) / "model.safetensors"
    damaged = weights.read_bytes()[:-1] + b"x"
    shutil.rmtree(newest.uri)  # not in place: what `expected` holds is mapped from the file
    if how == "changed":
        shutil.copytree(lineage_of(log).versions[1].uri, newest.uri)
        weights.unlink()
        weights.write_bytes(damaged)
    train(log, config_of(untied, tmp_path, steps=2))
    assert lineage_of(log).versions[2].label != newest.label, "announced as it was"
    assert is_same(content(log), expected)


@pytest.fixture(scope="module")
def undisturbed(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], MemoryLog]:
    """The log of a run that nobody kills, by its algorithm."""

    @functools.cache
    def log_of(algorithm: str) -> MemoryLog:
        log = new_log()
        train(log, config_of(untied, tmp_path_factory.mktemp("undisturbed"), **ALGORITHMS[algorithm]))
        return log

    return log_of


@pytest.mark.parametrize(
    ("algorithm", "every"), [*((name, 1) for name in ALGORITHMS), ("one update", 3), ("running means", 3)]
)
@pytest.mark.parametrize("seam", SEAMS)
def test_killed_trainer_goes_on_bit_for_bit(
    seam: str,
    algorithm: str,
    every: int,
    undisturbed: Callable[[str], MemoryLog],
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
) -> None:
    """Hashes, losses and weights equal an undisturbed run's; each surviving step is recorded once."""
    owner, name, moment = SEAMS[seam]
    config = config_of(untied, tmp_path, checkpoint_every=every, **ALGORITHMS[algorithm])
    with killed_in(owner, name, step=1 if name == "_learn" else 2, is_after=moment == "after"):
        train(log, config)
    train(log, config)

    expected, got = steps_of(undisturbed(algorithm)), steps_of(log)
    if every > 1:
        got = surviving_steps(got)
    assert [(s.step, s.version, s.batch_hash, s.loss, s.grad_norm, s.accounting) for s in got] == [
        (s.step, s.version, s.batch_hash, s.loss, s.grad_norm, s.accounting) for s in expected
    ]
    assert is_same(content(log), content(undisturbed(algorithm)))
    lost_manifest = every > 1 or seam == "between checkpoint and publish"
    assert lineage_of(log).versions[2].label == (label(2, 2) if lost_manifest or name == "_learn" else label(2))


@pytest.mark.parametrize(("algorithm", "call"), [("passes", 2), ("passes", 3), ("passes", 6), ("critic", 6)])
def test_a_kill_between_updates_takes_the_whole_batch_again(
    algorithm: str,
    call: int,
    undisturbed: Callable[[str], MemoryLog],
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
) -> None:
    """Weights that moved by half a batch are in no checkpoint, so no update is made twice; one version a batch."""
    config = config_of(untied, tmp_path, **ALGORITHMS[algorithm])
    with killed_in(SingleLearner, "_update", call=call):
        train(log, config)
    train(log, config)
    assert [(s.batch_hash, s.loss, s.grad_norm, s.explained_variance) for s in steps_of(log)] == [
        (s.batch_hash, s.loss, s.grad_norm, s.explained_variance) for s in steps_of(undisturbed(algorithm))
    ]
    assert [step.version for step in steps_of(log)] == [1, 2, 3, 4]
    assert is_same(content(log), content(undisturbed(algorithm)))


@pytest.mark.parametrize(("algorithm", "every"), [("one update", 1), ("moving reference", 3)])
def test_stop_breaks_a_step_off_between_micro_batches(
    algorithm: str, every: int, log: MemoryLog, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long steps outlast a supervisor's patience: three kills by it would be told as the batch's own doing."""
    stop = threading.Event()
    changes = {"micro_batch_tokens": 1, "checkpoint_every": every, **ALGORITHMS[algorithm]}
    original = Policy.logprobs

    def logprobs(self: Policy, batch: Any, **named: Any) -> Any:
        if len(steps_of(log)) == 1:
            stop.set()
        return original(self, batch, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "logprobs", logprobs)
        train(log, config_of(untied, tmp_path, **changes), stop)
    assert [step.step for step in steps_of(log)] == [1]
    assert list((tmp_path / "in-work").iterdir()) == []
    train(log, config_of(untied, tmp_path, **changes))
    undisturbed = new_log()
    train(undisturbed, config_of(untied, tmp_path / "undisturbed", **changes))
    assert [(s.batch_hash, s.loss) for s in steps_of(log)] == [(s.batch_hash, s.loss) for s in steps_of(undisturbed)]
    assert is_same(content(log), content(undisturbed))


def test_missing_training_step_is_emitted_again_byte_for_byte(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Its first append never reached the log."""
    config = config_of(untied, tmp_path, steps=2)
    train(log, config)
    kept = log.records(STEPS)
    other = new_log()
    for record in log.records(WEIGHTS_TOPIC):
        other.writer().append(WEIGHTS_TOPIC, key=record.key, value=record.value, partition=0)
    train(other, config)
    assert [record.value for record in other.records(STEPS)] == [kept[-1].value]
    train(other, config)
    assert len(other.records(STEPS)) == 1


def test_void_manifest_is_published_again_under_the_new_epoch(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """A higher claim came between checkpoint and manifest; readers ignore that manifest, so it must come again."""
    config = config_of(untied, tmp_path)
    original = Publisher.write

    def overtaken(self: Any, *args: Any, **named: Any) -> Any:
        manifest = original(self, *args, **named)
        if manifest.version == 2:
            log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(claim(7)), partition=0)
        return manifest

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Publisher, "write", overtaken)
        with pytest.raises(FencedError):
            train(log, config)
    assert sorted(lineage_of(log).versions) == [0, 1]
    train(log, config)
    labels = [m.label for _, m in sorted(lineage_of(log).versions.items())]
    assert labels == [label(0), label(1), label(2, 8), label(3, 8), label(4, 8)]
    assert [step.step for step in steps_of(log)] == [1, 2, 3, 4]


def test_second_trainer_fences_the_first(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """The first waits for groups that do not come; the second starts; the first stops with a clear error."""
    failures: list[BaseException] = []
    config = config_of(untied, tmp_path, steps=99)
    stop = threading.Event()

    def first() -> None:
        try:
            train(log, config, stop)
        except FencedError as error:
            failures.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    with log.changed:
        assert log.changed.wait_for(lambda: len(log.records(STEPS)) == 6, timeout=60)
    train(log, config_of(untied, tmp_path, steps=6))
    thread.join(30)
    stop.set()
    assert [type(failure) for failure in failures] == [FencedError]
    assert "run one trainer per policy" in str(failures[0])
    assert sorted(lineage_of(log).versions) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_rollback_publishes_old_content_under_a_new_number(
    lora_rank: int | None, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """And training goes on from it; a request is executed once, across restarts and copies of its record."""
    config = config_of(untied, tmp_path, steps=2, lora_rank=lora_rank)
    train(log, config)
    request_rollback(log, 1)
    copied = log.records(WEIGHTS_TOPIC)[-1].value
    request_rollback(log, 40)
    train(log, config_of(untied, tmp_path, steps=3, lora_rank=lora_rank))
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=copied, partition=0)
    train(log, config_of(untied, tmp_path, steps=4, lora_rank=lora_rank))
    versions, found = lineage_of(log).versions, content(log)
    assert sorted(versions) == [0, 1, 2, 3, 4, 5]
    assert versions[3].base_version == 1
    assert all(torch.equal(found[3][name], found[1][name]) for name in found[1])
    assert [step.version for step in steps_of(log)] == [1, 2, 4, 5]


def test_rollback_while_it_waits_is_where_the_next_step_starts(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the rolled-back version sampled is neither stale nor of a version that is yet to come."""
    log = log_of([group_bytes(0), group_bytes(1)])
    original, events = TransitionsReader.next, iter(("asked", "answered"))

    def waiting(self: TransitionsReader) -> Any:
        """The trainer asks for the second batch's records: a rollback comes, then what its version sampled."""
        if log.records(STEPS) and (event := next(events, "")):
            if event == "asked":
                request_rollback(log, 0)
            else:
                assert 2 in lineage_of(log).versions
                append_groups(log, TRANSITIONS, [group_bytes(2, version=2), group_bytes(3, version=2)])
        return original(self)

    monkeypatch.setattr(TransitionsReader, "next", waiting)
    train(log, config_of(untied, tmp_path, steps=2))
    last = steps_of(log)[-1]
    assert (last.step, last.version, last.excluded_ids, last.staleness_max) == (2, 3, {}, 0)


def test_lost_checkpoints_are_refused(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Starting over would publish other content under numbers that engines know."""
    train(log, config_of(untied, tmp_path / "a"))
    with pytest.raises(ConfigurationError, match="start a new run"):
        train(log, config_of(untied, tmp_path / "b"))


def test_settings_that_changed_between_starts_are_said(
    log: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The run goes on with the new ones; its curve has a reason on record. Equal ones are no news."""
    train(log, config_of(untied, tmp_path, steps=1))
    train(log, config_of(untied, tmp_path, steps=2))
    assert "changed since" not in caplog.text
    train(log, config_of(untied, tmp_path, steps=3, lr=1e-4, dtype="bfloat16", aggregation="constant"))
    for told in ("lr 0.0005 -> 0.0001", "dtype float32 -> bfloat16", "aggregation token_mean -> constant"):
        assert told in caplog.text


def test_checkpoints_of_another_run_are_refused(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Two runs in one folder would overwrite each other."""
    train(log, config_of(untied, tmp_path, steps=1))
    with pytest.raises(ConfigurationError, match="folder of its own"):
        train(log_of(), config_of(untied, tmp_path, run=OTHER_RUN))
