"""Status 0 only for a run that lost nothing, and of the demo only if sampler and trainer agree."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.consumers.audit.small_run import KEY, memory_log, records, small_run
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, Streams
from tracegrad.compose.files import RunKey, write_record
from tracegrad.compose.run import report, serve, session
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.show import JsonShow
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import DIVERGED_EXIT_STATUS, DivergedError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Offsets, Record, TopicPartition
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version folders of the small run are there, and whole."""
    monkeypatch.setattr(report, "verify_version", lambda *_, **__: None)


@pytest.fixture
def wiring(tmp_path: Path) -> Wiring:
    """Of the small run."""
    settings = RunSettings(run="test", policy=PolicyConfig(model="none"))
    run_dir = prepare_run(settings, tmp_path / "test")
    record = msgspec.structs.replace(run_dir.record, hash=RunHash(RUN_HASH))
    write_record(run_dir.path / "run.json", record)
    write_record(run_dir.path / "key.json", RunKey(run=record.hash, key=KEY))
    return Wiring(run_dir)


def status(wiring: Wiring, log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of a run that ended by itself and left this log."""
    monkeypatch.setattr(wiring, "kafka", lambda **_: log)
    return session._make_report(report.demo_report, wiring, JsonShow(io.StringIO()))


def changed(streams: Streams, topic: Topic, change: Any) -> Streams:
    """The run with the records of one topic changed."""
    streams.log[topic] = [msgspec.structs.replace(record, value=change(record.value)) for record in streams.log[topic]]
    return streams


def steps_with(**fields: Any) -> Any:
    """Changes a step."""
    return lambda value: TRAINING_STEPS.encode(msgspec.structs.replace(TRAINING_STEPS.decode(value), **fields))


def agreed() -> Streams:
    """The small run, whose sampler and trainer were compared."""
    return changed(small_run(), Topic.TRAINING_STEPS, steps_with(num_checked_tokens=9))


def test_a_run_that_is_compared_and_complete_is_0(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive case, without which the others say nothing."""
    assert status(wiring, memory_log(agreed()), monkeypatch) == 0


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"logprob_error_max": 0.2, "num_checked_tokens": 9}, "differ by 0.2 nats, expected 0.1 at most"),
        ({"num_checked_tokens": 0}, "no token was compared"),
    ],
    ids=["differ", "none"],
)
def test_sampler_and_trainer_that_do_not_agree_are_1(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], why: str
) -> None:
    """Of the demo; other runs tell the difference and end as they would."""
    log = memory_log(changed(small_run(), Topic.TRAINING_STEPS, steps_with(**fields)))
    told = io.StringIO()
    monkeypatch.setattr(wiring, "kafka", lambda **_: log)
    assert session._make_report(report.demo_report, wiring, JsonShow(told)) == 1
    assert why in told.getvalue()
    assert session._make_report(report.make_report, wiring, JsonShow(io.StringIO())) == 0


def test_an_incomplete_audit_is_1(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record of `episodes` is gone."""
    streams = agreed()
    lost = next(record for topic, record in records(streams) if topic is Topic.EPISODES)
    assert status(wiring, memory_log(streams, lost), monkeypatch) == 1


class RestartingLog(MemoryLog):
    """A log that is away the first time that each kind of question is asked."""

    def __init__(self, log: MemoryLog) -> None:
        self.__dict__.update(log.__dict__)
        self._asked: set[str] = set()

    def _ask(self, what: str) -> None:
        if what not in self._asked:
            self._asked.add(what)
            raise UnavailableError(f"away: {what}")

    def offsets(self, topic: str) -> Mapping[int, Offsets]:
        self._ask("offsets")
        return super().offsets(topic)

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        self._ask("committed")
        return super().committed(group, topic)

    def read(self, positions: dict[TopicPartition, int], max_records: int) -> list[Record]:
        self._ask("read")
        return super().read(positions, max_records)


def test_a_log_that_is_away_while_the_report_is_made_is_waited_for(
    wiring: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results and audit: whatever is asked first."""
    assert status(wiring, RestartingLog(memory_log(agreed())), monkeypatch) == 0


def test_a_process_that_diverged_says_so_by_its_status(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which its supervisor takes for the end of the run."""

    def diverge(*_: object) -> None:
        raise DivergedError("NaN")

    monkeypatch.setattr(serve, "_set_up_logging", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    monkeypatch.setattr(serve, "_run", diverge)
    assert serve.serve("engine", wiring.run_dir.path) == DIVERGED_EXIT_STATUS


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome(kind=OutcomeKind.FATAL, why="engine: exit status 78", exit_status=78), 78),
        (Outcome(kind=OutcomeKind.FATAL, why="trainer: exit status 70", exit_status=DIVERGED_EXIT_STATUS), 1),
        (Outcome(kind=OutcomeKind.FATAL, why="died 8 times in a row; it printed: exit status 78", exit_status=1), 1),
        (Outcome(kind=OutcomeKind.FATAL, why="cannot start x: no such program"), 1),
        (Outcome(kind=OutcomeKind.STOPPED), session.INTERRUPTED),
    ],
    ids=["fatal", "diverged", "log-text", "never-ran", "stopped"],
)
def test_a_run_that_was_ended(wiring: Wiring, outcome: Outcome, expected: int) -> None:
    """By the process's own exit status, whatever its log says."""
    assert session._ended_otherwise(outcome, wiring, JsonShow(io.StringIO())) == expected
