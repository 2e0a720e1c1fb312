"""The loop on an in-memory log: batches, what is excluded, what is told, how it waits and stops."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

pytest.importorskip("torch")

import torch
from safetensors.torch import load_file

from tests.memory_log import MemoryLog
from tests.serving import Background, until
from tests.trainer.material import append_groups, group_bytes
from tests.trainer.run_loop import (
    TOPICS,
    TRANSITIONS,
    config_of,
    content,
    lineage_of,
    log_of,
    steps_of,
    train,
)
from tracegrad.schemas.metrics import DEAD_LETTERS, GROUPS_EXCLUDED, GROUPS_TRAINED, Metrics
from tracegrad.schemas.metrics import STEPS as STEPS_DONE
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.topics import Topic
from tracegrad.trainer import loop, step_figures
from tracegrad.trainer.config import Waits
from tracegrad.trainer.run import run
from tracegrad.trainer.store.checkpoint import Checkpoints

pytestmark = pytest.mark.torch


def test_fresh_run_publishes_version_0_then_one_version_a_step(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Version 0 is the base model itself."""
    train(log, config_of(untied, tmp_path))
    lineage = lineage_of(log)
    assert sorted(lineage.versions) == [0, 1, 2, 3, 4]
    assert [m.base_version for _, m in sorted(lineage.versions.items())] == [0, 0, 1, 2, 3]
    base, found = load_file(untied / "model.safetensors"), content(log)
    assert all(torch.equal(base[name], found[0][name]) for name in base)
    assert not torch.equal(found[1]["lm_head.weight"], found[0]["lm_head.weight"])


@pytest.mark.parametrize("is_own", [False, True], ids=["head", "model"])
def test_critic_is_told_of_and_checkpointed_but_never_published(
    is_own: bool, log: MemoryLog, untied: Path, tied: Path, tmp_path: Path
) -> None:
    """A version has the tensors of the base model, whatever else the run learns."""
    critic: dict[str, Any] = {"critic": str(tied)} if is_own else {}
    train(log, config_of(untied, tmp_path, baseline="critic", critic_lr=1e-2, **critic))
    told = [step.explained_variance for step in steps_of(log)]
    assert told[0] == 0.0, "it begins at 0, a constant"
    assert all(one is not None and one != 0.0 for one in told[1:])
    names = load_file(untied / "model.safetensors").keys()
    assert all(version.keys() == names for version in content(log).values())
    newest = Checkpoints(tmp_path / "checkpoints", keep=2).load_newest()
    assert newest is not None
    kept = {name.removeprefix("critic/").partition(".")[0] for name in newest[1] if name.startswith("critic/")}
    assert kept == {"head", "optimiser/head"} | ({"trunk", "optimiser/trunk"} if is_own else set())


def test_a_reference_moves_with_its_steps_and_is_checkpointed_but_never_published(
    log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """The start model after one step; after the second the policy, for its share is 1."""
    moving: dict[str, Any] = {"beta": 0.1, "kl_to": "moving", "reference_every": 2, "reference_share": 1.0}
    start = load_file(untied / "model.safetensors")
    names = start.keys()
    for steps in (1, 2):
        train(log, config_of(untied, tmp_path, steps=steps, **moving))
        newest = Checkpoints(tmp_path / "checkpoints", keep=2).load_newest()
        assert newest is not None
        weights = {name: newest[1][f"weights/{name}"] for name in names}
        expected = start if steps == 1 else weights
        assert all(torch.equal(newest[1][f"reference/{name}"], expected[name]) for name in names)
        assert not all(torch.equal(weights[name], start[name]) for name in names)
    assert all(version.keys() == names for version in content(log).values())


def test_every_group_is_in_one_batch_or_excluded(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Intervals touch, malformed records are dead letters, the partition goes on; all of it is counted."""
    metrics = train(log, config_of(untied, tmp_path))
    steps = steps_of(log)
    assert [(step.begin_offset, step.next_offset) for step in steps] == [(0, 2), (2, 6), (6, 8), (8, 10)]
    assert steps[1].excluded_ids == {"bad": "malformed"}
    trained = [group for step in steps for group in step.group_ids]
    assert len(trained) == len(set(trained)) == 7
    accounting = steps[-1].accounting
    assert (accounting.consumed, accounting.trained, accounting.excluded, accounting.duplicates) == (
        8,
        7,
        {"malformed": 1},
        1,
    )
    dead = log.records(TOPICS.name(Topic.DEAD_LETTERS))
    assert [dict(record.headers)["tracegrad.offset"] for record in dead] == [b"3", b"5"]
    assert (metrics.value(STEPS_DONE), metrics.value(GROUPS_TRAINED)) == (4, 7)
    assert (metrics.value(GROUPS_EXCLUDED, "malformed"), metrics.value(DEAD_LETTERS, "malformed")) == (1, 2)


def test_step_tells_what_its_bits_depend_on(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """All groups in the order of their records, settings as they turned out, and who computed."""
    train(log, config_of(untied, tmp_path))
    steps = steps_of(log)
    assert [len(step.taken_ids) for step in steps] == [2, 2, 2, 2]
    assert all({*step.taken_ids} == {*step.group_ids, *step.excluded_ids} for step in steps)
    told = steps[0].depends_on
    assert {"lr", "groups_per_step", "micro_batch_tokens", "baseline", "aggregation"} <= told.keys()
    assert (told["dtype"], told["threads"], told["world_size"]) == ("float32", "1", "1")
    assert (told["torch"], told["accelerator"]) == (torch.__version__, "")
    assert told["cpu_capability"] == torch.backends.cpu.get_cpu_capability() and told["seed"].isdecimal()
    assert len(TRAINING_STEPS.encode(steps[0])) < 6_000


def test_step_tells_what_happened(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Rewards, tools, tokens, staleness, seconds."""
    train(log, config_of(untied, tmp_path))
    first, last = steps_of(log)[0], steps_of(log)[-1]
    assert (first.reward, first.tool_success, first.num_rollouts) == (1.0, 0.5, 8)
    assert 0 < first.num_tokens < first.num_row_tokens and first.num_rows == 8
    assert first.num_checked_tokens > 0
    assert (first.staleness_max, last.staleness_mean, last.staleness_max) == (0, 3.0, 3)
    assert {"wait", "read", "forward_backward", "optimise"} <= first.seconds.keys()
    assert {"checkpoint", "publish"} <= last.seconds.keys()


def test_batch_without_advantage_is_recorded_and_publishes_nothing(untied: Path, tmp_path: Path) -> None:
    """Consumed all the same."""
    log = log_of([group_bytes(i, spread=float(i >= 2)) for i in range(4)])
    train(log, config_of(untied, tmp_path, steps=2))
    steps = steps_of(log)
    assert [(step.is_updated, step.skipped, step.version) for step in steps] == [
        (False, "no_advantage", 0),
        (True, "", 1),
    ]
    assert [len(step.group_ids) for step in steps] == [0, 2]
    assert list(steps[0].excluded_ids.values()) == ["no_advantage"] * 2
    accounting = steps[1].accounting
    assert (accounting.consumed, accounting.trained, accounting.excluded) == (4, 2, {"no_advantage": 2})
    assert (steps[0].num_tokens, steps[0].num_turns, steps[0].reward) == (0, 0, 1.0)
    assert sorted(lineage_of(log).versions) == [0, 1]


def test_stale_groups_are_excluded(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Bound 1: groups of version 0 are too old from version 2 on."""
    train(log, config_of(untied, tmp_path, max_staleness=1))
    steps = steps_of(log)
    assert [set(step.excluded_ids.values()) for step in steps] == [set(), {"malformed"}, {"stale"}, {"stale"}]
    assert [step.skipped for step in steps] == ["", "", "no_tokens", "no_tokens"]
    assert steps[-1].reward == 1.0


def test_a_malformed_record_too_large_for_dead_letters_goes_there_by_reference(
    memory_log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """Whatever its size, it stops no partition."""
    topics = msgspec.structs.replace(TOPICS, max_message_bytes={"dead_letters": 128 * 1024})
    memory_log.create_topics(topics, policies=["policy"])
    append_groups(memory_log, TRANSITIONS, [b"x" * 200_000, group_bytes(0), group_bytes(1)])
    train(memory_log, config_of(untied, tmp_path, steps=1))
    (letter,) = memory_log.records(TOPICS.name(Topic.DEAD_LETTERS))
    assert letter.value == b""
    assert dict(letter.headers)["tracegrad.offset"] == b"0"


def test_stop_ends_a_waiting_trainer(log: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """Cleanly, between batches."""
    stop = threading.Event()
    stop.set()
    train(log, config_of(untied, tmp_path), stop)
    assert steps_of(log) == []
    assert sorted(lineage_of(log).versions) == [0]


def test_waiting_is_visible(
    untied: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With what is there, what is needed and the lag."""
    log = log_of([group_bytes(0)])
    stop = threading.Event()
    waits = Waits(poll_s=0.005, log_s=0.01)
    caplog.set_level("INFO", logger="tracegrad.trainer.source")
    thread = threading.Thread(target=train, args=(log, config_of(untied, tmp_path), stop, waits))
    thread.start()
    deadline = threading.Event()
    for _ in range(1000):
        if "has 1 of 2, lag=0" in caplog.text:
            break
        deadline.wait(0.02)
    stop.set()
    thread.join(30)
    assert "waiting for groups: policy=policy step=1 has 1 of 2, lag=0" in caplog.text


def test_a_trainer_that_waits_tells_what_it_has_taken(
    untied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what names no group, and nothing while it reads or trains: tasks would take what comes for lost."""
    log = log_of([group_bytes(0), b"garbage", group_bytes(1), group_bytes(2)])
    metrics, told = Metrics(), list[bool]()
    learn = loop.Trainer._learn

    def look(*given: Any) -> Any:
        told.append("groups_taken" in metrics.snapshot())
        return learn(*given)

    monkeypatch.setattr(loop.Trainer, "_learn", look)
    settings = config_of(untied, tmp_path)
    given: dict[str, Any] = {"metrics": metrics, "waits": Waits(poll_s=0.005, taken_s=0.0)}
    with Background(lambda stop: run(*settings, topics=TOPICS, log=log, stop=stop, **given)):
        until(lambda: metrics.snapshot().get("groups_taken") == 3)
        append_groups(log, TRANSITIONS, [group_bytes(3)])
        until(lambda: metrics.snapshot().get("groups_taken") == 4)
    assert told == [False, False]


@pytest.mark.parametrize(
    ("dtype", "bounds", "is_warned"),
    [
        ("float32", (1e-6, 1e9), True),
        ("float32", (1e9, 1e-6), False),
        ("bfloat16", (1e-6, 1e9), False),
        ("bfloat16", (1e9, 1e-6), True),
    ],
)
def test_logprobs_that_differ_are_warned_of_by_the_bound_of_their_precision(
    dtype: str,
    bounds: tuple[float, float],
    is_warned: bool,
    log: MemoryLog,
    untied: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recorded logprobs are no model's: only the bound decides."""
    exact, coarse = bounds
    monkeypatch.setattr(step_figures, "LOGPROB_ERROR_BOUND", exact)
    monkeypatch.setattr(step_figures, "_COARSE_LOGPROB_ERROR_WARN", coarse)
    train(log, config_of(untied, tmp_path, steps=1, dtype=dtype))
    assert steps_of(log)[0].logprob_error_max > 1e-3
    assert ("sampler and trainer differ" in caplog.text) is is_warned


def test_groups_that_a_recipe_does_not_select_are_excluded_with_the_reason(
    log: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """They count as consumed, and are told; here the one whose returns are all equal."""
    train(log, config_of(untied, tmp_path, recipe="dapo"))
    steps = steps_of(log)
    excluded = {group: reason for step in steps for group, reason in step.excluded_ids.items()}
    assert [reason for reason in excluded.values() if reason != "malformed"] == ["no_spread"]
    accounting = steps[-1].accounting
    assert accounting.consumed == accounting.trained + sum(accounting.excluded.values())
