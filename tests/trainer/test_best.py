"""The best version is kept: what held-out passes say on `weights` outlives restarts, copies and rollbacks."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.run_loop import (
    WEIGHTS_TOPIC,
    Killed,
    config_of,
    lineage_of,
    request_rollback,
    steps_of,
    train,
)
from tests.versions import held_out
from tracegrad.schemas.records.held_out import HeldOutPass
from tracegrad.schemas.records.versions import parse_label
from tracegrad.schemas.records.weights import WEIGHTS, VersionManifest
from tracegrad.trainer.store.policy_log import PolicyLog
from tracegrad.trainer.store.publish import UnwrittenVersion, Versions

pytestmark = pytest.mark.torch

SAID: dict[int, list[HeldOutPass]] = {
    1: [held_out(0, since=1)],
    3: [held_out(0, 0.5, version=1, since=1)],
    4: [held_out(1, since=4)],
    5: [held_out(1, 0.9, version=4, since=4)],
}
"""Version -> what tasks says once it is published."""
KEPT = {0: [0], 1: [0, 1], 2: [0, 1, 2], 3: [0, 1, 2, 3], 4: [0, 1, 4], 5: [0, 1, 4, 5], 6: [0, 4, 6]}
"""Version -> the folders then, with `keep_versions = 1`: the newest, the best so far, and what a pass may yet score."""


def say(log: MemoryLog, words: list[HeldOutPass]) -> None:
    """As tasks does."""
    for word in words:
        log.writer().append(WEIGHTS_TOPIC, key=b"policy", value=WEIGHTS.encode(word), partition=0)


def folders(work_dir: Path) -> list[int]:
    """The versions that lie there, of whichever epoch."""
    found = (parse_label(path.name) for path in (work_dir / "weights").glob("*"))
    return sorted({version.version for version in found if version is not None})


@pytest.fixture
def publishing(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> list[Callable[[int, str], None]]:
    """Called with each version before and after it is published; after it, tasks says what it has to say."""
    write, announce, said, hooks = Versions.write, Versions.announce, dict(SAID), list[Callable[[int, str], None]]()

    def written(self: Versions, version: UnwrittenVersion) -> VersionManifest:
        for hook in hooks:
            hook(version.manifest.version, "before")
        return write(self, version)

    def announced(self: Versions, manifest: VersionManifest) -> None:
        announce(self, manifest)
        say(log, said.pop(manifest.version, []))
        for hook in hooks:
            hook(manifest.version, "after")

    monkeypatch.setattr(Versions, "write", written)
    monkeypatch.setattr(Versions, "announce", announced)
    return hooks


def test_the_best_version_and_what_may_become_it_are_kept(
    log: MemoryLog, untied: Path, tmp_path: Path, publishing: list[Callable[[int, str], None]]
) -> None:
    """Step by step; one that is the best no longer goes with the next version."""
    seen: dict[int, list[int]] = {}
    publishing.append(lambda version, _: seen.update({version: folders(tmp_path)}))
    train(log, config_of(untied, tmp_path, steps=6, keep_versions=1))
    assert seen == KEPT


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("doomed", [1, 3, 4, 5])
@pytest.mark.parametrize("every", [1, 3])
def test_kills_and_copies_change_nothing(
    doomed: int,
    moment: str,
    every: int,
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
    publishing: list[Callable[[int, str], None]],
) -> None:
    """A trainer that begins anew, from an older checkpoint too, knows the passes from the log; said again, nothing."""
    config = config_of(untied, tmp_path, steps=6, keep_versions=1, checkpoint_every=every)
    is_alive = True

    def kill(version: int, when: str) -> None:
        nonlocal is_alive
        if is_alive and (version, when) == (doomed, moment):
            is_alive = False
            raise Killed

    publishing.append(kill)
    with pytest.raises(Killed):
        train(log, config)
    for record in [*log.records(WEIGHTS_TOPIC)]:
        if isinstance(word := WEIGHTS.decode(record.value), HeldOutPass):
            say(log, [word, held_out(word.number, 1.0, version=2)] if word.score else [word])
    train(log, config)
    assert [step.step for step in steps_of(log)][-1] == 6
    assert folders(tmp_path) == KEPT[6]


@pytest.mark.parametrize("lora_rank", [None, 4], ids=["full", "lora"])
def test_a_rollback_reaches_the_best_version(
    lora_rank: int | None,
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
    publishing: list[Callable[[int, str], None]],
) -> None:
    """However old; the number that then has its content is another, and the best stays what was scored."""
    train(log, config_of(untied, tmp_path, steps=5, keep_versions=1, lora_rank=lora_rank))
    request_rollback(log, 4)
    for _ in range(2):
        train(log, config_of(untied, tmp_path, steps=6, keep_versions=1, lora_rank=lora_rank))
    versions = lineage_of(log).versions
    weights = {number: {file.name: file.sha256 for file in one.files} for number, one in versions.items()}
    assert (max(versions), versions[6].base_version) == (7, 4)
    assert weights[6] == weights[4] != weights[5]
    assert folders(tmp_path) == [0, 4, 7]


@pytest.mark.parametrize("is_stopped", [False, True])
def test_the_first_step_waits_for_a_held_out_pass_that_began_before_it(
    is_stopped: bool, log: MemoryLog, untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though its groups are there, as those of traffic are: the score before training is that of version 0. The pass
    after the first step holds up nothing; who is told to stop meanwhile has trained nothing."""
    look, wait, stop = PolicyLog.look, PolicyLog.await_score, threading.Event()
    looks: list[int] = []

    def looked(self: PolicyLog) -> None:
        looks.append(len(steps_of(log)))
        if len(looks) == 5:
            stop.set() if is_stopped else say(log, [held_out(0, 0.5, version=0), held_out(1, since=1)])
        look(self)

    def waited(self: PolicyLog, told: threading.Event) -> bool:
        with monkeypatch.context() as patched:
            patched.setattr(PolicyLog, "look", looked)
            return wait(self, told)

    monkeypatch.setattr(PolicyLog, "await_score", waited)
    say(log, [held_out(0)])
    train(log, config_of(untied, tmp_path), stop)
    assert looks[:5] == [0] * 5 and len(looks) < 8
    assert [step.step for step in steps_of(log)] == ([] if is_stopped else [1, 2, 3, 4])
