"""`regrade`: what it is told, and what is refused before a broker starts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
import typer

from tests.compose.cli.recorded_run import runs as runs
from tracegrad.compose.cli.replay_command import replay
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest
from tracegrad.compose.run.settings import RunSettings
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.where import Term


@pytest.fixture
def asked(runs: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[ReplayRequest, RunSettings]]:
    """What a replay would be asked for."""
    (runs / "strict.py").write_text("def grade(task, output, attempt): ...\n")
    found: list[tuple[ReplayRequest, RunSettings]] = []

    def keep(request: ReplayRequest, settings: RunSettings, *_: object) -> int:
        found.append((request, settings))
        return 0

    monkeypatch.setattr(history, "run_replay", keep)
    return found


def regraded(runs: Path, **options: Any) -> None:
    """Of the run `mine` into `new`."""
    told = {"grader": f"{runs / 'strict.py'}:grade", "into": "new", "from_": "run:mine", "runs_dir": runs, **options}
    with contextlib.suppress(typer.Exit):
        replay(**told)


def test_the_grader_is_the_new_runs_own(runs: Path, asked: list[tuple[ReplayRequest, RunSettings]]) -> None:
    """With the source's other settings; names that its grader had to give are not asked of this one, unless told so."""
    regraded(runs)
    regraded(runs, set_=['reward.names=["a"]', "reward.time_limit_s=3"])
    (request, first), (again, second) = asked
    assert first.reward is not None and second.reward is not None
    assert (first.run, first.reward.grader, first.reward.names) == ("new", f"{runs / 'strict.py'}:grade", ("reward",))
    assert (second.reward.names, second.reward.time_limit_s) == (("a",), 3.0)
    assert request.grader == again.grader != ""
    (runs / "strict.py").write_text("def grade(task, output, attempt): return 1\n")
    regraded(runs)
    assert asked[-1][0].grader != request.grader


def test_a_part_of_a_history_is_graded_as_it_is_replayed(
    runs: Path, asked: list[tuple[ReplayRequest, RunSettings]]
) -> None:
    """By the same options."""
    regraded(runs, from_="2024-01-02T00:00:00Z", where="task=a", mode="filter")
    ((request, _),) = asked
    assert request.begin_ms == 1_704_153_600_000
    assert request.where == (Term("task", "=", "a"),)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"where": "reward>0", "mode": "offline"}, "only --mode filter"),
        ({"grader": "nowhere.py:grade"}, r"grader: .*nowhere\.py"),
        ({"grader": "strict"}, r"grader: expected .*file\.py:function"),
        ({"set_": ["reward.grader=x.py:y"]}, "--grader names the grader, and so does --set reward.grader"),
        ({"into": "mine"}, "got the source's own"),
        ({"from_": "2999-01-01T00:00:00Z"}, "expected a time that has been"),
        ({"from_": "run:mine", "source_dir": Path("x")}, "leave one of them out"),
    ],
)
def test_what_cannot_be_is_refused(
    runs: Path, asked: list[tuple[ReplayRequest, RunSettings]], options: dict[str, Any], message: str
) -> None:
    """As of `replay`."""
    with pytest.raises(ConfigurationError, match=message):
        regraded(runs, **options)
    assert asked == []
