"""Real SIGKILLs of a replay of files, and of its broker: the same command again, and all is as if nothing had been."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compose.history.doomed_replay import SEAMS
from tests.compose.history.exporting import json_lines
from tests.streams.make import agent_span, otlp, span, tool_span
from tracegrad.compose.history.run_broker import open_broker
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.topics import Topic

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(900)]

MODEL = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
NUM_TRACES = 100
DEATHS = (
    ("import, before its window is acknowledged", 2),
    ("import, before its progress is written", 3),
    ("between import and fold", 1),
    ("fold", 60),
    ("broker, in the fold", 90),
    ("transitions", 30),
    ("all is written", 1),
)


def requests() -> list[bytes]:
    """One a trace: an agent that asks a model twice, and a tool; 30 s from one to the next."""
    found = []
    for number in range(NUM_TRACES):
        trace, at = f"{number + 1:032x}", 1_700_000_000_000_000_000 + number * 30_000_000_000
        spans = [agent_span(trace, 1, "clerk", at=at), tool_span(trace, 2, parent=1, at=at)]
        for turn in range(2):
            asked = {"model": "gpt-4o", "messages": [{"role": "user", "content": f"{number}, {turn}? " * 20}]}
            answer = {"role": "assistant", "content": f"{turn} of {number}"}
            told: dict[str, Any] = {
                "openinference__span__kind": "LLM",
                "input__value": json.dumps(asked),
                "output__value": json.dumps({"choices": [{"message": answer, "finish_reason": "stop"}]}),
            }
            spans.append(span(trace, 10 + turn, "chat", parent=1, at=at, **told))
        found.append(otlp(*spans))
    return found


def replay(folder: Path, runs: str, seam: str = "", number: int = 0) -> subprocess.CompletedProcess[str]:
    """In a process of its own."""
    arguments = [str(folder / "history.toml"), "--from", f"files:{folder / 'files'}", "--into", "again"]
    own = [sys.executable, "-m", "tests.compose.history.doomed_replay", seam, str(number)]
    return subprocess.run(
        [*own, *arguments, "--runs-dir", str(folder / runs)], capture_output=True, text=True, timeout=300, check=False
    )


def records(run_dir: RunDir) -> dict[Topic, list[tuple[bytes, bytes]]]:
    """What it wrote: keys and values, in order of these."""
    with open_broker(run_dir) as servers:
        wiring = Wiring(run_dir, bootstrap_servers=servers)
        return {
            topic: sorted((one.key or b"", one.value or b"") for one in read_to_end(wiring.log(), name))
            for topic in (Topic.EPISODES, Topic.TRANSITIONS, Topic.DEAD_LETTERS)
            if (name := wiring.topics.name(topic))
        }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With files, and settings by which unrated episodes train."""
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "spans.json").write_bytes(json_lines(requests()))
    (tmp_path / "history.toml").write_text(
        f'run = "again"\n[history]\nmodels = ["*"]\n[policy]\nmodel = "{MODEL}"\n[replay]\nunrated = "train"\n'
    )
    return tmp_path


def test_killed_anywhere_the_same_command_makes_equal_records(folder: Path) -> None:
    """Episodes, transitions and dead letters, byte for byte and each once; the folder knows that it is whole."""
    assert {seam for seam, _ in DEATHS} == SEAMS.keys()
    whole = replay(folder, "whole")
    assert whole.returncode == 0, whole.stdout + whole.stderr
    for seam, number in DEATHS:
        killed = replay(folder, "killed", seam, number)
        told = seam, killed.stdout[-2_000:], killed.stderr[-2_000:]
        assert killed.returncode == -signal.SIGKILL, told
    last = replay(folder, "killed")
    assert last.returncode == 0, last.stdout + last.stderr
    expected, found = (RunDir.open(folder / runs / "again") for runs in ("whole", "killed"))
    assert found.replayed is not None and found.replayed.is_folded
    made = records(found)
    assert len(made[Topic.EPISODES]) == len(made[Topic.TRANSITIONS]) == NUM_TRACES
    assert made == records(expected)
