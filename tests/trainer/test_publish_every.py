"""Versions every so many updates: what is published, what is told between two, and what a restart makes of it."""

from __future__ import annotations

import contextlib
import logging
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.memory_log import MemoryLog
from tests.trainer.material import group_bytes
from tests.trainer.run_loop import (
    Killed,
    after_each_step,
    audited,
    config_of,
    content,
    is_same,
    killed_in,
    lineage_of,
    log_of,
    lose_checkpoints,
    new_log,
    request_rollback,
    steps_of,
    stopped_after,
    train,
)
from tests.versions import label
from tracegrad.schemas.records.training import TrainingStep, surviving_steps
from tracegrad.trainer import loop
from tracegrad.trainer.store.publish import Versions
from tracegrad.trainer.store.store import Store

pytestmark = pytest.mark.torch

EVERY = 2
"""Five steps then lead to versions after the second, the fourth and, because it is the last, the fifth."""


@pytest.fixture(autouse=True)
def _audited(log: MemoryLog) -> Iterator[None]:
    """Whatever happens: to the audit each step and each version fits the others."""
    yield
    assert audited(log) == []


@pytest.fixture(scope="module")
def each(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """A run of five steps with a version after each: its number is the step's."""
    log = new_log()
    train(log, config_of(untied, tmp_path_factory.mktemp("each"), steps=5))
    return log


def told(log: MemoryLog) -> list[tuple[int, int, int]]:
    """Step, version after it, updates that no version holds; of the steps that survive."""
    return [(step.step, step.version, step.num_unpublished) for step in surviving_steps(steps_of(log))]


def made_of(log: MemoryLog) -> dict[int, int]:
    """Version -> the step after which it was published."""
    return {number: manifest.step for number, manifest in lineage_of(log).versions.items()}


def log_with(spreads: str) -> MemoryLog:
    """A batch of two for each letter: `u` gives an update, `s` is skipped."""
    return log_of([group_bytes(at, spread=float(spreads[at // 2] == "u")) for at in range(2 * len(spreads))])


def test_every_second_update_leads_to_a_version_and_the_last_step(
    each: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Each step learns the same as if all were published: a version has the weights that its step had."""
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY))
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 3, 0)]
    versions = lineage_of(log).versions
    assert [(one.step, one.base_version) for _, one in sorted(versions.items())] == [(0, 0), (2, 0), (4, 1), (5, 2)]
    found, expected = content(log), content(each)
    assert is_same(found, {number: expected[step] for number, step in made_of(log).items()})
    assert [step.loss for step in steps_of(log)] == [step.loss for step in steps_of(each)]
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY))
    assert len(steps_of(log)) == 5 and sorted(lineage_of(log).versions) == [0, 1, 2, 3]


def test_the_samplers_logprobs_are_compared_with_a_versions_own_weights_alone(
    log: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All tokens are of version 0; the second step starts from later weights, under which they differ by right."""
    monkeypatch.setattr("tracegrad.trainer.step_figures.LOGPROB_ERROR_BOUND", 1e-6)
    train(log, config_of(untied, tmp_path, steps=3, publish=3))
    assert [bool(step.num_checked_tokens) for step in steps_of(log)] == [True, False, False]
    assert [step.staleness_max for step in steps_of(log)] == [0, 0, 0]
    assert caplog.text.count("sampler and trainer differ") == 1


@pytest.mark.parametrize(
    ("batches", "expected"),
    [
        ("usuus", [(1, 0, 1), (2, 0, 1), (3, 1, 0), (4, 1, 1), (5, 2, 0)]),
        ("sssss", [(1, 0, 0), (2, 0, 0), (3, 0, 0), (4, 0, 0), (5, 0, 0)]),
        ("uusss", [(1, 0, 1), (2, 1, 0), (3, 1, 0), (4, 1, 0), (5, 1, 0)]),
    ],
)
def test_a_step_without_an_update_counts_for_none(
    batches: str, expected: list[tuple[int, int, int]], untied: Path, tmp_path: Path
) -> None:
    """The last step leads to a version even so, if updates before it are in none."""
    log = log_with(batches)
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY))
    assert told(log) == expected
    assert audited(log) == []


SEAMS: dict[str, tuple[type, str, bool]] = {
    "before the step": (loop.Trainer, "_learn", True),
    "after the step": (loop.Trainer, "_learn", False),
    "after the checkpoint": (Store, "_write", False),
    "between checkpoint and publish": (Versions, "write", True),
    "between manifest and training_step": (Versions, "announce", False),
    "after all": (loop.Trainer, "_say", True),
}
AT_STEP = {
    2: [seam for seam in SEAMS if seam != "after the checkpoint"],
    3: [seam for seam, (_, name, _) in SEAMS.items() if name not in ("write", "announce")],
    5: ["between checkpoint and publish", "between manifest and training_step"],
}
"""The second leads to a version, the third to none and to a checkpoint in any case, the last to a version of one."""


@pytest.mark.parametrize("checkpoint_every", [1, 3])
@pytest.mark.parametrize(("seam", "step"), [(seam, step) for step, seams in AT_STEP.items() for seam in seams])
def test_killed_at_any_seam_it_goes_on_bit_for_bit(
    seam: str, step: int, checkpoint_every: int, each: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Around steps that lead to a version, and one that leads to none."""
    owner, name, is_before = SEAMS[seam]
    config = config_of(untied, tmp_path, steps=5, publish=EVERY, checkpoint_every=checkpoint_every)
    with killed_in(owner, name, step=step - (name == "_learn"), is_after=not is_before):
        train(log, config)
    train(log, config)
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 3, 0)]
    expected = content(each)
    assert is_same(content(log), {number: expected[step] for number, step in made_of(log).items()})
    assert [one.loss for one in surviving_steps(steps_of(log))] == [one.loss for one in steps_of(each)]


def test_a_stop_between_two_versions_publishes_nothing(
    each: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """The next start goes on from the checkpoint; when a person stops it changes no number."""
    for _ in range(5):
        with stopped_after() as stop:
            train(log, config_of(untied, tmp_path, steps=5, publish=EVERY), stop)
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 3, 0)]
    assert [one.epoch for _, one in sorted(lineage_of(log).versions.items())] == [1, 2, 4, 5]
    assert torch.equal(content(log)[3]["lm_head.weight"], content(each)[5]["lm_head.weight"])


def test_more_steps_go_on_after_the_version_of_the_last_one(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """From which the updates are counted anew."""
    train(log, config_of(untied, tmp_path, steps=3, publish=EVERY))
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY))
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 2, 0), (4, 2, 1), (5, 3, 0)]


def test_fewer_steps_than_are_done_publish_the_rest(
    each: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """A run that is over leaves nothing unpublished; the last step is told anew, once."""
    with stopped_after(3) as stop:
        train(log, config_of(untied, tmp_path, steps=9, publish=EVERY), stop)
    for _ in range(2):
        train(log, config_of(untied, tmp_path, steps=3, publish=EVERY))
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 2, 0)]
    assert len(steps_of(log)) == 4
    assert torch.equal(content(log)[2]["lm_head.weight"], content(each)[3]["lm_head.weight"])


def test_a_rollback_drops_what_no_version_holds(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Also one to the present version: old content under a new number, from which updates are counted anew."""
    asked = {3: 1, 4: 0}
    with after_each_step(lambda step: request_rollback(log, asked.pop(step.step)) if step.step in asked else None):
        train(log, config_of(untied, tmp_path, steps=6, publish=EVERY))
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 1), (5, 3, 1), (6, 4, 0)]
    versions, found = lineage_of(log).versions, content(log)
    assert [(n, one.step, one.base_version) for n, one in sorted(versions.items())][2:] == [
        (2, 3, 1), (3, 4, 0), (4, 6, 3),
    ]  # fmt: skip
    assert is_same({0: found[2], 1: found[3]}, {0: found[1], 1: found[0]})


@pytest.mark.parametrize(("checkpoint_every", "kill"), [(1, ""), (9, ""), (1, "before"), (1, "after")])
def test_a_damaged_newest_version_is_followed_by_one_of_the_present_weights(
    checkpoint_every: int, kill: str, each: MemoryLog, log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Its own are gone, and no number may have two contents: the last step leads to the next number, and says so; also
    where the trainer is killed as it publishes it."""
    given: dict[str, Any] = {"steps": 5, "publish": EVERY, "checkpoint_every": checkpoint_every}
    with stopped_after(3) as stop:
        train(log, config_of(untied, tmp_path, **given), stop)
    shutil.rmtree(lineage_of(log).versions[1].uri)
    if kill:
        with killed_in(Versions, "announce" if kill == "after" else "write", is_after=kill == "after"):
            train(log, config_of(untied, tmp_path, **given))
    train(log, config_of(untied, tmp_path, **given))
    assert told(log) == [(1, 0, 1), (2, 1, 0), (3, 2, 0), (4, 2, 1), (5, 3, 0)]
    newer = {number: manifest for number, manifest in lineage_of(log).versions.items() if number > 1}
    labels = {number: manifest.label for number, manifest in newer.items()}
    assert labels == {2: label(2, 3 if kill == "before" else 2), 3: label(3, 3 if kill else 2)}
    shutil.copytree(newer[2].uri, lineage_of(log).versions[1].uri)  # for `content` to read
    found, expected = content(log), content(each)
    assert is_same({2: found[2], 3: found[3]}, {2: expected[3], 3: expected[5]})


@pytest.mark.parametrize(("every", "steps"), [(EVERY, 5), (1, 5), (3, 5), (EVERY, 6)])
def test_a_replay_publishes_where_it_was_published(
    every: int, steps: int, log: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Though `every` or `steps` changed meanwhile: what later batches were sampled by are versions of the log."""
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY, keep_checkpoints=9))
    before = lineage_of(log).versions
    lose_checkpoints(tmp_path, after=0)
    with caplog.at_level(logging.WARNING):
        train(log, config_of(untied, tmp_path, steps=steps, publish=every, keep_checkpoints=9))
    assert told(log)[:5] == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 3, 0)]
    again = lineage_of(log).versions
    assert [again[number].files for number in before] == [manifest.files for manifest in before.values()]
    labels = [manifest.label for _, manifest in sorted(again.items())]
    assert labels[:4] == [label(0), label(1, 2), label(2, 2), label(3, 2)]
    assert "was published with other weights" not in caplog.text


def test_a_replay_that_learns_otherwise_goes_above_the_newest_number(
    log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """From its first version on; the numbers that engines know keep their content."""
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY, keep_checkpoints=9))
    known = content(log)
    lose_checkpoints(tmp_path, after=1)
    train(log, config_of(untied, tmp_path, steps=5, publish=EVERY, lr=1e-3))
    assert told(log) == [(1, 0, 1), (2, 4, 0), (3, 4, 1), (4, 5, 0), (5, 6, 0)]
    found = content(log)
    assert is_same({number: found[number] for number in known}, known)


def die_at(last: int, step: TrainingStep) -> None:
    """For `after_each_step`."""
    if step.step == last:
        raise Killed


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batches=st.text("uus", min_size=1, max_size=4),
    every=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    kills=st.lists(st.integers(1, 4), max_size=2),
)
def test_whatever_every_says_and_whoever_is_killed_all_adds_up(
    batches: str,
    every: list[int],
    kills: list[int],
    untied: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Over starts of which each has another `every`: the audit finds nothing, the last version has all updates."""
    log, folder = log_with(batches), tmp_path_factory.mktemp("any")
    for number in range(max(len(every), len(kills) + 1)):
        given = config_of(untied, folder, steps=len(batches), publish=every[min(number, len(every) - 1)])
        with contextlib.suppress(Killed), after_each_step(partial(die_at, kills[number] if number < len(kills) else 0)):
            train(log, given)
    train(log, given)
    assert audited(log) == []
    steps, versions = surviving_steps(steps_of(log)), lineage_of(log).versions
    assert [step.step for step in steps] == [*range(1, len(batches) + 1)]
    assert steps[-1].num_unpublished == 0 and steps[-1].version == max(versions)
    assert max((step.step for step in steps if step.is_updated), default=0) <= versions[max(versions)].step
