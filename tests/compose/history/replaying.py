"""A recorded run in memory, and the run that replays it."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.compose.history.in_memory import hold_in_memory
from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import conversation
from tests.versions import sampled_by
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.rewards.config import FeedbackConfig
from tracegrad.streams.config import SelectConfig
from tracegrad.trainer.config import AlgorithmConfig

SETTINGS = RunSettings(
    run="test",
    algorithm=AlgorithmConfig(recipe="rloo_batch"),
    select=SelectConfig(capture_all=True, train=True),
    feedback=FeedbackConfig(wait_s=60.0),
)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceRun, dict[str, MemoryLog]]:
    """A run `test` with three groups in a folder; the logs of runs by name."""
    return recorded(tmp_path, monkeypatch)


def recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_labelled: bool = True
) -> tuple[SourceRun, dict[str, MemoryLog]]:
    """The same; `is_labelled`: its calls name the version that sampled them, without which none trains."""
    run_dir = prepare_run(SETTINGS, tmp_path / "test")
    source = SourceRun(Wiring(run_dir).stream_rules())
    for number in range(3):
        key = f"{number:x}e" * 16
        rating = said(1.0, f"k{number}", conversation_key=key, at_ms=1)
        versions = (sampled_by(3, run=run_dir.record.hash),) if is_labelled else ()
        calls = conversation((f"a{number}", True), key=key, versions=versions)
        source.live([*calls, rating], Random(number), pause_s=1.0)
    logs = {"test": source.past()}
    hold_in_memory(logs, monkeypatch)
    return source, logs
