"""What a process's end says to its supervisor."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tracegrad.compose.beats import read_beat
from tracegrad.compose.run import serve
from tracegrad.compose.run.run_dir import Endpoints, RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.beat import beat
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.metrics import CALLS, Metrics


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

    settings = RunSettings(run="test", policy=PolicyConfig(model="none"))
    folder = RunDir.create(tmp_path / "test", settings)
    folder.write_start(
        settings, Endpoints(bootstrap_servers="none:1", llm_url="none", otlp_endpoint="none", engine_urls=("none",))
    )
    admin = SimpleNamespace(partition_counts=dict if is_kafka_there else away)
    for name in ("kafka", "log"):
        monkeypatch.setattr(Wiring, name, lambda _: SimpleNamespace(admin=admin, writer=away))
    monkeypatch.setattr(serve, "_run", run)
    monkeypatch.setattr(serve, "_set_up_logging", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    status = serve.serve("llm", folder.path)
    assert status == (1 if expected == 75 and is_kafka_there else expected)
    told = read_beat(folder.beats / "llm")
    assert told is not None and (told.num_turns, told.work) == (1, 1)


def test_a_process_of_another_release_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As a trainer with an environment of its own may be: what it writes nobody would read, and all would wait."""
    settings = RunSettings(run="test", policy=PolicyConfig(model="none"))
    folder = RunDir.create(tmp_path / "test", settings)
    addresses = dict.fromkeys(("bootstrap_servers", "llm_url", "otlp_endpoint"), "none:1")
    folder.write_start(settings, Endpoints(**addresses, engine_urls=("none:1",), release="0.0.9"))
    monkeypatch.setattr(serve, "_run", lambda *_: None)
    monkeypatch.setattr(serve, "_set_up_logging", lambda *_: None)
    monkeypatch.setattr("signal.signal", lambda *_: None)
    assert serve.serve("engine", folder.path) == 78
    assert "expected tracegrad 0.0.9, which started the run, got" in caplog.text
    assert "install the same release" in caplog.text
