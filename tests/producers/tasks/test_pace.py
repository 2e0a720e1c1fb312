"""How many groups may be admitted, worked out by hand."""

from __future__ import annotations

import msgspec
import pytest

from tracegrad.producers.tasks.config import PaceConfig, TasksHandles
from tracegrad.producers.tasks.pace import RunProgress, capacity
from tracegrad.schemas.ids import RunHash

PACE = PaceConfig(staleness=2)
HANDLES = TasksHandles(
    engine_ids=("engine-0",),
    run_hash=RunHash("ab12cd34"),
    policy="policy",
    seed=0,
    steps=10,
    groups_per_step=8,
    concurrency=1,
    time_limit_s=1.0,
    rewards_awaited=(),
    episode_wait_s=1.0,
)


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
