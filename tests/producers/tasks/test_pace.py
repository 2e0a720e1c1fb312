"""How many groups may be admitted, worked out by hand, and what admission keeps of a run's records."""

from __future__ import annotations

import logging
import tracemalloc

import msgspec
import pytest

from tests.producers.tasks import world
from tests.versions import ack
from tracegrad.producers.rollout_histories import event_of
from tracegrad.producers.tasks.admission_state import AdmissionState
from tracegrad.producers.tasks.config import PaceConfig
from tracegrad.producers.tasks.pace import RunProgress, capacity
from tracegrad.schemas.ids import RunHash, group_id, rollout_id
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import (
    GroupRef,
    RolloutRequest,
    RolloutState,
)

PACE = PaceConfig(staleness=2)
HANDLES = msgspec.structs.replace(world.HANDLES, steps=10, groups_per_step=8)


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        pytest.param(RunProgress(), 0, id="nothing served yet"),
        pytest.param(RunProgress(acked=0), 12, id="at first as many as may run"),
        pytest.param(RunProgress(acked=0, admitted=12, running=5), 7, id="running ones hold their places"),
        pytest.param(RunProgress(acked=0, admitted=20, running=0), 4, id="(eta+1)*G ahead of what was consumed"),
        pytest.param(RunProgress(acked=0, admitted=24, running=0), 0, id="a lead of three batches is full"),
        pytest.param(RunProgress(acked=1, admitted=24, consumed=8, step=1, version=1), 8, id="a batch gives back G"),
        pytest.param(RunProgress(acked=0, admitted=24, consumed=24, step=3, version=3), 0, id="engines too far behind"),
        pytest.param(RunProgress(acked=1, admitted=24, consumed=24, step=3, version=3), 12, id="eta behind is allowed"),
        pytest.param(
            RunProgress(acked=9, admitted=78, consumed=72, step=9, version=9), 2, id="never more than steps*G"
        ),
        pytest.param(RunProgress(acked=0, admitted=8, running=20), 0, id="never negative"),
        pytest.param(RunProgress(acked=0, admitted=24, lost=3), 3, id="what is lost gives its place back"),
        pytest.param(
            RunProgress(acked=9, admitted=80, lost=2, consumed=72, step=9, version=9), 2, id="... at the end too"
        ),
    ],
)
def test_capacity(progress: RunProgress, expected: int) -> None:
    """The formula of the module's first lines."""
    assert capacity(progress, PACE, HANDLES, max_running=12, last_step=10) == expected


def test_synchronous_training_never_runs_ahead_of_the_weights() -> None:
    """With eta 0 one batch is admitted, and the next only when its version is served."""
    pace, handles = PaceConfig(staleness=0), msgspec.structs.replace(HANDLES, groups_per_step=4)
    trained = RunProgress(acked=0, admitted=4, consumed=4, step=1, version=1)
    for progress, expected in (
        (RunProgress(acked=0), 4),
        (RunProgress(acked=0, admitted=4, running=0), 0),
        (trained, 0),
        (msgspec.structs.replace(trained, acked=1), 4),
    ):
        assert capacity(progress, pace, handles, max_running=100, last_step=10) == expected


def test_a_run_whose_groups_are_all_excluded_is_never_starved() -> None:
    """Excluded groups count as consumed, so admission goes on to the end."""
    progress = RunProgress(acked=0)
    for step in range(1, HANDLES.steps + 1):
        while capacity(progress, PACE, HANDLES, max_running=12, last_step=10):
            progress = RunProgress(acked=0, admitted=progress.admitted + 1, consumed=progress.consumed)
        progress = RunProgress(acked=0, admitted=progress.admitted, consumed=step * 8, step=step)
    assert progress.admitted == progress.consumed == 80


@pytest.mark.slow
def test_a_long_run_keeps_what_is_in_the_works(caplog: pytest.LogCaptureFixture) -> None:
    """Over a thousand rollouts leave nothing behind; a record that comes again is still known for what it is."""
    caplog.set_level(logging.ERROR)  # captured log lines take memory too
    state = AdmissionState("ab12cd34", "policy", ["engine-0"])
    run, records = RunHash("ab12cd34"), []
    for index in range(300):
        group = group_id(run, "train", index)
        for member in range(4):
            request = RolloutRequest(
                rollout_id=rollout_id(group, member),
                group=GroupRef(id=group, size=4, member=member, index=index),
                task_id="", input="", policy="policy", purpose=Purpose.TRAIN,
            )  # fmt: skip
            end = event_of(request, "aaaa", 0, RolloutState.ABORTED, is_final=True)
            episode = Episode(
                episode_id=request.rollout_id + "aaaa", rollout_id=request.rollout_id, attempt_id="aaaa",
                group=request.group, task_id="", policy="policy", purpose=Purpose.TRAIN, state=end.state,
                is_final=True, closed_by="complete", calls=(), reward=None,
            )  # fmt: skip
            records += [request, event_of(request, "aaaa", 0, RolloutState.STARTED), end, episode]
    tracemalloc.start()
    for again in (records, records[:4000]):
        for record in again:
            state.fold(record)
    num_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert num_bytes < 200_000
    progress = state.progress()
    assert (progress.admitted, progress.running, state.open, state.admitted[Purpose.TRAIN].incomplete()) == (
        300,
        0,
        {},
        [],
    )
    assert state.exclusions == {"aborted": 1200}
    foreign = msgspec.structs.replace(records[3], rollout_id="ffffffff" + "0" * 20)
    state.fold(msgspec.structs.replace(foreign, group=GroupRef(id="f", size=1, member=0, index=300)))
    assert state.exclusions == {"aborted": 1200}


def test_the_slowest_of_several_engines_counts() -> None:
    """Rollouts meet it too; nothing begins before each serves a version, and one that is the run's no more holds
    nothing up.
    """
    state = AdmissionState("ab12cd34", "policy", ["engine-0", "engine-1"])
    served: list[int | None] = []
    for version, engine in ((0, "engine-0"), (0, "engine-9"), (0, "engine-1"), (2, "engine-0"), (1, "engine-1")):
        state.fold(ack(version, engine_id=engine))
        served.append(state.progress().acked)
    assert served == [None, None, 0, 0, 1]
