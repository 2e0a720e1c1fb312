"""Another run's training is repeated from its transitions and its record, on an in-memory log."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file, save_file

from tests.memory_log import MemoryLog
from tests.trainer.history.past import Settings, replay_of, train_source
from tests.trainer.material import group_bytes
from tests.trainer.run_loop import (
    ALGORITHMS,
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
    train,
)
from tests.versions import OTHER_RUN
from tracegrad.schemas.errors import ConfigurationError, DivergedError, LogGapError
from tracegrad.schemas.metrics import REPLAY_STEP, REPLAY_STEPS
from tracegrad.schemas.records.training import StepResult, TrainingStep, surviving_steps
from tracegrad.schemas.records.transitions import decode_group, encode_group
from tracegrad.trainer import loop
from tracegrad.trainer.backends.single import SingleLearner
from tracegrad.trainer.model.policy import Policy
from tracegrad.trainer.store.publish import Versions
from tracegrad.trainer.store.store import Rollbacks

pytestmark = pytest.mark.torch


@pytest.fixture(scope="module")
def source(untied: Path, tmp_path_factory: pytest.TempPathFactory) -> MemoryLog:
    """Its log; nobody changes it."""
    return train_source(untied, tmp_path_factory.mktemp("source"))


def figures(log: MemoryLog) -> list[tuple[Any, ...]]:
    """What is to be repeated, beside weights."""
    names = ("step", "group_ids", "excluded_ids", "loss", "grad_norm", "learning_rate", "skipped", "ess")
    watched = ("staleness_mean", "staleness_max", "logprob_error_max", "num_checked_tokens")
    steps = surviving_steps(steps_of(log))
    return [(*(getattr(step, name) for name in (*names, *watched)), step.accounting.excluded) for step in steps]


def test_the_source_met_everything(source: MemoryLog) -> None:
    """Else the tests below prove less than they say."""
    steps = surviving_steps(steps_of(source))
    assert [step.version for step in steps] == [1, 2, 3, 5, 5, 6]
    reasons = {reason for step in steps for reason in step.excluded_ids.values()}
    assert reasons == {"stale", "no_advantage", "malformed"}
    assert steps[-1].accounting.duplicates == 2
    assert max(step.epoch for step in steps) == 4


def test_each_version_has_the_sources_weights_bit_for_bit(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Through a kill, a rollback, duplicates, stale and useless groups, though the history lacks what no fold writes;
    the versions are this run's own."""
    log, settings = replay_of(source, untied, tmp_path / "own")
    metrics = train(log, settings)
    assert is_same(content(log), content(source))
    assert figures(log) == figures(source)
    assert {manifest.run for manifest in lineage_of(log).versions.values()} == {OTHER_RUN}
    assert (metrics.value(REPLAY_STEP), metrics.value(REPLAY_STEPS)) == (6, 6)


@pytest.mark.parametrize("checkpoint_every", [1, 4])
def test_a_source_of_fewer_versions_than_steps_is_repeated(checkpoint_every: int, untied: Path, tmp_path: Path) -> None:
    """A version every three updates, a rollback between two, kills in both: each version, bit for bit, whatever the
    replay's own `[publish] every` and `steps` say."""
    source = log_of([group_bytes(index) for index in range(12)])
    given: dict[str, Any] = {"steps": 6, "publish": 3, "checkpoint_every": checkpoint_every}
    asking = after_each_step(lambda record: request_rollback(source, 0) if record.step == 4 else None)
    with asking, killed_in(Versions, "after", step=5):
        train(source, config_of(untied, tmp_path / "source", **given))
    train(source, config_of(untied, tmp_path / "source", **given))
    told = [(step.step, step.version, step.num_unpublished) for step in surviving_steps(steps_of(source))]
    assert told == [(1, 0, 1), (2, 0, 2), (3, 1, 0), (4, 1, 1), (5, 2, 1), (6, 3, 0)]
    log, settings = replay_of(source, untied, tmp_path / "own", max_staleness=8, publish=2, steps=2)
    for step in (2, 4, 5):
        with killed_in(loop.Trainer, "_say", step=step):
            train(log, settings)
    train(log, settings)
    assert is_same(content(log), content(source))
    assert figures(log) == figures(source)
    assert audited(log, OTHER_RUN) == audited(source) == []


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_each_algorithm_is_repeated(algorithm: str, untied: Path, tmp_path: Path) -> None:
    """Several updates a batch, running means, a critic, a reference that moves, batches that were refilled."""
    source, keys = new_log(), ALGORITHMS[algorithm]
    train(source, config_of(untied, tmp_path / "source", **keys))
    log, settings = replay_of(source, untied, tmp_path / "own", max_staleness=8, **keys)
    train(log, settings)
    assert is_same(content(log), content(source))
    assert figures(log) == figures(source)


def test_a_step_whose_gradient_was_no_number_is_skipped_again(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended the source, which was started again and went on after it; here it is expected."""
    take, say = SingleLearner.step, Policy.logprobs

    def taken(self: SingleLearner, *updates: Any, version: int, step: int) -> StepResult:
        with pytest.MonkeyPatch.context() as patch:
            if step == 1:
                patch.setattr(Policy, "logprobs", lambda *args, **named: say(*args, **named) * float("nan"))
            return take(self, *updates, version=version, step=step)

    monkeypatch.setattr(SingleLearner, "step", taken)
    source, settings = (
        log_of([group_bytes(index) for index in range(4)]),
        config_of(untied, tmp_path / "source", steps=2),
    )
    with pytest.raises(DivergedError, match="finite"):
        train(source, settings)
    train(source, settings)
    log, own = replay_of(source, untied, tmp_path / "own", steps=2, max_staleness=8)
    train(log, own)
    assert [step.skipped for step in steps_of(log)] == ["non_finite", ""]
    assert is_same(content(log), content(source))


@pytest.mark.parametrize(
    ("owner", "name", "step", "call"),
    [
        (loop.Trainer, "_learn", 2, 1),
        (Versions, "write", 2, 1),
        (Rollbacks, "go_back", 3, 1),
        (Versions, "write", 3, 2),
        (loop.Trainer, "_say", 4, 1),
    ],
    ids=["before a step", "before a version", "before the rollback", "before its version", "after a step"],
)
def test_a_killed_replay_goes_on(
    owner: Any, name: str, step: int, call: int, source: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """The same command again: no step and no rollback is left out or done twice."""
    log, settings = replay_of(source, untied, tmp_path / "own")
    with killed_in(owner, name, step=step, call=call):
        train(log, settings)
    train(log, settings)
    assert is_same(content(log), content(source))
    assert figures(log) == figures(source)


def test_a_rollback_whose_checkpoint_is_lost_is_done_again_in_its_place(
    source: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Not at the start of what is repeated: the steps before it did not start from it."""
    log, settings = replay_of(source, untied, tmp_path / "own")
    train(log, settings)
    for path in (tmp_path / "own" / "checkpoints").iterdir():
        if int(path.name.split("-")[1]) > 1:
            shutil.rmtree(path)
    train(log, settings)
    assert is_same(content(log), content(source))
    assert figures(log) == figures(source)


def test_a_finished_replay_does_nothing_again(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """But claim its epoch."""
    log, settings = replay_of(source, untied, tmp_path / "own")
    train(log, settings)
    before = len(steps_of(log))
    train(log, settings)
    assert len(steps_of(log)) == before


def test_a_rollback_reaches_a_version_that_others_would_have_pushed_out(
    source: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Version 1 is kept for the rollback after step 3, however few are kept."""
    log, settings = replay_of(source, untied, tmp_path / "own", keep_versions=1)
    train(log, settings)
    assert [step.loss for step in surviving_steps(steps_of(log))] == [
        step.loss for step in surviving_steps(steps_of(source))
    ]


def expect_refusal(log: MemoryLog, settings: Settings, match: str) -> list[TrainingStep]:
    """What was recorded before it."""
    with pytest.raises(ConfigurationError, match=match):
        train(log, settings)
    return steps_of(log)


def test_a_group_that_is_gone_is_named_with_its_step(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Nothing of the step is trained; the steps before it are kept."""
    gone = f"{3:024x}"
    log, settings = replay_of(source, untied, tmp_path / "own", without=[gone])
    assert len(expect_refusal(log, settings, f"step 2: .*only the source does: {gone}")) == 1


def test_an_exclusion_that_differs_is_named(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Group 4 was stale; by another bound it would train."""
    log, settings = replay_of(source, untied, tmp_path / "own", max_staleness=8)
    assert len(expect_refusal(log, settings, f"step 3: .*only this run does: {4:024x}")) == 2


def with_one_answer_masked(group: bytes) -> bytes:
    """As a release wrote it that masked the last answer of its last rollout."""
    head, rows = decode_group(group)
    row, turn = rows[-1], rows[-1].turns[-1]
    mask = row.loss_mask.copy()
    mask[turn.start : turn.end] = 0
    logprobs = np.where(mask == 1, row.logprobs, 0).astype(np.float32)
    left = (*row.turns[:-1], replace(turn, masked="truncated"))
    masked = replace(row, loss_mask=mask, logprobs=logprobs, turns=left, rollout_tokens=int(mask.sum()))
    return encode_group(head, [*rows[:-1], masked])


def test_a_step_whose_answers_are_masked_otherwise_is_named(untied: Path, tmp_path: Path) -> None:
    """Masks are made anew by who folds the history: where an answer trains that did not, nothing of the step is."""
    groups = [group_bytes(index) for index in range(4)]
    source = log_of([*groups[:2], with_one_answer_masked(groups[2]), groups[3]])
    train(source, config_of(untied, tmp_path / "source", steps=2))
    _, settings = replay_of(source, untied, tmp_path / "own", steps=2, max_staleness=8)
    trained = steps_of(source)[1].num_tokens
    now = trained + sum(turn.end - turn.start for turn in decode_group(groups[2])[1][-1].turns[-1:])
    match = f"step 2: expected {trained} trained tokens as in the source, got {now}: masks .*--mode offline"
    assert len(expect_refusal(log_of(groups), settings, match)) == 1


def test_a_step_that_the_source_skipped_is_to_be_skipped(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Step 5 had no advantage; with an entropy bonus it has a gradient."""
    log, settings = replay_of(source, untied, tmp_path / "own", entropy=0.01)
    assert len(expect_refusal(log, settings, "step 5: expected to be skipped as .*no_advantage")) == 4


def test_other_weights_are_a_warning_once(
    source: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A machine may round otherwise (here another lr does): the steps are the source's all the same."""
    log, settings = replay_of(source, untied, tmp_path / "own", lr=6e-4)
    with caplog.at_level(logging.WARNING):
        train(log, settings)
    assert [text for text in caplog.messages if "not the source's" in text] == [
        "version 1, after step 1: its weights are not the source's, bit for bit; the steps are the same, and the start "
        "model, the machine or a release of what it runs is another"
    ]
    assert [step[:3] for step in figures(log)] == [step[:3] for step in figures(source)]


def test_another_start_model_is_refused(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """By its weights, wherever it lies; the same bytes elsewhere are the same model."""
    moved, other = tmp_path / "moved", tmp_path / "other"
    shutil.copytree(untied, moved)
    log, settings = replay_of(source, moved, tmp_path / "own")
    train(log, settings)
    assert is_same(content(log), content(source))
    shutil.copytree(untied, other)
    weights = load_file(other / "model.safetensors")
    save_file({name: 2 * value for name, value in weights.items()}, other / "model.safetensors", {"format": "pt"})
    log, settings = replay_of(source, other, tmp_path / "new")
    assert expect_refusal(log, settings, "expected the start model of the source, got one with other weights") == []


def test_what_bits_depend_on_is_named_where_it_is_another(
    source: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """At the start, each with what it was and is; where all is equal nothing is said."""
    log, settings = replay_of(source, untied, tmp_path / "equal")
    with caplog.at_level(logging.WARNING):
        train(log, settings)
    assert [text for text in caplog.messages if "bits depend on" in text] == []
    log, settings = replay_of(source, untied, tmp_path / "own")
    record = tmp_path / "own" / "record.jsonl"
    record.write_bytes(record.read_bytes().replace(b'"cpu_capability":"', b'"cpu_capability":"other '))
    with caplog.at_level(logging.WARNING):
        train(log, settings)
    (told,) = [text for text in caplog.messages if "bits depend on" in text]
    now = torch.backends.cpu.get_cpu_capability()
    assert told.endswith(f"weights may differ in their last: cpu_capability other {now} -> {now}")


def test_a_history_that_is_shorter_than_told_is_refused(source: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Who writes it comes before; nobody is waited for."""
    log, settings = replay_of(source, untied, tmp_path / "own", mode="offline")
    handles = settings[3]
    assert handles.history is not None
    longer = replace(handles, history=replace(handles.history, end_offset=99))
    with pytest.raises(LogGapError, match="history up to offset 99"):
        train(log, (*settings[:3], longer))
