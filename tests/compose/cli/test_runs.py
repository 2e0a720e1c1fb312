"""`runs`: what lies in a folder of runs, how they differ, and what is removed."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import typer

from tracegrad.compose.cli import runs as command
from tracegrad.compose.run.load import load
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.schemas.errors import ConfigurationError


def made(runs: Path, name: str, **flags: object) -> RunDir:
    """A run that was prepared; its flags by keys with `__` for the dot."""
    given = {key.replace("__", "."): value for key, value in flags.items()}
    return prepare_run(load(None, environ={}, flags={"run": name} | given, for_training=False), runs / name)


def listed(runs: Path, capsys: pytest.CaptureFixture[str]) -> list[dict[str, object]]:
    """As JSON."""
    command.list_runs(runs, as_json=True)
    return [msgspec.json.decode(line) for line in capsys.readouterr().out.splitlines()]


def test_runs_are_listed_with_what_decides_what_is_learned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The newest first, of which the others differ; where a run listens and its secrets decide nothing."""
    made(tmp_path, "old", trainer__lr=1e-5, llm__token="hush", agent__command="cat", agent__env={"KEY": "hush"})
    made(tmp_path, "new", trainer__lr=1e-4).write_outcome(Outcome(kind=OutcomeKind.FATAL, why="why"))
    (tmp_path / "new" / "logs" / "big.log").write_bytes(bytes(2_000_000))
    new, old = listed(tmp_path, capsys)
    assert (new["run"], new["state"], new["megabytes"], new["differs"]) == ("new", "fatal", 2, {})
    assert (old["run"], old["state"], old["held_out"]) == ("old", "not running", None)
    assert old["differs"]["trainer.lr"] == "0.00001" and old["differs"]["agent.command"] == '"cat"'  # type: ignore[index]
    command.list_runs(tmp_path)
    shown = capsys.readouterr().out
    assert "trainer.lr=0.00001" in shown and "hush" not in f"{shown}{old}"


def test_a_run_that_is_damaged_or_half_made_hides_no_other(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown with its fault, and what was begun and never started can be removed."""
    made(tmp_path, "sound")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    half = made(tmp_path, "half")
    half.config.unlink()
    half.endpoints_file.unlink()
    told = {one["run"]: one for one in listed(tmp_path, capsys)}
    assert told.keys() == {"sound", "half", "broken"} and told["sound"]["state"] == "not running"
    assert told["broken"]["state"] == "damaged" and "run.json" in told["broken"]["differs"]["error"]  # type: ignore[index]
    command.remove("half", is_sure=True, runs_dir=tmp_path)
    assert not half.path.exists()


def test_a_folder_without_a_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """For scripts it is an empty list."""
    assert listed(tmp_path, capsys) == []
    command.list_runs(tmp_path)
    assert f"no run under {tmp_path}" in capsys.readouterr().out


def test_a_run_is_removed_when_a_person_is_sure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name again makes a new one."""
    made(tmp_path, "mine")
    monkeypatch.setattr("typer.confirm", lambda text, *, abort: (_ for _ in ()).throw(typer.Abort()))
    with pytest.raises(typer.Abort):
        command.remove("mine", runs_dir=tmp_path)
    assert (tmp_path / "mine").exists()
    command.remove("mine", is_sure=True, runs_dir=tmp_path)
    assert not (tmp_path / "mine").exists()


def test_what_stays_on_a_cluster_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that removes it; the raw topics may be other runs' too."""
    made(tmp_path, "mine", kafka__bootstrap_servers="kafka:9092", kafka__topic_prefix="team.")
    command.remove("mine", is_sure=True, runs_dir=tmp_path)
    told = capsys.readouterr().out
    assert "kafka-topics.sh --bootstrap-server kafka:9092 --delete" in told and "team.mine.episodes" in told
    assert "otlp_spans" not in told


def test_a_run_that_lives_or_that_another_rests_on_is_not_removed(tmp_path: Path) -> None:
    """A process holds its lock; a run selects its episodes, or begins with its weights."""
    mine = made(tmp_path, "mine")
    with mine.lock(), pytest.raises(ConfigurationError, match="already is the supervisor"):
        command.remove("mine", is_sure=True, runs_dir=tmp_path)
    made(tmp_path, "other", select__runs=[str(mine.path)])
    with pytest.raises(ConfigurationError, match="runs other rest on"):
        command.remove("mine", is_sure=True, runs_dir=tmp_path)
    command.remove("other", is_sure=True, runs_dir=tmp_path)
    command.remove("mine", is_sure=True, runs_dir=tmp_path)
