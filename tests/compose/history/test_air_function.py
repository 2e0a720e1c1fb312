"""`[air] function` in a replay: the user's own rule asked of the past, in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from tests.compose.history.in_memory import Told
from tests.compose.history.test_regrade import Runs, episodes, settings
from tests.compose.history.test_regrade import runs as runs
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.schemas.records.episodes import AppliedReward
from tracegrad.streams.assemble.air.rules import AirConfig

RULE = """
import json, os, time

def pays(episode):
    output = json.loads(episode.get("output") or "null")
    if output == "raise":
        raise RuntimeError("no")
    if output == "hang":
        time.sleep(60)
    if output == "41":
        os._exit(3)
    if output is None:
        return [("nobody", "kind")]
    return [(episode["calls"][0]["call_id"], "kind", 0.25), ("nobody", "kind", 1.0)]
"""
FAILED = [
    "counted: air_function_failed{reason=died} 1",
    "counted: air_function_failed{reason=raised} 2",
    "counted: air_function_failed{reason=timeout} 1",
]


def replayed(tmp_path: Path) -> tuple[int, Told]:
    """Of the run of tests/compose/history/test_regrade.py, under the rule."""
    (tmp_path / "rule.py").write_text(RULE)
    source, show = RunDir.open(tmp_path / "test"), Told()
    air = AirConfig(function=f"{tmp_path / 'rule.py'}:pays", function_limit_s=1.0)
    made = history.replayed_settings(source, msgspec.structs.replace(settings(tmp_path, "again"), air=air), None)
    return history.run_replay(ReplayRequest(source=source.path), made, tmp_path / "again", show), show


def test_a_rule_that_raises_hangs_dies_or_says_nonsense_costs_what_it_would_have_paid(
    runs: Runs, tmp_path: Path
) -> None:
    """That episode alone, by its reason; the others are paid, the graders' rewards stay, and the replay ends."""
    began_s = time.monotonic()
    status, told = replayed(tmp_path)
    assert status == 0 and time.monotonic() - began_s < 30
    found = episodes(runs[1], tmp_path)
    paid = [AppliedReward(rule="air:kind", value=0.25)]
    assert {number: list(one.calls[0].rewards) for number, one in found.items()} == {
        0: paid,
        1: [],
        2: [],
        3: [],
        4: [],
        5: paid,
    }
    assert [found[number].reward for number in range(6)] == [1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert len({one.air_rules for one in found.values()}) == 1
    assert told.counts["groups"] == 3
    assert sorted(line for line in told.lines if "air_function_failed" in line) == FAILED


def test_the_same_command_pays_the_same(runs: Runs, tmp_path: Path) -> None:
    """Whatever failed fails again: nothing is written twice."""
    replayed(tmp_path)
    before = episodes(runs[1], tmp_path)
    status, told = replayed(tmp_path)
    assert (status, told.counts.get("written", 0)) == (0, 0)
    assert episodes(runs[1], tmp_path) == before
