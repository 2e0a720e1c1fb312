"""What admission keeps of a run's records, and lets go."""

from __future__ import annotations

import logging
import tracemalloc

import msgspec
import pytest

from tests.versions import ack
from tracegrad.producers.rollout_histories import event_of
from tracegrad.producers.tasks.admission_state import AdmissionState
from tracegrad.schemas.ids import RunHash, group_id, rollout_id
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import (
    GroupRef,
    RolloutRequest,
    RolloutState,
)


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
