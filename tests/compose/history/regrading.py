"""A run whose outputs are graded anew, and graders of several tempers."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.compose.history.in_memory import hold_in_memory
from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS, call, closed, event, reward
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.runner.config import AgentConfig, RewardConfig
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import ROLLOUTS, GroupRef, RolloutRequest
from tracegrad.schemas.topics import Topic

GRADERS = """
import json, time

def grade(task, output, attempt):
    return float(output == task["expected"])

def sterner(task, output, attempt):
    with open(__file__ + ".asked", "a") as file:
        file.write(json.dumps([task, output, attempt]) + "\\n")
    if output == "raise":
        raise RuntimeError("no")
    if output == "hang":
        time.sleep(60)
    return -1.0 if output != task["expected"] else 2.0

def speechless(task, output, attempt):
    return None
"""
OUTPUTS = ("42", "41", "raise", "hang", None, "42")
"""Of three groups of two; for the fifth only a hash is recorded."""


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[SourceRun, dict[str, MemoryLog]]:
    """A run `test` whose attempts returned OUTPUTS; the logs of runs by name."""
    (tmp_path / "grade.py").write_text(GRADERS)
    run_dir = prepare_run(settings(tmp_path, "test"), tmp_path / "test")
    source, requests = lived(run_dir)
    past = source.past()
    for request in requests:
        past.writer().append(TOPICS.name(Topic.ROLLOUTS), key=b"", value=request, partition=0)
    logs = {"test": past}
    hold_in_memory(logs, monkeypatch)
    return source, logs


def lived(run_dir: RunDir) -> tuple[SourceRun, list[bytes]]:
    """A run whose attempts returned OUTPUTS, in memory; what its rollouts were asked for."""
    source = SourceRun(Wiring(run_dir).stream_rules())
    asked = []
    for number, output in enumerate(OUTPUTS):
        own = f"{run_dir.record.hash}{number:020x}"
        group = GroupRef(id=f"{run_dir.record.hash}{number // 2:016x}", size=2, member=number % 2, index=number // 2)
        one = call(f"c{number}", own, [1, 2], [3 + number])
        told: dict[str, Any] = {"output": json.dumps(output)} if output else {"output_sha256": "ab" * 32}
        was = reward(own, float(output == "42"), at_ms=number)
        source.live([one, closed(own, [one]), was, event(own, group=group, **told)], Random(number), pause_s=1.0)
        asked.append(
            RolloutRequest(
                rollout_id=own,
                group=group,
                task_id=f"t{number // 2}",
                input="6 * 7?",
                expected="42",
                policy="policy",
                purpose=Purpose.TRAIN,
            )
        )
    return source, [ROLLOUTS.encode(one) for one in asked]


def settings(folder: Path, run: str, grader: str = "grade") -> RunSettings:
    """Of a run whose grader it is."""
    return RunSettings(
        run=run,
        agent=AgentConfig(command="true"),
        reward=RewardConfig(grader=f"{folder / 'grade.py'}:{grader}", time_limit_s=2.0),
    )


def episodes(logs: dict[str, MemoryLog], tmp_path: Path) -> dict[int, Episode]:
    """Those of the new run, by the number of their rollout."""
    name = RunDir.open(tmp_path / "again").settings.topics.name(Topic.EPISODES)
    found = [EPISODES.decode(record.value) for record in logs["again"].records(name)]
    assert len(found) == len({one.episode_id for one in found}), "expected each episode once"
    return {int((one.rollout_id or "")[8:], 16): one for one in found}


Runs = tuple[SourceRun, dict[str, MemoryLog]]
