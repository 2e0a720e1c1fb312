"""What a process's end says to its supervisor."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.compose.run.example_settings import SETTINGS
from tracegrad.compose.beats import read_beat
from tracegrad.compose.run import serve
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.metrics import CALLS, Metrics


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither its logging nor its signals are touched."""
    monkeypatch.setattr(serve, "_set_up_logging", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)


@pytest.mark.parametrize("is_kafka_there", [True, False], ids=["Kafka answers", "Kafka is away"])
@pytest.mark.parametrize(
    ("error", "expected"),
    [(UnavailableError("no answer"), 75), (ConfigurationError("wrong"), 78), (OSError("disk"), 1)],
    ids=["unavailable", "configuration", "other"],
)
def test_an_end_for_want_of_kafka_is_told_from_the_others(
    error: Exception, expected: int, is_kafka_there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By asking it: the port of a gateway that is taken is unavailable too."""

    def away(*_: Any) -> None:
        raise UnavailableError("away")

    def run(name: str, stage: Any, ordinal: int, wiring: Any, stop: Any, metrics: Metrics) -> None:
        metrics.add(CALLS)
        beat()
        raise error

    folder = prepare_run(SETTINGS, tmp_path / "mine")
    admin = SimpleNamespace(partition_counts=dict if is_kafka_there else away)
    for name in ("kafka", "log"):
        monkeypatch.setattr(Wiring, name, lambda _: SimpleNamespace(admin=admin, writer=away))
    monkeypatch.setattr(serve, "_run", run)
    status = serve.serve("llm", folder.path)
    assert status == (1 if expected == 75 and is_kafka_there else expected)
    told = read_beat(folder.beats / "llm")
    assert told is not None and (told.num_turns, told.work) == (1, 1)


def test_a_process_of_another_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a trainer with an environment of its own may be: what it writes nobody would read, and all would wait."""
    folder = prepare_run(SETTINGS, tmp_path / "mine")
    folder.write_start(SETTINGS, msgspec.structs.replace(folder.endpoints, release="0.0.9"))
    monkeypatch.setattr(serve, "_run", lambda *_: None)
    assert serve.serve("engine", folder.path) == 78
    assert "expected tracegrad 0.0.9, which started the run, got" in caplog.text
    assert "install the same release" in caplog.text
