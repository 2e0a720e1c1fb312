"""`tracegrad replay --mode same` of a run in which every process was killed: equal bytes, steps and weights."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from tests.e2e.chaos_run import ChaosRun
from tracegrad.compose.history.replay import replayed_settings, run_replay
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.local_kafka.broker import LocalKafka
from tracegrad.compose.run.report import newest_folder
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring, port_of
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.weights import WEIGHTS, Lineage, VersionManifest
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.history.record import recorded

WEIGHTS_FILE = "model.safetensors"


class Told(NamedTuple):
    """The bodies on a run's topics, of each partition in order."""

    episodes: list[bytes]
    transitions: list[bytes]
    weights: list[bytes]
    steps: list[bytes]


def told(run_dir: RunDir) -> Told:
    """What a run that has ended wrote; its broker is opened meanwhile."""
    wiring = Wiring(run_dir)
    with LocalKafka(run_dir.kafka, port=port_of(wiring.endpoints.bootstrap_servers)):
        log = wiring.log()
        topics = (Topic.EPISODES, Topic.TRANSITIONS, Topic.WEIGHTS, Topic.TRAINING_STEPS)
        return Told(*([one.value or b"" for one in read_to_end(log, wiring.topics.name(topic))] for topic in topics))


def sha256_of(manifest: VersionManifest) -> str:
    """Of a version's weights."""
    return next(file.sha256 for file in manifest.files if file.name == WEIGHTS_FILE)


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.kafka
@pytest.mark.torch
@pytest.mark.timeout(2400)
def test_a_replay_repeats_a_run_that_was_killed_everywhere(chaos_run: ChaosRun, tmp_path: Path) -> None:
    """No Faust, no clock, no kills, one worker where there were two: each body once, the source's groups in its order,
    and each version's weights bit for bit. Asked a second time, nothing is written."""
    source, path = RunDir.open(chaos_run.run.path), tmp_path / "again"
    settings = replayed_settings(source, msgspec.structs.replace(source.settings, run="again"), "same")
    request = ReplayRequest(source=source.path, mode="same")
    assert run_replay(request, settings, path, Show()) == 0
    before, after = told(source), told(RunDir.open(path))

    order = [*dict.fromkeys(before.transitions)]
    assert order, "expected transitions, got none"
    # Behind them may come groups that were complete when the source ended, and not credited any more.
    assert after.transitions[: len(order)] == order
    assert len(set(after.transitions)) == len(after.transitions)
    assert sorted(after.episodes) == sorted(set(before.episodes))

    policy = settings.policy.name
    wanted = recorded([*before.weights, *before.steps], policy).weights
    lineage = Lineage(policy)
    for value in after.weights:
        lineage.fold(WEIGHTS.decode(value))
    made = {number: sha256_of(manifest) for number, manifest in lineage.versions.items()}
    assert {number: made.get(number) for number in wanted} == dict(wanted)
    newest = newest_folder(RunDir.open(path).weights)
    assert newest is not None
    found = hashlib.sha256((Path(newest) / WEIGHTS_FILE).read_bytes()).hexdigest()
    assert found == made[max(wanted)]

    assert run_replay(request, settings, path, Show()) == 0
    again = told(RunDir.open(path))
    assert (again.episodes, again.transitions) == (after.episodes, after.transitions)
