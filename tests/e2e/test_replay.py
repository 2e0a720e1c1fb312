"""`tracegrad replay --mode same` of a run in which every process was killed: equal bytes, steps and weights."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
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
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.log.signed import SignedLog
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.weights import WEIGHTS, Lineage
from tracegrad.schemas.topics import Topic
from tracegrad.trainer.history.record import fold_record

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


@pytest.fixture
def bodiless(chaos_run: ChaosRun, monkeypatch: pytest.MonkeyPatch) -> list[RunDir]:
    """Finished runs, of whose `episodes` and `transitions` a reader in this process gets keys and headers alone: the
    chaos run, and those whose folders TRACEGRAD_TEST_REPLAY names."""
    named = os.environ.get("TRACEGRAD_TEST_REPLAY", "").split(os.pathsep)
    runs = [RunDir.open(path) for path in (chaos_run.run.path, *(Path(name) for name in named if name))]
    topics = {Wiring(run).topics.name(topic) for run in runs for topic in (Topic.EPISODES, Topic.TRANSITIONS)}
    judged = SignedLog.judged

    def without_body(log: SignedLog, record: Record) -> Record | None:
        return judged(log, msgspec.structs.replace(record, value=b"") if record.topic in topics else record)

    monkeypatch.setattr(SignedLog, "judged", without_body)
    return runs


@pytest.mark.e2e
@pytest.mark.engine
@pytest.mark.kafka
@pytest.mark.torch
@pytest.mark.timeout(2400)
def test_a_replay_repeats_a_run_that_was_killed_everywhere(
    bodiless: list[RunDir], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No Faust, no clock, no kills, one worker where there were two: each body once, the source's groups in its order,
    and each version's weights bit for bit. Asked a second time, nothing is written."""
    replays = []
    for source in bodiless:
        path = tmp_path / f"again-{source.record.name}"
        settings = replayed_settings(source, msgspec.structs.replace(source.settings, run=path.name), "same")
        request = ReplayRequest(source=source.path, mode="same")
        assert run_replay(request, settings, path, Show()) == 0
        replays.append((source, settings, request, path))
    monkeypatch.undo()
    for source, settings, request, path in replays:
        before, after = told(source), told(RunDir.open(path))
        check_equal(before, after, settings.policy.name, newest_folder(RunDir.open(path).weights))
        assert run_replay(request, settings, path, Show()) == 0
        again = told(RunDir.open(path))
        assert (again.episodes, again.transitions) == (after.episodes, after.transitions)


def check_equal(before: Told, after: Told, policy: str, newest: str | None) -> None:
    """Bodies, order, and the weights of each version. `newest`: where the replay's last version lies."""
    order = [*dict.fromkeys(before.transitions)]
    assert order, "expected transitions, got none"
    # Behind them may come groups that were complete when the source ended, and not credited any more.
    assert after.transitions[: len(order)] == order
    assert len(set(after.transitions)) == len(after.transitions)
    assert sorted(after.episodes) == sorted(set(before.episodes))

    wanted = fold_record([*before.weights, *before.steps], policy).weights
    lineage = Lineage(policy)
    for value in after.weights:
        lineage.fold(WEIGHTS.decode(value))
    made = {number: manifest.weights for number, manifest in lineage.versions.items()}
    assert {number: made.get(number) for number in wanted} == dict(wanted)
    assert newest is not None
    found = hashlib.sha256((Path(newest) / WEIGHTS_FILE).read_bytes()).hexdigest()
    newest_file = made[max(wanted)]
    assert newest_file is not None and found == newest_file.sha256
    closed_by = Counter(EPISODES.decode(value).closed_by for value in set(before.episodes))
    print(f"{len(order)} groups, episodes closed by {dict(closed_by)}, {len(wanted)} versions: all equal")
