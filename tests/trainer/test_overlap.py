"""Files are written while the next step computes: what is told when, and what a kill at any point leaves."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import (
    WEIGHTS_TOPIC,
    Killed,
    after_each_step,
    audited,
    config_of,
    content,
    is_same,
    killed_in,
    lineage_of,
    log_of,
    new_log,
    request_rollback,
    steps_of,
    stopped_after,
    train,
)
from tests.versions import RUN
from tracegrad.schemas.beat import Beat, kept
from tracegrad.schemas.errors import FencedError
from tracegrad.schemas.records.training import TRAINING_STEPS, TrainingStep, surviving_steps
from tracegrad.schemas.records.weights import WEIGHTS, EpochClaim, VersionManifest
from tracegrad.schemas.topics import Topic
from tracegrad.trainer import loop
from tracegrad.trainer.store import checkpoint, snapshot
from tracegrad.trainer.store.durable import describe_files
from tracegrad.trainer.store.policy_log import PolicyLog
from tracegrad.trainer.store.publish import Versions
from tracegrad.trainer.store.store import Store
from tracegrad.trainer.store.tensor_file import write_tensors

pytestmark = pytest.mark.torch

STEPS = 5
"""Of which the last is stored by the loop itself."""
EVERY: dict[str, int] = {}
"""`checkpoint_every` of the test's run, by its folder."""


@pytest.fixture(autouse=True)
def told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[str]]:
    """What the trainer tells, in order: by its own thread, and of durable files alone."""
    append, said = PolicyLog._append, list[str]()
    loops = threading.get_ident()

    def watched(self: PolicyLog, topic: Topic, value: bytes) -> Any:
        assert threading.get_ident() == loops
        if topic is Topic.WEIGHTS and isinstance(record := WEIGHTS.decode(value), VersionManifest):
            assert describe_files(Path(record.uri)) == record.files
            said.append(f"version {record.version}")
        if topic is Topic.TRAINING_STEPS and isinstance(step := TRAINING_STEPS.decode(value), TrainingStep):
            every = EVERY.get(str(tmp_path), 1)
            if step.step % every == 0:
                assert list((tmp_path / "checkpoints").glob(f"step-{step.step:08d}-*"))
            if step.num_unpublished == 0 and step.is_updated:
                assert step.version in self.lineage.versions
            said.append(f"step {step.step}")
        return append(self, topic, value)

    monkeypatch.setattr(PolicyLog, "_append", watched)
    yield said
    EVERY.clear()


def settings(model: Path, work_dir: Path, **changes: Any) -> Any:
    """Of a run that keeps all checkpoints."""
    EVERY[str(work_dir)] = changes.get("checkpoint_every", 1)
    return config_of(model, work_dir, **{"steps": STEPS, "keep_checkpoints": 99, **changes})


def half_a_file(path: Path, *args: Any, **named: Any) -> Any:
    """Of the second checkpoint that a thread writes."""
    if threading.current_thread() is not threading.main_thread() and "-00000002-" in str(path):
        path.write_bytes(b"half")
        raise Killed
    return write_tensors(path, *args, **named)


def unacknowledged(self: PolicyLog, topic: Topic, value: bytes) -> Any:
    """The manifest of version 2 reaches the log, and nobody hears of it."""
    position = appender(self, topic, value)
    if topic is Topic.WEIGHTS and isinstance(one := WEIGHTS.decode(value), VersionManifest) and one.version == 2:
        raise Killed
    return position


appender = PolicyLog._append

SEAMS: dict[str, tuple[Any, str, int, bool] | tuple[Any, str, Any]] = {
    "snapshot taken": (Store, "_write", 4, False),
    "half a file": (checkpoint, "write_tensors", half_a_file),
    "checkpoint renamed": (Versions, "write", 3, False),
    "version renamed": (Versions, "write", 3, True),
    "manifest sent and not acknowledged": (PolicyLog, "_append", unacknowledged),
    "record not sent": (PolicyLog, "training_step", 2, False),
}
"""All of step 2, stored while step 3 computes; the loop itself writes the checkpoint and the version before step 1."""


@pytest.fixture(scope="module")
def undisturbed(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """Of a run that writes before it goes on."""
    log = new_log()
    train(log, config_of(untied, tmp_path_factory.mktemp("undisturbed"), steps=STEPS))
    return log


def consumed_once(log: MemoryLog) -> None:
    """Each group in one surviving step, in the order of the log."""
    steps = surviving_steps(steps_of(log))
    assert [step.step for step in steps] == [*range(1, STEPS + 1)]
    ids = [group for step in steps for group in step.taken_ids]
    assert len(ids) == len(set(ids)) == steps[-1].accounting.consumed
    assert [step.begin_offset for step in steps[1:]] == [step.next_offset for step in steps[:-1]]
    assert audited(log) == []


@pytest.mark.parametrize("lr", [5e-4, 1e-3], ids=["equal", "unequal"])
@pytest.mark.parametrize(
    ("seam", "every"),
    # With a checkpoint each third step, step 2 has none of which half could be written.
    [(seam, every) for seam in SEAMS for every in (1, 3) if (seam, every) != ("half a file", 3)],
)
def test_killed_while_it_stores_it_goes_on_and_trains_each_group_once(
    seam: str, lr: float, every: int, undisturbed: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """With the weights of a run that nobody killed, or, where the replay learns otherwise, under other numbers."""
    log, point = new_log(), SEAMS[seam]
    given = settings(untied, tmp_path, checkpoint_every=every)
    if len(point) == 4:
        with killed_in(point[0], point[1], call=point[2], is_after=point[3]):
            train(log, given, overlaps=True)
    else:
        with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
            patch.setattr(*point)
            train(log, given, overlaps=True)
    assert surviving_steps(steps_of(log))[-1].step == 1
    known = content(log)
    train(log, settings(untied, tmp_path, checkpoint_every=every, lr=lr), overlaps=True)
    consumed_once(log)
    found = content(log)
    assert is_same({number: found[number] for number in known}, known)
    if lr == 5e-4:
        assert is_same(found, content(undisturbed))
        assert [(s.step, s.version, s.loss) for s in surviving_steps(steps_of(log))] == [
            (s.step, s.version, s.loss) for s in steps_of(undisturbed)
        ]


def test_the_next_step_computes_while_files_are_written(
    undisturbed: MemoryLog, told: list[str], untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Bit for bit as if it had waited; each version and step is told in order."""
    write, learn, learning = Versions.write, loop.Trainer._learn, threading.Event()

    def written(self: Versions, version: Any) -> Any:
        assert version.manifest.version != 1 or learning.wait(60), "the loop waited for the files"
        return write(self, version)

    def learnt(self: loop.Trainer, batch: Any) -> Any:
        if self.state.step == 1:
            assert told == ["version 0"]
            learning.set()
        return learn(self, batch)

    monkeypatch.setattr(Versions, "write", written)
    monkeypatch.setattr(loop.Trainer, "_learn", learnt)
    log = new_log()
    train(log, settings(untied, tmp_path), overlaps=True)
    assert told == ["version 0", *(f"{what} {n}" for n in range(1, STEPS + 1) for what in ("version", "step"))]
    assert is_same(content(log), content(undisturbed))
    assert [step.loss for step in steps_of(log)] == [step.loss for step in steps_of(undisturbed)]


def test_steps_without_files_are_told_behind_those_that_are_written(
    told: list[str], untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And wait for none: version 1 is written until step 4, which leads to the next one, has been computed."""
    write, after, computed = Versions.write, Versions.after, threading.Event()

    def written(self: Versions, version: Any) -> Any:
        assert version.manifest.version != 1 or computed.wait(60), "the loop waited for the files"
        return write(self, version)

    def led_to(self: Versions, *args: Any, **named: Any) -> Any:
        if self.state.step == 3:
            computed.set()
        return after(self, *args, **named)

    monkeypatch.setattr(Versions, "write", written)
    monkeypatch.setattr(Versions, "after", led_to)
    log = new_log()
    train(log, settings(untied, tmp_path, publish=2, checkpoint_every=9), overlaps=True)
    assert told[:5] == ["version 0", "step 1", "version 1", "step 2", "step 3"]
    assert max(step.staleness_max for step in steps_of(log)) == 2
    consumed_once(log)


def test_who_waits_for_groups_tells_what_is_stored_first(told: list[str], untied: Path, tmp_path: Path) -> None:
    """Else the groups would never come: nobody would know that the last ones are trained."""
    stop = threading.Event()
    tell = PolicyLog.training_step

    def stopping(self: PolicyLog, encoded: bytes) -> None:
        tell(self, encoded)
        stop.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PolicyLog, "training_step", stopping)
        train(log_of([group_bytes(0), group_bytes(1)]), settings(untied, tmp_path), stop, overlaps=True)
    assert told == ["version 0", "version 1", "step 1"]


def test_a_stop_leaves_nothing_untold(told: list[str], untied: Path, tmp_path: Path) -> None:
    """Of the last step there is a checkpoint, its version and its record."""
    with stopped_after(2) as stop:
        train(new_log(), settings(untied, tmp_path, checkpoint_every=9), stop, overlaps=True)
    assert told == ["version 0", "version 1", "step 1", "version 2", "step 2"]
    assert list((tmp_path / "checkpoints").glob("step-00000002-*"))


def test_what_ends_the_thread_ends_the_trainer(
    told: list[str], untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it would in the loop; of the step whose files are missing nothing is told."""
    write = Versions.write

    def full(self: Versions, version: Any) -> Any:
        if version.manifest.version == 1:
            raise OSError("disk full")
        return write(self, version)

    monkeypatch.setattr(Versions, "write", full)
    with pytest.raises(OSError, match="disk full"):
        train(new_log(), settings(untied, tmp_path), overlaps=True)
    assert told == ["version 0"]


def test_a_rollback_comes_behind_the_version_that_is_being_written(untied: Path, tmp_path: Path) -> None:
    """It takes the next number, and old weights; the one before it is announced as any."""
    log = new_log()
    with after_each_step(lambda step: request_rollback(log, 1) if step.step == 2 else None):
        train(log, settings(untied, tmp_path), overlaps=True)
    made = [WEIGHTS.decode(record.value) for record in log.records(WEIGHTS_TOPIC)]
    manifests = [(one.version, one.base_version, one.step) for one in made if isinstance(one, VersionManifest)]
    assert manifests == [(0, 0, 0), (1, 0, 1), (2, 1, 2), (3, 1, 2), (4, 3, 3), (5, 4, 4), (6, 5, 5)]
    assert lineage_of(log).versions[3].weights == lineage_of(log).versions[1].weights
    consumed_once(log)


@pytest.mark.parametrize(
    ("device", "is_synchronous", "is_repeat", "expected"),
    [
        ("cpu", False, False, False),
        ("cuda", False, False, True),
        ("cuda", True, False, False),
        ("cuda", False, True, False),
    ],
)
def test_on_a_cpu_or_where_each_batch_waits_nothing_overlaps(
    device: str, is_synchronous: bool, is_repeat: bool, expected: bool
) -> None:
    """Nor in a replay that compares each version with its source's."""
    versions: Any = SimpleNamespace(
        progress=None,
        policy_log=None,
        learner=SimpleNamespace(settings={"device": device}),
        handles=SimpleNamespace(is_synchronous=is_synchronous),
        source=SimpleNamespace(is_repeat=is_repeat),
    )
    none: Any = None
    assert Store(versions, none, none, None).overlaps is expected


def test_a_step_whose_files_were_written_after_another_trainers_claim_is_not_told(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where no version's manifest, which is read back, stands before its record."""
    log, finish = new_log(), Store.finish

    def overtaken(self: Store, *, waits: bool = True) -> None:
        if self._writing is not None and (waits or self._writing.done()):
            claim = EpochClaim(policy="policy", run=RUN, epoch=9, trainer_id="another")
            append_groups(log, WEIGHTS_TOPIC, [WEIGHTS.encode(claim)])
        finish(self, waits=waits)

    monkeypatch.setattr(Store, "finish", overtaken)
    with pytest.raises(FencedError):
        train(log, settings(untied, tmp_path, publish=4), overlaps=True)
    assert not steps_of(log)


def test_copies_that_do_not_fit_memory_are_not_made(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop writes, as without a second thread."""
    monkeypatch.setattr(snapshot, "_available_bytes", lambda: 0)
    monkeypatch.setattr(Store, "_begin", None)
    log = new_log()
    train(log, settings(untied, tmp_path), overlaps=True)
    consumed_once(log)


def test_waiting_for_the_thread_promises_a_beat(untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour at first; a disk that hangs is seen in the end."""
    write, waiting, beats = Versions.write, threading.Event(), list[Beat]()

    def keep(told: Beat) -> None:
        beats.append(told)
        if told.doing == "storing":
            waiting.set()

    def written(self: Versions, version: Any) -> Any:
        assert version.manifest.version != 1 or waiting.wait(60)
        return write(self, version)

    monkeypatch.setattr(Versions, "write", written)
    with kept(keep):
        train(new_log(), settings(untied, tmp_path, steps=2), overlaps=True)
    storing = [beat for beat in beats if beat.doing == "storing"]
    assert 3000.0 < storing[0].within_s <= 3600.0
