"""Status 0 only for a run that lost nothing, and of the demo only if it is shown to have served what it trained."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.consumers.audit.small_run import KEY, memory_log, records, small_run
from tests.memory_log import MemoryLog
from tests.streams.make import RUN_HASH, TOPICS, Streams
from tracegrad.compose.run import demo, report, serve, session
from tracegrad.compose.run.run_dir import Endpoints, RunDir, RunKey, write_record
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.show import JsonShow
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.compose.run.wiring import Wiring
from tracegrad.compose.verify.served_proof import Proof, find_proof
from tracegrad.compose.verify.verdict import EXACT, Tolerance, compare
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import DIVERGED_EXIT_STATUS, DivergedError, RecordError, UnavailableError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import Offsets, Record, TopicPartition
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.weights import WEIGHT_ACKS
from tracegrad.schemas.topics import Topic

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def folders(monkeypatch: pytest.MonkeyPatch) -> None:
    """The version folders of the small run are there, and whole."""
    monkeypatch.setattr("tracegrad.compose.verify.served_proof.Path.is_dir", lambda self: True)
    monkeypatch.setattr(report, "verify_version", lambda *_, **__: None)


@pytest.fixture
def wiring(tmp_path: Path) -> Wiring:
    """Of the small run."""
    settings = RunSettings(run="test", policy=PolicyConfig(model="none"))
    run_dir = RunDir.create(tmp_path / "test", settings)
    run_dir.write_start(
        settings, Endpoints(bootstrap_servers="none:1", llm_url="none", otlp_endpoint="none", engine_urls=("none",))
    )
    record = msgspec.structs.replace(run_dir.record, hash=RunHash(RUN_HASH))
    write_record(run_dir.path / "run.json", record)
    write_record(run_dir.path / "key.json", RunKey(run=record.hash, key=KEY))
    return Wiring(run_dir)


def status(wiring: Wiring, log: MemoryLog, monkeypatch: pytest.MonkeyPatch, *, is_from_previous: bool = False) -> int:
    """Of a run that ended by itself and left this log; its calls were sampled by version 1, or really by 0."""

    def verify(proof: Proof, *_: Any, **__: Any) -> Any:
        own = [call.logprobs for call in proof.calls]
        other = [[value - 0.3 for value in call] for call in own]
        return (
            compare(proof, other, own, tolerance=Tolerance(error_max=1.0, error_rms=1.0))
            if is_from_previous
            else compare(proof, own, other, tolerance=EXACT)
        )

    monkeypatch.setattr(wiring, "kafka", lambda **_: log)
    monkeypatch.setattr(demo, "verify_apart", verify)
    return session._make_report(demo.demo_report, wiring, JsonShow(io.StringIO()))


def changed(streams: Streams, topic: Topic, change: Any) -> Streams:
    """The run with the records of one topic changed."""
    streams.log[topic] = [msgspec.structs.replace(record, value=change(record.value)) for record in streams.log[topic]]
    return streams


def acks_with(**fields: Any) -> Any:
    """Changes an acknowledgement."""
    return lambda value: WEIGHT_ACKS.encode(msgspec.structs.replace(WEIGHT_ACKS.decode(value), **fields))


def calls_at(ns: int) -> Any:
    """Changes when a call began."""

    def change(value: bytes) -> bytes:
        try:
            call = LLM_CALLS.decode(value)
        except RecordError:
            return value
        return (
            LLM_CALLS.encode(msgspec.structs.replace(call, started_at_ns=ns)) if isinstance(call, CallRecord) else value
        )

    return change


def test_a_run_that_is_proved_and_complete_is_0(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The positive case, without which the others say nothing."""
    assert status(wiring, memory_log(small_run()), monkeypatch) == 0


def test_a_false_verdict_is_1(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls bear a label whose weights did not sample them."""
    assert status(wiring, memory_log(small_run()), monkeypatch, is_from_previous=True) == 1


def test_an_incomplete_audit_is_1(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """One record of `episodes` is gone."""
    streams = small_run()
    lost = next(record for topic, record in records(streams) if topic is Topic.EPISODES)
    assert status(wiring, memory_log(streams, lost), monkeypatch) == 1


def test_no_acknowledged_version_is_1(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """None at all; or of another epoch, whose weights were not these."""
    streams = small_run()
    streams.log[Topic.WEIGHT_ACKS] = []
    assert status(wiring, memory_log(streams), monkeypatch) == 1
    streams = changed(small_run(), Topic.WEIGHT_ACKS, acks_with(epoch=2))
    assert "acknowledged" in str(find_proof(memory_log(streams), TOPICS, RunHash(RUN_HASH), "policy"))
    assert status(wiring, memory_log(streams), monkeypatch) == 1


def test_calls_before_the_acknowledgement_prove_nothing(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """A version counts as served from its acknowledgement on."""
    streams = changed(small_run(), Topic.WEIGHT_ACKS, acks_with(at_ms=1_000))
    early = changed(streams, Topic.LLM_CALLS, calls_at(999_999_999))
    assert "after its acknowledgement" in str(find_proof(memory_log(early), TOPICS, RunHash(RUN_HASH), "policy"))
    assert status(wiring, memory_log(early), monkeypatch) == 1
    later = changed(streams, Topic.LLM_CALLS, calls_at(1_000_000_000))
    assert isinstance(find_proof(memory_log(later), TOPICS, RunHash(RUN_HASH), "policy"), Proof)


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
    """Results, audit and verdict: whatever is asked first."""
    assert status(wiring, RestartingLog(memory_log(small_run())), monkeypatch) == 0


def test_only_the_demo_recomputes_what_was_served(wiring: Wiring, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other runs end without the minutes that it takes."""
    monkeypatch.setattr(wiring, "kafka", lambda **_: memory_log(small_run()))
    monkeypatch.setattr(demo, "verify_apart", None)
    assert session._make_report(report.make_report, wiring, JsonShow(io.StringIO())) == 0
    assert not (wiring.run_dir.results / "verdict.json").exists()


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
