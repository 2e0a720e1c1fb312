"""A replay's folder: `replay` alone goes on with it, and its words say how."""

from __future__ import annotations

import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from tests.compose.history.in_memory import Told
from tests.compose.run.example_settings import SETTINGS
from tracegrad.compose.cli import app
from tracegrad.compose.files import write_record
from tracegrad.compose.history.replay import replayed_settings
from tracegrad.compose.history.request import ReplayRequest, remember
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.session import INTERRUPTED, _ended_otherwise, replay_command, run_session
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.schemas.errors import ConfigurationError


@pytest.fixture
def again(tmp_path: Path) -> RunDir:
    """A replay of `mine` that was stopped while it trained."""
    source = prepare_run(SETTINGS, tmp_path / "mine")
    settings = replayed_settings(source, msgspec.structs.replace(SETTINGS, run="again"), "offline")
    (tmp_path / "again").mkdir()
    request = ReplayRequest(source=source.path, asked="--from PT2H --to 'a b'", mode="offline", reclose=True)
    remember(request, source, settings, made := RunDir(tmp_path / "again"))
    prepare_run(settings, made.path)
    return made


def test_the_command_is_what_was_asked_for(again: RunDir) -> None:
    """Word by word, wherever it is typed; a run that is no replay has none."""
    command = replay_command(again)
    assert command is not None
    assert shlex.split(command) == [
        *("tracegrad", "replay", "--from", "PT2H", "--to", "a b", "--source-dir", str(again.path.parent / "mine")),
        *("--into", "again", "--runs-dir", str(again.path.parent), "--reclose", "--mode", "offline"),
    ]
    assert replay_command(RunDir.open(again.path.parent / "mine")) is None


def test_what_was_graded_anew_goes_on_by_regrade_with_its_grader(again: RunDir) -> None:
    """A plain replay of it would be refused."""
    made = again.replayed
    assert made is not None
    write_record(again.replay_file, msgspec.structs.replace(made, reclose=False, grader="ab" * 32))
    command = replay_command(again)
    assert command is not None
    assert shlex.split(command)[:4] == ["tracegrad", "regrade", "--grader", "/somewhere/grade.py:score"]


def test_a_replay_is_not_audited_but_its_source(again: RunDir) -> None:
    """It has no raw records of its own, so that each of its calls would be missing."""
    with pytest.raises(ConfigurationError, match=r"tracegrad audit .*mine`.*--dry-run=full"):
        app(["audit", str(again.path)], standalone_mode=False)


@pytest.mark.parametrize(
    "options", [{"for_training": True}, {"for_training": False}, {"for_training": False, "only": "streams"}]
)
def test_up_and_train_refuse_a_replays_folder(again: RunDir, options: dict[str, Any]) -> None:
    """With the command that goes on with it; nothing in it changes."""
    before = again.config.read_bytes()
    with pytest.raises(ConfigurationError, match=r"which only `replay` goes on with: tracegrad replay --from PT2H"):
        run_session(again.settings, again.path, Told(), **options)
    assert again.config.read_bytes() == before


def test_a_replay_that_is_stopped_while_it_trains_names_the_command_that_goes_on(again: RunDir) -> None:
    """`train` and `up` would refuse."""
    show = Told()
    wiring: Any = SimpleNamespace(run_dir=again, record=again.record)
    outcome = Outcome(kind=OutcomeKind.STOPPED)
    assert _ended_otherwise(outcome, wiring, show) == INTERRUPTED
    assert show.lines == [
        f"stopped; the same command goes on: {replay_command(again)}, and the FILE and the --set that it had"
    ]
