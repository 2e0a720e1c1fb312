"""The loop with `[algorithm] refill`: what is given back is told while it waits, and exactly once consumed."""

from __future__ import annotations

import contextlib
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.serving import Background, until
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import (
    STEPS,
    TRANSITIONS,
    Killed,
    config_of,
    content,
    is_same,
    killed_in,
    log_of,
    request_rollback,
    steps_of,
    train,
)
from tests.versions import RUN
from tracegrad.producers.tasks.admission_state import AdmissionState
from tracegrad.schemas.records.training import TRAINING_STEPS, GroupsGivenBack, surviving_steps
from tracegrad.trainer import loop
from tracegrad.trainer.source import LiveSource
from tracegrad.trainer.store.publish import Versions

pytestmark = pytest.mark.torch

REFILL: dict[str, Any] = {"steps": 2, "selection": "spread", "refill": 10}
USEFUL = (0, 4, 5, 8)
"""Of the groups below; two of them are a batch."""


def group(index: int) -> bytes:
    """One with spread, or without."""
    return group_bytes(index, spread=float(index in USEFUL))


def gid(index: int) -> str:
    """Its id."""
    return f"{index:024x}"


def words(log: MemoryLog) -> list[tuple[int, int, int, tuple[str, ...]]]:
    """What was given back, as told: epoch, step, consumed, ids."""
    records = [TRAINING_STEPS.decode(record.value) for record in log.records(STEPS)]
    given = [record for record in records if isinstance(record, GroupsGivenBack)]
    return [(word.epoch, word.step, word.consumed, word.group_ids) for word in given]


def timeless(log: MemoryLog) -> list[Any]:
    """The surviving steps without clock and epoch."""
    steps = surviving_steps(steps_of(log))
    return [msgspec.structs.replace(s, seconds={}, started_at_ms=0, ended_at_ms=0, epoch=0) for s in steps]


@pytest.fixture
def log() -> MemoryLog:
    """Nothing has come yet."""
    return log_of()


@pytest.fixture
def undisturbed(untied: Path, tmp_path: Path) -> MemoryLog:
    """All groups lie there before the trainer begins."""
    log = log_of([group(i) for i in range(9)])
    train(log, config_of(untied, tmp_path / "undisturbed", **REFILL))
    return log


def test_a_batch_goes_on_to_its_gth_group_with_spread(undisturbed: MemoryLog) -> None:
    """The others are excluded as they are, and none need be given back where nobody waits."""
    steps = steps_of(undisturbed)
    assert [(step.begin_offset, step.next_offset) for step in steps] == [(0, 5), (5, 9)]
    assert [step.group_ids for step in steps] == [(gid(0), gid(4)), (gid(5), gid(8))]
    assert [step.excluded_ids for step in steps] == [
        dict.fromkeys(map(gid, (1, 2, 3)), "no_spread"),
        dict.fromkeys(map(gid, (6, 7)), "no_spread"),
    ]
    accounting = steps[-1].accounting
    assert (accounting.consumed, accounting.trained, accounting.excluded) == (9, 4, {"no_spread": 5})
    assert words(undisturbed) == []


def test_what_is_given_back_is_told_as_it_happens(
    undisturbed: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Cumulative, before the batch ends; the batches are the same as if nobody had waited."""
    num_told = 0
    with Background(lambda stop: train(log, config_of(untied, tmp_path, **REFILL), stop)):
        for index in range(9):
            append_groups(log, TRANSITIONS, [group(index)])
            if index not in USEFUL:
                num_told += 1
                until(lambda: len(words(log)) == num_told)  # noqa: B023
        until(lambda: len(steps_of(log)) == 2)
    told = [(step, consumed, ids) for _, step, consumed, ids in words(log)]
    assert told == [
        (1, 1, (gid(1),)),
        (1, 2, (gid(1), gid(2))),
        (1, 3, (gid(1), gid(2), gid(3))),
        (2, 6, (gid(6),)),
        (2, 7, (gid(6), gid(7))),
    ]
    assert timeless(log) == timeless(undisturbed)
    assert is_same(content(log), content(undisturbed))


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize(
    ("owner", "name"), [(LiveSource, "_give_back"), (loop.Trainer, "_learn"), (Versions, "announce")]
)
def test_a_killed_trainer_gives_back_the_same_and_trains_the_same(
    owner: Any,
    name: str,
    every: int,
    undisturbed: MemoryLog,
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Killed after each word, before each step and after each version; it repeats its word under its new epoch."""
    config = config_of(untied, tmp_path / "killed", checkpoint_every=every, **REFILL)
    original, died = getattr(owner, name), set()

    def killed(*args: Any, **named: Any) -> Any:
        result = original(*args, **named)
        if (num_records := len(log.records(STEPS))) not in died:
            died.add(num_records)
            raise Killed
        return result

    for index in range(9):
        append_groups(log, TRANSITIONS, [group(index)])
        stop = threading.Event()
        with monkeypatch.context() as patch, contextlib.suppress(Killed):
            patch.setattr(owner, name, killed)
            patch.setattr(LiveSource, "_tell_taken", lambda *_, stop=stop: stop.set())
            train(log, config, stop)
    train(log, config)
    assert timeless(log) == timeless(undisturbed)
    assert is_same(content(log), content(undisturbed))
    told = words(log)
    for _, step, consumed, ids in told:
        before, all_ids = {1: (0, (1, 2, 3)), 2: (5, (6, 7))}[step]
        assert ids == tuple(map(gid, all_ids))[: len(ids)]
        assert consumed == before + len(ids)
    assert {(step, len(ids)) for _, step, _, ids in told} == {(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)}
    assert len({epoch for epoch, *_ in told}) > 3


def test_a_batch_that_finds_too_little_spread_closes_and_says_so(
    log: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At refill * G groups: with the one that it has, or none."""
    append_groups(log, TRANSITIONS, [group(index) for index in (0, 1, 2, 3, 6, 7, 9, 10)])
    train(log, config_of(untied, tmp_path, **REFILL | {"refill": 2}))
    steps = steps_of(log)
    assert [(step.next_offset, step.group_ids, step.skipped) for step in steps] == [
        (4, (gid(0),), ""),
        (8, (), "no_tokens"),
    ]
    assert "step 1: 1 groups of 4 have spread" in caplog.text
    assert "step 2: 0 groups of 4 have spread" in caplog.text


@pytest.mark.parametrize(("refill", "ends"), [(1, (2, 4)), (2, (4, 6)), (99, (5, 9))])
def test_a_start_with_another_refill_consumes_each_group_once(
    refill: int, ends: tuple[int, int], log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Three were given back when it was killed; tasks goes by what the batches consumed in the end."""
    append_groups(log, TRANSITIONS, [group(index) for index in range(4)])
    with killed_in(LiveSource, "_give_back", is_after=True):
        train(log, config_of(untied, tmp_path, **REFILL))
    append_groups(log, TRANSITIONS, [group(index) for index in range(4, 9)])
    train(log, config_of(untied, tmp_path, **REFILL | {"refill": refill}))
    steps = steps_of(log)
    assert [(step.begin_offset, step.next_offset) for step in steps] == [(0, ends[0]), ends]
    named = [id_ for step in steps for id_ in (*step.group_ids, *step.excluded_ids)]
    assert sorted(named) == [gid(index) for index in range(ends[1])]
    state = AdmissionState(RUN, "policy", ["engine-0"])
    for record in log.records(STEPS):
        state.fold(TRAINING_STEPS.decode(record.value))
    assert (state.progress().step, state.progress().consumed) == (2, len(named))


def test_a_rollback_while_it_waits_moves_no_interval(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Its groups are older than the new version, by one."""
    with Background(lambda stop: train(log, config_of(untied, tmp_path, **REFILL), stop)):
        append_groups(log, TRANSITIONS, [group(0), group(1)])
        until(lambda: len(words(log)) == 1)
        request_rollback(log, 0)
        append_groups(log, TRANSITIONS, [group(4), group(5), group(8)])
        until(lambda: len(steps_of(log)) == 2)
    first, second = steps_of(log)
    assert [(step.begin_offset, step.next_offset) for step in (first, second)] == [(0, 3), (3, 5)]
    assert first.excluded_ids == {gid(1): "no_spread"}
