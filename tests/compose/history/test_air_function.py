"""`[air] function` in a replay: the user's own rule asked of the past, in a process of its own."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import msgspec
import pytest

from tests.compose.history.in_memory import Told
from tests.compose.history.regrading import Runs, episodes, settings
from tests.compose.history.regrading import runs as runs
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.consumers.history.replay import ReplayProgress
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.metrics import AIR_FUNCTION_FAILED, Metrics
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


def replayed(tmp_path: Path, rule: str = RULE) -> tuple[int, Told]:
    """Of the run of tests/compose/history/test_regrade.py, under the rule."""
    (tmp_path / "rule.py").write_text(rule)
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


def test_a_rule_that_fails_on_every_episode_is_an_error(runs: Runs, tmp_path: Path) -> None:
    """Whoever tunes a rule would take the numbers for its own."""
    with pytest.raises(
        ConfigurationError, match=r"\[air\] function: it failed on each of \d+ episodes, .*another name"
    ):
        replayed(tmp_path, "def pays(episode):\n    raise RuntimeError('no')\n")


@pytest.mark.parametrize(
    ("num", "failed", "is_whole", "is_told"),
    [
        (0, 0, True, False),
        (3, 3, True, True),
        (3, 3, False, False),
        (3, 2, True, False),
        (20, 20, False, True),
        (21, 20, False, False),
    ],
)
def test_a_rule_that_failed_on_enough_is_not_asked_about_the_rest(
    num: int, failed: int, is_whole: bool, is_told: bool
) -> None:
    """Each may take its time limit. One that paid for an episode goes on to the end."""
    metrics = Metrics()
    for reason in ("raised", "timeout"):
        metrics.add(AIR_FUNCTION_FAILED, reason, num=failed - failed // 2 if reason == "raised" else failed // 2)
    progress = ReplayProgress(num_read=1, num_records=2, seconds=1.0, counts={"episodes": num}, is_whole=is_whole)
    with pytest.raises(ConfigurationError) if is_told else contextlib.nullcontext():
        history.check_function(progress, metrics)
