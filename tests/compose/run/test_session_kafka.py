"""`tracegrad up` on a real broker: it starts, says so, is looked into, is killed and started again, and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.serving import free_port, until

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(600)]
COMMAND = (sys.executable, "-m", "tracegrad.compose.cli")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model folder that nobody opens, since no engine is started."""
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    return tmp_path


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[[], subprocess.Popen[bytes]]]:
    """Starts `up`; whatever is left at the end of a test is killed."""
    started: list[subprocess.Popen[bytes]] = []
    # Else it would be 4317, which another run may take while this one is down.
    grpc_port = free_port()

    def up() -> subprocess.Popen[bytes]:
        arguments = (
            "up",
            "--model",
            "model",
            "--only",
            "streams",
            "--run",
            "mine",
            "--json",
            "--set",
            f"otlp.grpc_port={grpc_port}",
        )
        out = (folder / "out.jsonl").open("ab")
        err = (folder / "err.txt").open("ab")
        with out, err:
            started.append(subprocess.Popen([*COMMAND, *arguments], cwd=folder, stdout=out, stderr=err))
        return started[-1]

    yield up
    for process in started:
        process.kill()
        process.wait(10)


def tracegrad(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Another command on the same run."""
    return subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True, timeout=60, check=False)


def wait_until_running(folder: Path, started: int = 1) -> dict[str, Any]:
    """Every process of the run lives, after so many starts."""
    # `up` says so itself; to ask by a command costs a second of CPU each time.
    until(lambda: (folder / "out.jsonl").read_text().count("OPENAI_BASE_URL") >= started, 120)

    def running() -> dict[str, Any] | None:
        status = tracegrad(folder, "status", "--json")
        fields: dict[str, Any] = json.loads(status.stdout) if status.returncode == 0 else {"processes": []}
        states = [process["state"] for process in fields["processes"]]
        return fields if states == ["running"] * 5 else None

    return until(running, 120, what=f"five processes ({folder / 'err.txt'})")


def all_gone(found: list[int]) -> bool:
    """Within some seconds."""
    _, alive = psutil.wait_procs([psutil.Process(pid) for pid in found if psutil.pid_exists(pid)], timeout=20)
    return not alive


def test_up_starts_shows_resumes_after_sigkill_and_stops(
    folder: Path, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """One story, because each start of a broker costs seconds."""
    first = start()
    running = wait_until_running(folder)
    assert "OPENAI_BASE_URL" in (folder / "out.jsonl").read_text()
    assert "export OPENAI_BASE_URL=http://127.0.0.1:" in tracegrad(folder, "env", "--shell").stdout
    assert "mine.episodes" in tracegrad(folder, "topics", "list").stdout
    assert "episodes of run mine holds nothing from -10 on" in tracegrad(folder, "tail", "episodes").stderr
    second = tracegrad(folder, "up", "--model", "model", "--run", "mine")
    assert second.returncode == 78 and "already is the supervisor" in second.stderr

    first.send_signal(signal.SIGKILL)
    first.wait(10)
    assert all_gone([process["pid"] for process in running["processes"]]), "orphans"

    again = start()
    resumed = wait_until_running(folder, started=2)
    assert resumed["endpoints"] == running["endpoints"]
    audit = tracegrad(folder, "audit", "mine", "--json")
    assert audit.returncode == 0, audit.stdout + audit.stderr

    again.send_signal(signal.SIGINT)
    assert again.wait(60) == 130
    assert all_gone([process["pid"] for process in resumed["processes"]])
    assert os.path.exists(folder / "runs" / "mine" / "run.json")
    assert "Traceback" not in (folder / "err.txt").read_text()


def broker_of(folder: Path, pid: int) -> psutil.Process:
    """The Java that serves: where the class-data cache is missing, others make it meanwhile."""
    port = int(json.loads((folder / "runs" / "mine" / "endpoints.json").read_text())["bootstrap_servers"].split(":")[1])

    def serves(java: psutil.Process) -> bool:
        places = java.net_connections("tcp")
        return any(place.status == psutil.CONN_LISTEN and place.laddr.port == port for place in places)

    (java,) = filter(serves, psutil.Process(pid).children(recursive=True))
    return java


def test_what_is_stopped_for_ten_seconds_survives_and_for_a_minute_is_restarted(
    folder: Path, start: Callable[[], subprocess.Popen[bytes]]
) -> None:
    """A worker and the broker at once: an outage of the broker makes no other process look frozen."""
    up = start()
    pids = {process["process"]: process["pid"] for process in wait_until_running(folder)["processes"]}
    stopped = [broker_of(folder, pids["kafka"]), psutil.Process(pids["streams-assemble-0"])]
    for process in stopped:
        process.suspend()
    time.sleep(10)
    for process in stopped:
        process.resume()
    time.sleep(5)
    assert "frozen" not in (folder / "err.txt").read_text()
    assert {process["process"]: process["pid"] for process in wait_until_running(folder)["processes"]} == pids
    for process in stopped:
        process.suspend()
    # 45 s of silence, which a busy machine counts slower than its clock goes.
    _, alive = psutil.wait_procs(stopped, timeout=120)
    for process in alive:
        process.resume()
    assert alive == []

    def are_back() -> bool:
        after = {process["process"]: process["pid"] for process in wait_until_running(folder)["processes"]}
        return all(after[name] != pids[name] for name in ("kafka", "streams-assemble-0"))

    # The supervisor tells it by the broker that has just come back.
    until(are_back, 120, what="both, running again")
    frozen = re.findall(r"(\S+) is frozen", (folder / "err.txt").read_text())
    assert sorted(frozen) == ["kafka", "streams-assemble-0"]
    up.send_signal(signal.SIGINT)
    assert up.wait(60) == 130
