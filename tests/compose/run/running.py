"""A run of `tracegrad up` in a folder, by its commands, as a person has it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, Self

COMMAND = (sys.executable, "-m", "tracegrad.compose.cli")
POLICY = Path(__file__).parents[3] / "examples" / "calculator" / "policy"
FILE = """
run = "{run}"
policy.model = "{policy}"
engine.url = "{engine}"
kafka.bootstrap_servers = "{broker}"
kafka.topic_prefix = "t{unique}."
"""


def settled(folder: Path, run: str, broker: str, engine: str, more: str) -> Path:
    """The folder, with the settings of a new run on a broker and an engine that are there, and what more it has."""
    file = FILE.format(run=run, policy=POLICY, engine=engine, broker=broker, unique=uuid.uuid4().hex[:12])
    (folder / "tracegrad.toml").write_text(file + more)
    return folder


class RunningUp:
    """Of the settings in the folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.err = folder / "err.txt"
        with (folder / "out.jsonl").open("wb") as out, self.err.open("wb") as errors:
            self.up = subprocess.Popen([*COMMAND, "up", "--json"], cwd=folder, stdout=out, stderr=errors)

    def ask(self, *arguments: str) -> Any:
        """What a command says in JSON; None where it says nothing yet."""
        told = subprocess.run(
            [*COMMAND, *arguments, "--json"], cwd=self.folder, capture_output=True, text=True, timeout=60, check=False
        )
        return json.loads(told.stdout) if told.stdout.strip() else None

    def pids(self, name: str) -> list[int]:
        """Of the processes that are called so, while they run."""
        found = (self.ask("status") or {}).get("processes", [])
        return [int(one["pid"]) for one in found if name in one["process"] and one.get("pid")]

    def __enter__(self) -> Self:
        """It begins when it is made."""
        return self

    def __exit__(self, *_: object) -> None:
        """As by Ctrl-C."""
        self.up.send_signal(signal.SIGINT)
        self.up.wait(60)
