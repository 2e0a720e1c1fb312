"""`replay`: what a time means, which run is the source, and what is refused before a broker starts."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tests.compose.cli.recorded_run import runs as runs
from tests.compose.run.example_settings import SETTINGS
from tracegrad.compose.cli import app
from tracegrad.compose.cli.replay_command import moment_ms, replay
from tracegrad.compose.history import replay as history
from tracegrad.compose.history.request import ReplayRequest, remember
from tracegrad.compose.history.run_broker import is_running, open_broker, readable
from tracegrad.compose.kafka.client_settings import KafkaConfig
from tracegrad.compose.printable_log import LOG_FORMAT
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.show import Show
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.errors import ConfigurationError

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
NOW_MS = int(1000 * NOW.timestamp())


@pytest.mark.parametrize(
    ("text", "before"),
    [
        ("PT2H", timedelta(hours=2)),
        ("P1DT30M", timedelta(days=1, minutes=30)),
        ("PT90S", timedelta(seconds=90)),
        ("2026-03-02T11:00:00+00:00", timedelta(hours=1)),
        ("2026-03-02T12:30:00+01:00", timedelta(minutes=30)),
        ("2026-03-02T12:00:00Z", timedelta()),
    ],
)
def test_a_time_is_a_time_or_how_long_ago(text: str, before: timedelta) -> None:
    """In ISO 8601 both."""
    assert moment_ms(text, "--from", NOW) == NOW_MS - int(before.total_seconds() * 1000)


@pytest.mark.parametrize("text", ["yesterday", "P", "PT", "2h", "run", "", "P99999999999D", "0001-01-01T00:00:00"])
def test_what_is_no_time_is_named(text: str) -> None:
    """With its flag and the forms that there are; also one that no calendar has."""
    with pytest.raises(ConfigurationError, match=rf"--to: expected a time such as .* got '{text}'"):
        moment_ms(text, "--to", NOW)


def test_a_time_to_come_is_refused() -> None:
    """With the time that it is now."""
    with pytest.raises(ConfigurationError, match=r"--from: expected a time that has been, got 2027-.* now is 2026-"):
        moment_ms("2027-01-01T00:00:00+00:00", "--from", NOW)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"from_": "run:mine", "into": "mine"}, "got the source's own"),
        ({"from_": "run:other", "into": "new"}, "expected a run folder"),
        ({"from_": "2999-01-01T00:00:00Z", "into": "new"}, "expected a time that has been"),
        ({"from_": "PT1H", "to": "PT2H", "into": "new"}, "expected --to to be later"),
        ({"from_": "run:mine", "source_dir": Path("x"), "into": "new"}, "leave one of them out"),
        ({"from_": "run:mine", "into": "new", "set_": ["air.enable=false"]}, "did you mean 'enabled'"),
        ({"from_": "run:mine", "into": "new", "mode": "same", "set_": ["trainer.lr=2e-4"]}, r"\[trainer\] lr"),
        ({"from_": "PT1H", "into": "new", "mode": "same"}, "a part of the history"),
        ({"into": "new", "set_": ['air.rules=[{"name": "x", "value": "much"}]']}, "value"),
        ({"into": "new", "set_": ['air.rules=[{"name": "x"']}, "expected JSON"),
        ({"into": "new", "set_": ["air.function=/nowhere/rule.py:pay"]}, "no such file: /nowhere/rule.py"),
        ({"into": "new", "where": "reward>0", "mode": "offline"}, "--where: expected facts known before the outcome"),
        ({"into": "new", "where": "service=shop", "mode": "same"}, "a part of the history"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_opened_or_written(
    runs: Path, given: dict[str, Any], message: str
) -> None:
    """No folder, no broker."""
    with pytest.raises(ConfigurationError, match=message):
        replay(**given, runs_dir=runs)
    assert sorted(mark.parent.name for mark in runs.glob("*/run.json")) == ["mine"]
    assert not (runs / "new").exists()


@pytest.mark.parametrize("is_regraded", [False, True])
def test_what_nobody_is_asked_again_may_be_gone(runs: Path, is_regraded: bool) -> None:
    """The agent, the tasks, and of a replay the grader, have been moved since."""
    (runs / "tasks.jsonl").unlink()
    (runs / "grade.py").unlink()
    with pytest.raises(RuntimeError, match="opened mine"):
        if is_regraded:
            replay(grader=_strict(runs), from_="run:mine", into="new", set_=[f"agent.cwd={runs}"], runs_dir=runs)
        else:
            replay(from_="run:mine", into="new", runs_dir=runs)


def _strict(runs: Path) -> str:
    (runs / "strict.py").write_text("def grade(task, output, attempt): ...")
    return f"{runs / 'strict.py'}:grade"


def test_a_grader_whose_folder_is_gone_is_told_which_keys_name_it(runs: Path) -> None:
    """It works where the agent did."""
    with pytest.raises(ConfigurationError, match=r"No such file .* --set agent\.cwd"):
        replay(grader=_strict(runs), from_="run:mine", into="new", set_=["agent.cwd=/nowhere"], runs_dir=runs)
    assert not (runs / "new").exists()


@pytest.mark.parametrize(
    ("given", "dry_run"), [(["--dry-run"], "count"), (["--dry-run=full"], "full"), (["--dry-run", "--json"], "count")]
)
def test_a_dry_run_counts_unless_it_is_to_be_full(
    runs: Path, monkeypatch: pytest.MonkeyPatch, given: list[str], dry_run: str
) -> None:
    """A FILE behind it is a FILE, and no value of it."""
    asked = list[ReplayRequest]()
    monkeypatch.setattr(history, "run_replay", lambda request, *_: asked.extend([request]))
    words = ["replay", "--from", "run:mine", "--into", "new", "--runs-dir", str(runs), *given]
    assert CliRunner().invoke(app, words).exit_code == 0
    assert CliRunner().invoke(app, [*words, str(runs / "none.toml")]).exit_code != 0
    assert [request.dry_run for request in asked] == [dry_run]
    assert asked[0].asked == "--from earliest"


@pytest.mark.parametrize("command", ["replay", "regrade"])
def test_logs_are_as_asked_in_all_processes_of_a_replay(
    runs: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """By the variable that they inherit."""
    monkeypatch.setenv(LOG_FORMAT, "text")
    asked = list[str]()
    monkeypatch.setattr(history, "run_replay", lambda *_: asked.append(os.environ[LOG_FORMAT]))
    words = [command, "--from", "run:mine", "--into", "new", "--runs-dir", str(runs), "--log-format", "json"]
    words += ["--grader", _strict(runs)] if command == "regrade" else []
    result = CliRunner().invoke(app, words)
    assert (result.exit_code, asked) == (0, ["json"]), result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["replay", "--grader", "x:y", "--reclose"], "leave one of them out"),
        (["replay", "some.toml", "--grader", "x:y"], "name single keys by --set"),
    ],
    ids=["reclosed", "other_settings"],
)
def test_options_that_do_not_go_together_are_refused(runs: Path, words: list[str], message: str) -> None:
    """By the words that name them."""
    command, *rest = words
    given = ["--from", "run:mine", "--into", "new", "--runs-dir", str(runs), *rest]
    with pytest.raises(ConfigurationError, match=message):
        CliRunner().invoke(app, [command, *given], catch_exceptions=False, standalone_mode=False)


def test_regrade_wants_a_grader_and_shows_only_options_that_go_with_it() -> None:
    """A file of other settings and `--reclose` do not; `replay` has all of them."""
    root: Any = get_command(app)
    shown = {name: {one.name: one.required for one in root.commands[name].params} for name in ("replay", "regrade")}
    assert {name for name, is_required in shown["regrade"].items() if is_required} == {"into", "grader"}
    assert shown["replay"].keys() - shown["regrade"].keys() == {"file", "reclose"}
    lacks = CliRunner().invoke(app, ["regrade", "--into", "new"])
    assert (lacks.exit_code, "--grader" in lacks.output) == (2, True)


def test_the_same_command_goes_on_with_the_same_source(runs: Path) -> None:
    """Though the newest run is the replay by then."""
    source = RunDir.open(runs / "mine")
    settings = history.replayed_settings(source, msgspec.structs.replace(source.settings, run="again"), None)
    (runs / "again").mkdir()
    remember(ReplayRequest(source=source.path, asked="--from PT2H"), source, settings, RunDir(runs / "again"))
    prepare_run(settings, runs / "again")
    with pytest.raises(RuntimeError, match="opened mine"):
        replay(into="again", from_="PT2H", runs_dir=runs)


def test_a_source_without_its_key_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that it wrote could be told from what strangers wrote; nothing is written."""
    (runs / "mine" / "key.json").unlink()
    monkeypatch.setattr(history, "open_broker", _somewhere)
    with pytest.raises(ConfigurationError, match=r"no key\.json in"):
        replay(into="new", from_="run:mine", runs_dir=runs)
    assert not (runs / "new").exists()


def test_a_broker_that_another_replay_has_opened_is_not_shared(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes with that one, in the midst of what the second reads; one of a live run stays."""
    monkeypatch.undo()
    source = RunDir.open(runs / "mine")
    with source.lock(), open_broker(source) as servers:
        assert servers == source.endpoints.bootstrap_servers
    with source.lock(), source.lock("reader"), pytest.raises(ConfigurationError, match=r"is the reader of .* its end"):
        open_broker(source).__enter__()
    told = list[str]()
    with source.lock("reader"), pytest.raises(ConfigurationError, match="is the reader of"):
        open_broker(source, wait_s=0.5, say=told.append).__enter__()
    assert told[0] == "another command reads run mine; its end is waited for, 0.5 s at most"


def test_a_run_that_is_only_read_does_not_run(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reader holds its supervisor's lock, so that nobody starts it meanwhile."""
    monkeypatch.undo()
    source = RunDir.open(runs / "mine")
    assert not is_running(source)
    with source.lock():
        assert is_running(source)
        with source.lock("reader"):
            assert not is_running(source)


def test_a_cluster_is_read_whatever_its_address_looks_like(runs: Path) -> None:
    """It may name no port."""
    source = RunDir.open(runs / "mine")
    settings = msgspec.structs.replace(source.settings, kafka=KafkaConfig(bootstrap_servers="broker"))
    source.write_start(settings, msgspec.structs.replace(source.endpoints, bootstrap_servers="broker"))
    with readable(Wiring(RunDir.open(source.path))) as found:
        assert found.endpoints.bootstrap_servers == "broker"


def test_a_broker_that_has_to_start_first_is_told(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds, on a busy machine half a minute, in which the command shows nothing; one that answers is no news."""
    monkeypatch.undo()
    source, told = RunDir.open(runs / "mine"), list[str]()
    started = contextlib.nullcontext(SimpleNamespace(bootstrap_servers="127.0.0.1:9"))
    monkeypatch.setattr("tracegrad.compose.history.run_broker.LocalKafka", lambda *_, **__: started)
    with source.lock(), open_broker(source, say=told.append):
        assert told == []
    with open_broker(source, say=told.append) as servers:
        assert servers == "127.0.0.1:9" and told == [
            "starting the broker of run mine, which has ended, to read its topics"
        ]


@contextlib.contextmanager
def _somewhere(source: RunDir, **_: object) -> Iterator[str]:
    yield "127.0.0.1:1"


def test_the_terminal_is_left_as_it_was_whatever_is_refused(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before anything is opened."""
    closed = list[Show]()
    monkeypatch.setattr(Show, "close", lambda show: closed.append(show))
    request = ReplayRequest(source=runs / "nowhere")
    with pytest.raises(ConfigurationError, match="expected a run folder"):
        history.run_replay(request, SETTINGS, runs / "new", Show())
    assert len(closed) == 1
