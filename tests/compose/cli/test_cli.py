"""The command line: help in groups, one clear message per mistake, exit statuses."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from tracegrad.compose.kafka.client_settings import TAIL_GROUP
from tracegrad.compose.run.process import ProcessState, ProcessStatus
from tracegrad.compose.run.run_dir import Endpoints, RunDir
from tracegrad.compose.run.session import write_status
from tracegrad.compose.run.settings import PolicySettings, RunSettings
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.topics import INPUTS, Stage
from tracegrad.streams.shell.heartbeat import Heartbeat, Status

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]


def test_help_shows_the_groups(capsys: pytest.CaptureFixture[str]) -> None:
    """What runs something, what looks at it."""
    from tracegrad.compose.cli import app

    app(["--help"], standalone_mode=False)
    shown = capsys.readouterr().out
    names = ("Run", "demo", "train", "up", "env", "serve", "Look", "status", "tail", "audit", "topics")
    places = [shown.index(name) for name in names]
    assert places == sorted(places)


@pytest.mark.parametrize("command", ["demo", "train", "up", "env", "status", "tail", "audit", "serve"])
def test_each_command_shows_an_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In its help; run within this process, which is faster."""
    from tracegrad.compose.cli import app

    app([command, "--help"], standalone_mode=False)
    assert "Example: " in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("train", "nowhere.toml"), 78, "no such file: nowhere.toml"),
        (("train", "examples/calculator", "--set", "trainer.step=3"), 78, "did you mean 'steps'?"),
        (("train", "examples/calculator", "--set", "steps"), 78, "expected section.key=value"),
        (("serve", "trainr", "--run-dir", "."), 78, "did you mean 'trainer'?"),
        (("serve", "streams", "--run-dir", "."), 78, "--stage must be one of normalize, assemble, credit"),
        (("tail", "episode"), 78, "did you mean 'episodes'?"),
        (("status", "--runs-dir", "nowhere"), 78, "no run under nowhere"),
        (("topics", "create", "examples/calculator"), 78, "--bootstrap-servers"),
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
    """Exit status 78 for settings that cannot work; never a traceback."""
    from tracegrad.compose import cli

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["tracegrad", *arguments])
    monkeypatch.setattr("tracegrad.compose.run.serve._set_up_logging", lambda: None)
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr()
    assert left.value.code == status
    if "serve" not in arguments:
        assert message in " ".join(shown.err.replace("│", "").split())


def test_topics_dry_run_prints_topics_and_acls(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asks no cluster."""
    from tracegrad.compose import cli

    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["tracegrad", "topics", "create", "examples/calculator", "--dry-run"])
    with pytest.raises(SystemExit) as left:
        cli.main()
    shown = capsys.readouterr().out
    assert left.value.code == 0
    assert "topic calculator.episodes partitions=4" in shown and "acl read" in shown
    for stage in INPUTS:
        assert f"group calculator.{stage.value}\n  acl read,describe:  {stage.value}" in shown
    assert f"group {TAIL_GROUP}\n" in shown


def started_with(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> RunSettings:
    """The settings with which a command would start a session."""
    from tracegrad.compose.cli import app
    from tracegrad.compose.cli import run as run_commands

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
    """`tracegrad train examples/gsm8k/tracegrad.toml --tasks FILE --model DIR`, from any folder."""
    (tmp_path / "problems.jsonl").write_text('{"id": "a", "input": "1+1", "expected": "2"}\n')
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    file = str(ROOT / "examples" / "gsm8k" / "tracegrad.toml")
    settings = started_with(monkeypatch, "train", file, "--tasks", "problems.jsonl", "--model", "small")
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
        ("up", 'select.runs=["0123abcd"]', None),
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


def test_status_shows_how_far_each_stream_worker_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its last report; one of a process that the supervisor does not have is not shown."""
    from tracegrad.compose import cli

    def away(_: object) -> None:
        raise UnavailableError("nobody there")

    settings = RunSettings(run="mine", policy=PolicySettings(model="none"))
    run_dir = RunDir.create(tmp_path / "mine", settings)
    run_dir.write_start(settings, Endpoints(bootstrap_servers="b", llm_url="l", otlp_endpoint="o", engine_url="e"))
    died = {"num_restarts": 1, "why": "exit status 1; last lines of its log:\n  boom"}
    running = {"state": ProcessState.RUNNING, "pid": 7, "since_ms": 1}
    write_status(run_dir, [ProcessStatus(name="streams-assemble-0", **running, **died)])  # type: ignore[arg-type]
    for pid, instance in ((7, "assemble-0"), (8, "assemble-1")):
        Heartbeat(run_dir.streams, Stage.ASSEMBLE, instance).write(
            Status(
                stage="assemble",
                instance_id=instance,
                pid=pid,
                at_s=time.time() - 60,
                is_ready=True,
                assigned={},
                records=90 + pid,
                emissions=2,
                in_flight=1,
                open=5,
                open_ids=3,
                ranges=1,
                lag=4,
                dead_letters=0,
                shell={},
                outputs={},
                fold={},
            )
        )
    (run_dir.streams / "status" / "streams-credit-old.json").write_text('{"stage": "credit"}')
    monkeypatch.setattr("tracegrad.compose.cli.look.reachable_log", away)
    with run_dir.lock():
        for more in ([], ["--json"]):
            monkeypatch.setattr(sys, "argv", ["tracegrad", "status", "--run-dir", str(run_dir.path), *more])
            with pytest.raises(SystemExit) as left:
                cli.main()
            assert left.value.code == 0
    text, _, encoded = capsys.readouterr().out.partition("{")
    assert "1 restarts\n    exit status 1; last lines of its log:\n" in text
    assert " 97 records, 3 open, 1 in flight, 4 to come, 0 dead letters, silent for 6" in text.splitlines()[-1]
    assert {name: worker["pid"] for name, worker in json.loads("{" + encoded)["streams"].items()} == {
        "streams-assemble-0": 7
    }
