"""A trainer rolls back where raters like the newest versions less: once, whoever is killed, and says why."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("torch")

from tests.memory_log import MemoryLog
from tests.trainer.material import append_groups, conversation_bytes
from tests.trainer.run_loop import (
    TOPICS,
    WEIGHTS_TOPIC,
    audited,
    config_of,
    content,
    is_same,
    killed_in,
    lineage_of,
    log_of,
    request_rollback,
    steps_of,
    train,
)
from tests.trainer.sigkills import Death, outcome, start
from tests.trainer.sigkills import is_same as is_same_tensors
from tests.versions import RUN
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.records.weights import WEIGHTS, RollbackRequest
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.trainer.config import AlarmsConfig, AlgorithmConfig, TrainerConfig, TrainerHandles
from tracegrad.trainer.history.config import History, ReplayConfig
from tracegrad.trainer.store.policy_log import PolicyLog
from tracegrad.trainer.store.publish import Versions
from tracegrad.trainer.store.store import Rollbacks

pytestmark = pytest.mark.torch

WINDOW = 4
RATED = ((0, (0.8, 1.0)), (1, (0.8, 1.0)), (2, (0.0, 0.2)), (3, (0.0, 0.2)), (4, (0.0, 0.2)), (5, (0.8, 1.0)))
"""Of each batch the version that sampled it, and what people said: two versions that are liked, then three that are
not, of which the last is under way when the trainer rolls back."""
CONVERSATIONS = [
    conversation_bytes(2 * batch + at, version, reward)
    for batch, (version, rewards) in enumerate(RATED)
    for at, reward in enumerate(rewards)
]


@pytest.fixture
def rated() -> MemoryLog:
    """With all conversations."""
    return log_of(CONVERSATIONS)


def settings_of(
    model: Path, work_dir: Path, **changes: Any
) -> tuple[TrainerConfig, AlgorithmConfig, AlarmsConfig, TrainerHandles]:
    """Of a run whose windows are of four conversations."""
    known: dict[str, Any] = {"steps": 6, "recipe": "rloo_batch", "rollback_window": WINDOW}
    return config_of(model, work_dir, **(known | changes))


def requests_of(log: MemoryLog) -> list[RollbackRequest]:
    """Those on `weights`."""
    records = [WEIGHTS.decode(record.value) for record in log.records(WEIGHTS_TOPIC)]
    return [record for record in records if isinstance(record, RollbackRequest)]


def test_a_run_on_history_is_never_rolled_back_by_it(rated: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """The same conversations and the same window: what people said of the source's versions is no word on its own."""
    config, algorithm, alarms, handles = settings_of(untied, tmp_path)
    assert alarms.rollback_window == WINDOW
    history = History(mode="offline", run=RUN, end_offset=len(CONVERSATIONS), config=ReplayConfig(min_ess=0.0))
    train(rated, (config, algorithm, alarms, replace(handles, history=history)))
    assert len(steps_of(rated)) == 6
    assert [step.rated_worse for step in steps_of(rated)] == [None] * 6
    assert requests_of(rated) == []


def test_it_rolls_back_to_the_last_version_that_was_liked(
    rated: MemoryLog, untied: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After the step that showed it; its reason is on `training_steps`, on `weights` and in the log."""
    train(rated, settings_of(untied, tmp_path))
    found, versions = content(rated), lineage_of(rated).versions
    assert [(step.step, step.version) for step in steps_of(rated)] == [(1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (6, 7)]
    assert versions[5].base_version == 1 and all(found[5][name].equal(found[1][name]) for name in found[1])
    (step,) = [step for step in steps_of(rated) if step.rated_worse is not None]
    worse = step.rated_worse
    assert worse is not None and step.step == 4
    assert (worse.before.from_version, worse.before.to_version, worse.before.num) == (0, 1, WINDOW)
    assert (worse.newest.from_version, worse.newest.to_version, worse.newest.num) == (2, 3, WINDOW)
    assert (worse.before.mean, worse.newest.mean) == pytest.approx((0.9, 0.1))
    (request,) = requests_of(rated)
    assert request.to_version == 1 and request.requested_by == f"trainer, step 4: {worse.text}"
    assert caplog.text.count("rolls back to version 1") == 1 and "are rated 0.900 (4 conversations)" in worse.text


@pytest.mark.parametrize("window", [0, None, 7])
def test_without_a_window_or_before_two_are_full_it_goes_on(
    window: int | None, rated: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """`None` is for runs that train on captured traffic; there are twelve conversations."""
    train(rated, settings_of(untied, tmp_path, rollback_window=window))
    assert not requests_of(rated)
    assert sorted(lineage_of(rated).versions) == [*range(7)]


def test_versions_of_several_updates_are_rated_alike(untied: Path, tmp_path: Path) -> None:
    """Two updates each: version 2 is liked less than 1, to which it rolls back between two versions."""
    rated = [0.8, 1.0, 0.8, 1.0, 0.8, 1.0, 0.8, 1.0, 0.0, 0.2, 0.0, 0.2, 0.8, 1.0]
    sampled_by = [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 2, 2]
    conversations = [conversation_bytes(at, *one) for at, one in enumerate(zip(sampled_by, rated, strict=True))]
    log = log_of(conversations)
    train(log, settings_of(untied, tmp_path, steps=7, publish=2))
    told = [(step.step, step.version, step.num_unpublished) for step in steps_of(log)]
    assert told == [(1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 2, 0), (5, 2, 1), (6, 3, 0), (7, 5, 0)]
    (request,) = requests_of(log)
    assert request.request_id == "rated-worse-at-step-6" and request.to_version == 1
    assert lineage_of(log).versions[4].base_version == 1
    assert audited(log) == []


def test_a_rollback_that_a_person_asked_for_begins_the_windows_anew(
    rated: MemoryLog, untied: Path, tmp_path: Path
) -> None:
    """What older versions are rated is nothing to compare with."""
    train(rated, settings_of(untied, tmp_path, steps=2))
    request_rollback(rated, 2)
    train(rated, settings_of(untied, tmp_path))
    assert len(requests_of(rated)) == 1
    assert not any(step.rated_worse for step in steps_of(rated))


def test_what_it_may_go_back_to_is_kept_whatever_else_is_not(rated: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """One folder is to be kept, besides version 0 and those since the last version of the better window."""
    train(rated, settings_of(untied, tmp_path, keep_versions=1, steps=4))
    assert lineage_of(rated).versions[5].base_version == 1
    train(rated, settings_of(untied, tmp_path, keep_versions=1))
    kept = {int(folder.name.split("-")[1][1:]) for folder in (tmp_path / "weights").iterdir()}
    assert kept == {0, 5, 6, 7}


def test_at_the_last_step_it_rolls_back_all_the_same(rated: MemoryLog, untied: Path, tmp_path: Path) -> None:
    """The version that the run leaves is the one that people liked."""
    train(rated, settings_of(untied, tmp_path, steps=4))
    newest = lineage_of(rated).newest
    assert newest is not None and (newest.version, newest.base_version) == (5, 1)


SEAMS = [
    (Rollbacks, "ask_where_worse", 4, True),
    (PolicyLog, "announce", 7, True),  # of the request, after the epoch's and those of versions 0 to 4
    (Rollbacks, "_roll_back", 1, True),
    (Rollbacks, "_roll_back", 1, False),
    (Versions, "write", 6, True),
    (Versions, "announce", 6, False),
]


@pytest.mark.parametrize(("steps", "every"), [(6, 1), (4, 3)])
@pytest.mark.parametrize(("owner", "name", "call", "is_before"), SEAMS)
def test_killed_around_the_rollback_it_rolls_back_once(
    owner: type,
    name: str,
    call: int,
    is_before: bool,
    steps: int,
    every: int,
    rated: MemoryLog,
    untied: Path,
    tmp_path: Path,
) -> None:
    """With the weights of a run that nobody disturbed, whether or not each step has a checkpoint."""
    calm = log_of(CONVERSATIONS)
    train(calm, settings_of(untied, tmp_path / "calm", steps=steps, checkpoint_every=every))
    with killed_in(owner, name, call=call, is_after=not is_before):
        train(rated, settings_of(untied, tmp_path / "run", steps=steps, checkpoint_every=every))
    train(rated, settings_of(untied, tmp_path / "run", steps=steps, checkpoint_every=every))
    assert len(requests_of(rated)) == 1
    assert is_same(content(rated), content(calm))
    reasons, expected = ([step.rated_worse for step in steps_of(log) if step.rated_worse] for log in (rated, calm))
    assert reasons == expected and len(reasons) == 1


DEATHS = (
    (
        Death("before a rollback is asked for", 4),
        Death("before a rollback"),
        Death("between checkpoint and publish"),
        Death("half-written version"),
    ),
    (Death("after a rollback"),),
)


@pytest.mark.kafka
@pytest.mark.timeout(300)
@pytest.mark.parametrize("deaths", DEATHS, ids=["each in turn", "after it"])
def test_sigkilled_around_the_rollback_the_run_is_as_if_nobody_had_been(
    deaths: Sequence[Death],
    broker: str,
    kafka_log: KafkaLog,
    fresh_topics: Topics,
    rated: MemoryLog,
    untied: Path,
    tmp_path: Path,
) -> None:
    """Real processes, a real broker; bit for bit, moments too."""
    train(rated, settings_of(untied, tmp_path / "calm"))
    expected = outcome(rated, TOPICS, tmp_path / "calm")
    append_groups(kafka_log, fresh_topics.name(Topic.TRANSITIONS), CONVERSATIONS)
    config, errors = settings_of(untied, tmp_path / "run"), tmp_path / "stderr"
    for death in deaths:
        process = start(broker, fresh_topics, config, death.seam, death.call, errors)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, (death, errors.read_text())
    train(kafka_log, config, topics=fresh_topics)
    found = outcome(kafka_log, fresh_topics, tmp_path / "run")
    assert found.steps == expected.steps and found.steps[3].rated_worse is not None
    assert is_same(found.content, expected.content) and found.lineage.versions[5].base_version == 1
    assert is_same_tensors(found.kept, expected.kept)
