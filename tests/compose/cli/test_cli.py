"""The command line: help in groups, one clear message per mistake, exit statuses."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from rich.markup import render
from typer.main import get_command

from tests.memory_log import MemoryLog
from tracegrad.compose import cli
from tracegrad.compose.cli import GONE, app
from tracegrad.compose.cli import run as run_commands
from tracegrad.compose.kafka.client_settings import TAIL_GROUP
from tracegrad.compose.run.run_dir import Endpoints, RunDir
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.supervisor import Outcome, OutcomeKind
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.records.process_status import (
    PROCESS_STATUS,
    ProcessReport,
    ProcessState,
    ProcessStatus,
    SupervisedProcess,
)
from tracegrad.schemas.topics import INPUTS, Topic

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def leave(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> Any:
    """The status with which a command ends."""
    monkeypatch.setattr(sys, "argv", ["tracegrad", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        cli.main()
    return left.value.code


def test_the_bare_command_shows_its_help(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """As a usage error; nothing has been asked for."""
    assert leave(monkeypatch) == 2
    assert "Train LLM agents from their traces" in capsys.readouterr().out


def test_help_shows_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """What runs something, what looks at it."""
    app(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    names = ("demo", "train", "check", "up", "env", "serve", "status", "tail", "audit", "runs", "topics")
    places = [shown.index(f" {name} ") for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "command", ["demo", "train", "up", "replay", "env", "status", "tail", "audit", "check", "serve"]
)
def test_each_command_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In its help; run within this process, which is faster."""
    app([command, "--help"], standalone_mode=False)
    assert "Example: " in " ".join(capsys.readouterr().out.split())


def test_run_names_a_new_run_or_finds_one_by_what_the_command_does() -> None:
    """A command that looks says that a name or a folder is meant; one that starts, how it is named."""
    root: Any = get_command(app)
    commands = {**root.commands, **{f"topics {name}": one for name, one in root.commands["topics"].commands.items()}}
    commands |= {f"air {name}": one for name, one in root.commands["air"].commands.items()}
    told = {
        name: param.help.partition(";")[0]
        for name, command in commands.items()
        for param in command.params
        if "--run" in param.opts
    }
    starts = {name for name, text in told.items() if text == r"Name of the run, \[a-z0-9-]{1,40}"}
    assert starts == {"demo", "train", "up", "topics create"}
    assert {text for name, text in told.items() if name not in starts} == {"The run's name or folder"}
    assert {"tail", "env", "topics list"} <= told.keys()


def test_no_word_of_the_help_is_taken_for_markup() -> None:
    """A `[section]` that is not escaped would be, and not be shown."""
    root: Any = get_command(app)
    commands = [root, *root.commands.values(), *root.commands["topics"].commands.values()]
    told = [command.help or "" for command in commands]
    told += [getattr(param, "help", None) or "" for command in commands for param in command.params]
    assert [text for text in told if render(text).spans] == []


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("train", "nowhere.toml"), 78, "no such file: nowhere.toml"),
        (("train", "examples/calculator", "--set", "trainer.step=3"), 78, "did you mean 'steps'?"),
        (("train", "examples/calculator", "--set", "steps"), 78, "expected section.key=value"),
        (("up", "--only", "everything"), 2, "is not one of 'capture', 'streams', 'train'"),
        (("serve", "trainr", "--run-dir", "."), 78, "did you mean 'trainer'?"),
        (("serve", "streams", "--run-dir", "."), 78, "--stage must be one of normalize, assemble, credit"),
        (("tail", "episode"), 78, "did you mean 'episodes'?"),
        (("status", "--runs-dir", "nowhere"), 3, "no run under nowhere"),
        (("status", "mine", "--runs-dir", "nowhere"), 3, "runs in nowhere: none"),
        (("audit", "mine", "--runs-dir", "nowhere"), 78, "expected a run folder, got nowhere/mine"),
        (("topics", "create", "examples/calculator"), 78, "--bootstrap-servers"),
        (("recipes", "grpo"), 78, f"recipes: it is gone: {GONE['recipes']}"),
        *((("status", gone, "x"), 78, f"{gone}: it is gone: {GONE[gone]}") for gone in GONE if gone[0] == "-"),
        (("nonsense",), 2, "No such command"),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_mistakes_are_one_clear_message(
    arguments: tuple[str, ...],
    status: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Exit status 78 for settings that cannot work, 3 of `status` for no run, 2 for usage; never a traceback."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr("tracegrad.compose.run.serve._set_up_logging", lambda *_: None)
    assert leave(monkeypatch, *arguments) == status
    shown = capsys.readouterr()
    if "serve" not in arguments:
        assert message in " ".join(shown.err.replace("│", "").split())


def test_a_bug_is_one_line_and_a_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What, where, and which file holds the traceback; a variable prints that instead."""

    def broken(*_: object) -> None:
        raise ValueError("no such\nthing")

    monkeypatch.setattr("tracegrad.compose.cli.look.find_run", broken)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert leave(monkeypatch, "status", "mine") == 70
    (line,) = capsys.readouterr().err.splitlines()
    (file,) = tmp_path.iterdir()
    assert (
        line.startswith("tracegrad: a bug of ours: ValueError at test_cli.py:")
        and ": no such thing; " in line
        and str(file) in line
    )
    assert "Traceback" in file.read_text()
    monkeypatch.setenv("TRACEGRAD_DEBUG", "1")
    assert leave(monkeypatch, "status", "mine") == 70
    assert "Traceback" in capsys.readouterr().err


def test_topics_dry_run_prints_topics_and_acls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks no cluster."""
    monkeypatch.chdir(ROOT)
    assert leave(monkeypatch, "topics", "create", "examples/calculator", "--dry-run") == 0
    shown = capsys.readouterr().out
    assert "topic calculator.episodes partitions=4" in shown and "acl read" in shown
    for stage in INPUTS:
        assert f"group calculator.{stage.value}\n  acl read,describe:  {stage.value}" in shown
    assert f"group {TAIL_GROUP}\n" in shown


def started_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> RunSettings:
    """The settings with which a command would start a session."""
    started: list[RunSettings] = []

    def run_session(settings: RunSettings, *_: object, **__: object) -> int:
        started.append(settings)
        return 0

    monkeypatch.setattr(run_commands, "run_session", run_session)
    app(list(arguments), standalone_mode=False)
    (settings,) = started
    return settings


def test_real_problems_need_a_tasks_file_and_a_model_folder_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`tracegrad train examples/math/tracegrad.toml --tasks FILE --model DIR`, from any folder."""
    (tmp_path / "problems.jsonl").write_text('{"id": "a", "input": "1+1", "expected": "2"}\n')
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    file = str(ROOT / "examples" / "math" / "tracegrad.toml")
    arguments = ("--tasks", "problems.jsonl", "--model", "small", "--set", "agent.python=python3")
    settings = started_with(monkeypatch, "train", file, *arguments)
    assert settings.tasks is not None and settings.tasks.file == str(tmp_path / "problems.jsonl")
    assert settings.tasks.eval_file is None
    assert settings.policy.model == str(tmp_path / "small")
    assert (settings.engine.dtype, settings.trainer.dtype) == (None, "auto")


@pytest.mark.parametrize(
    ("command", "given", "is_captured"),
    [
        ("train", "", None),
        ("up", "", True),
        ("up", "select.capture_all=false", False),
        ("up", 'select.services=["shop"]', None),
        ("up", 'select.runs=["runs/other"]', None),
        ("train", "select.capture_all=true", True),
    ],
)
def test_up_takes_what_arrives_and_train_its_own_rollouts(
    command: str, given: str, is_captured: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless `[select]` says otherwise."""
    example = str(ROOT / "examples" / "calculator")
    file = f"{example}/tracegrad.toml" if command == "up" else example
    settings = started_with(monkeypatch, command, file, *(["--set", given] if given else []))
    assert settings.select.capture_all is is_captured


def started(folder: Path, *statuses: ProcessStatus) -> tuple[RunDir, MemoryLog]:
    """A run `mine` in it, and its log with its topics, on which that was told of processes."""
    settings = RunSettings(run="mine", policy=PolicyConfig(model="none"))
    run_dir = RunDir.create(folder / "mine", settings)
    run_dir.write_start(settings, Endpoints(bootstrap_servers="b", llm_url="l", otlp_endpoint="o", engine_urls=("e",)))
    log, topics = MemoryLog(), Wiring(run_dir).topics
    log.create_topics(topics, policies=["policy"])
    for status in statuses:
        log.writer().append(topics.name(Topic.PROCESS_STATUS), key=b"", value=PROCESS_STATUS.encode(status))
    return run_dir, log


def some_statuses(now_ms: int) -> list[ProcessStatus]:
    """Of one that was silent for a minute, and one that was started again after it had told."""
    counters = {
        "records": 97.0,
        "open": 3.0,
        "commits": 5.0,
        "dead_letters{reason=a}": 1.0,
        "dead_letters{reason=b}": 1,
    }
    return [
        SupervisedProcess(
            process="streams-assemble-0", state=ProcessState.RUNNING, pid=7, since_ms=1, num_restarts=1, why="status 1"
        ),
        ProcessReport(process="streams-assemble-0", pid=7, since_ms=1, at_ms=now_ms - 60_000, counters=counters),
        SupervisedProcess(process="llm", state=ProcessState.WAITING, why="killed by SIGKILL"),
        ProcessReport(process="llm", pid=8, since_ms=1, at_ms=now_ms, counters={"calls": 12.0}),
    ]


def test_status_shows_every_process_and_what_it_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From `process_status`; a report of a predecessor that died is not shown."""
    run_dir, log = started(tmp_path, *some_statuses(int(time.time() * 1000)))
    monkeypatch.setattr("tracegrad.compose.cli.look.reachable_log", lambda _: log)
    with run_dir.lock():
        for more in ([], ["--json"]):
            assert leave(monkeypatch, "status", run_dir.path, *more) == 0
    text, _, encoded = capsys.readouterr().out.partition("{")
    assert text.splitlines()[1] == "  kafka b, topics mine.*"
    # On a busy machine a second or more goes by before it is asked.
    assert [re.sub("silent for [6-9][0-9] s", "silent for 60 s", line.strip()) for line in text.splitlines()[3:]] == [
        "killed by SIGKILL",
        *[line.strip() for line in text.splitlines()[4:5]],
        "status 1",
        "97 records, 3 open, 2 dead letters, silent for 60 s",
        "0 records wait or belong to what is still open",
        "1 dead letters, a",
        "1 dead letters, b",
    ]
    assert "1 restarts" in text.splitlines()[4]
    assert [told["process"] for told in json.loads("{" + encoded)["processes"]] == ["streams-assemble-0", "llm"]


def test_nobody_is_silent_because_status_reads_slowly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy machine reading takes longer than a process may be silent."""
    clock = [time.time()]
    told = ProcessReport(process="llm", pid=8, since_ms=1, at_ms=int(1000 * clock[0]), counters={"calls": 12.0})
    run_dir, log = started(tmp_path, told)

    def lag(*_: object) -> int:
        clock[0] += 13
        return 0

    monkeypatch.setattr("tracegrad.compose.cli.look.reachable_log", lambda _: log)
    monkeypatch.setattr("tracegrad.compose.cli.look.stream_lag", lag)
    monkeypatch.setattr(time, "time", lambda: clock[0])
    with run_dir.lock():
        leave(monkeypatch, "status", run_dir.path)
    out = capsys.readouterr().out
    assert "12 calls" in out and "silent for" not in out


def test_status_says_why_a_run_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its broker has gone with it; a new start begins without the old word."""
    run_dir, _ = started(tmp_path)
    why = "trainer: exit status 70; last lines of trainer.log:\nDivergedError: expected a finite loss and gradient"
    run_dir.write_outcome(Outcome(kind=OutcomeKind.FATAL, why=why, exit_status=70))
    for more in ([], ["--json"]):
        assert leave(monkeypatch, "status", run_dir.path, *more) == 1
    text, _, encoded = capsys.readouterr().out.partition("{")
    assert "ended: fatal" in text and "DivergedError: expected a finite loss" in text
    told = json.loads("{" + encoded)
    assert (told["state"], told["outcome"]["exit_status"]) == ("fatal", 70)
    run_dir.write_outcome(Outcome(kind=OutcomeKind.DONE))
    assert leave(monkeypatch, "status", run_dir.path) == 0
    run_dir.write_start(run_dir.settings, run_dir.endpoints)
    assert run_dir.outcome is None


def test_status_shows_nothing_that_an_earlier_start_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processes are gone, whatever the topic still says of them."""
    run_dir, log = started(tmp_path, SupervisedProcess(process="llm", state=ProcessState.RUNNING, pid=7))
    later_s = time.time() + 60
    os.utime(run_dir.endpoints_file, (later_s, later_s))
    monkeypatch.setattr("tracegrad.compose.cli.look.reachable_log", lambda _: log)
    with run_dir.lock():
        leave(monkeypatch, "status", run_dir.path, "--json")
    assert json.loads(capsys.readouterr().out)["processes"] == []
