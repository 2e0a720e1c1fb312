"""Who may publish: epochs, voided versions, rollbacks, and checkpoints that are another's or gone."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from tests.memory_log import MemoryLog
from tests.trainer.looping import (
    STEPS,
    TOPICS,
    WEIGHTS_TOPIC,
    config_of,
    content,
    lineage_of,
    steps_of,
    train,
)
from tests.versions import OTHER_RUN, RUN, claim, label
from tracegrad.schemas.errors import ConfigurationError, FencedError
from tracegrad.schemas.records.weights import WEIGHTS, RollbackRequest
from tracegrad.trainer.store.publish import Publisher

pytestmark = pytest.mark.torch


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


def request_rollback(log: MemoryLog, version: int) -> None:
    """As `weights rollback` does."""
    request = RollbackRequest(policy="policy", run=RUN, to_version=version, requested_by="test")
    log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(request), partition=0)


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_rollback_publishes_old_content_under_a_new_number(
    lora_rank: int | None, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """And training goes on from it; a request is executed once, also across restarts."""
    config = config_of(untied, tmp_path, steps=2, lora_rank=lora_rank)
    train(log, config)
    request_rollback(log, 1)
    request_rollback(log, 40)
    train(log, config_of(untied, tmp_path, steps=3, lora_rank=lora_rank))
    train(log, config_of(untied, tmp_path, steps=4, lora_rank=lora_rank))
    versions, found = lineage_of(log).versions, content(log)
    assert sorted(versions) == [0, 1, 2, 3, 4, 5]
    assert versions[3].base_version == 1
    assert all(torch.equal(found[3][name], found[1][name]) for name in found[1])
    assert [step.version for step in steps_of(log)] == [1, 2, 4, 5]


def test_lost_checkpoints_are_refused(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Starting over would publish other content under numbers that engines know."""
    train(log, config_of(untied, tmp_path / "a"))
    with pytest.raises(ConfigurationError, match="start a new run"):
        train(log, config_of(untied, tmp_path / "b"))


def test_checkpoints_of_another_run_are_refused(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Two runs in one folder would overwrite each other."""
    train(log, config_of(untied, tmp_path, steps=1))
    other = MemoryLog()
    other.create_topics(TOPICS, policies=["policy"])
    with pytest.raises(ConfigurationError, match="folder of its own"):
        train(other, config_of(untied, tmp_path, run=OTHER_RUN))
