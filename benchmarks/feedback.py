"""From thumbs to weights: a policy learns from a simulated crowd's feedback while it serves; every thumb is traced.

    python benchmarks/feedback.py runs/thumbs-0 --seed 0 [--conversations 5000] [--kill] [--roll-back] [--permuted]

Starts `tracegrad up` with examples/feedback, its chat server in an environment of its own, and its crowd, a process
each. `--kill` ends each of the run's processes once on the way by SIGKILL. Forged thumbs are written to the topic, past
the gateway, all the while. Afterwards: greedy answers of the last version to 128 held-out questions, which is the run's
own last pass (none where its steps are not done); the mean outcome of the last 640 conversations; and an account of
each thumb by the crowd's own file: accepted, on the topic, joined or late, and of what joined whether the turn has the
mean of what was said of it last. In the folder: result.json, crowd.jsonl, logs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from feedback_account import curve, held_out_score, mean_of_last, served_by, steps_of, traced

from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.loopback import free_port
from tracegrad.compose.run.report import account
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.records.weights import WEIGHTS, RollbackRequest
from tracegrad.schemas.topics import Topic

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE, CALCULATOR = ROOT / "examples" / "feedback", ROOT / "examples" / "calculator"
CLIENT = ROOT / "producers" / "client" / "feedback.py"
TRACEGRAD = (sys.executable, "-m", "tracegrad.compose.cli")
KILLED = (
    *("llm", "rewards", "otlp", "streams-assemble-0", "trainer", "streams-credit-0", "weight-sync"),
    *("streams-normalize-0", "engine", "kafka", "runner", "tasks"),
)
START_S, DRAIN_S = 400.0, 300.0
T = TypeVar("T")


def until(condition: Callable[[], T], what: str, timeout_s: float) -> T:
    """The condition's first true value; TimeoutError past the time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"expected {what} within {timeout_s:g} s")
        time.sleep(0.5)
    return value


class Measured:
    """The run, its chat server and its crowd, in one folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self.folder = given.folder.resolve()
        self.folder.mkdir(parents=True)
        self.crowd_file = self.folder / "crowd.jsonl"
        self.killed: list[str] = []

    def ask(self, *arguments: str) -> Any:
        """What a command says in JSON; None where it says nothing yet."""
        told = subprocess.run(
            [*TRACEGRAD, *arguments, "--json"],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        return json.loads(told.stdout) if told.returncode == 0 and told.stdout.strip() else None

    @contextlib.contextmanager
    def started(
        self, command: list[str], name: str, env: dict[str, str] | None = None
    ) -> Iterator[subprocess.Popen[bytes]]:
        """A process with a log; ended as by Ctrl-C."""
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(90)
            except subprocess.TimeoutExpired:
                process.kill()

    def environment(self) -> Path:
        """The interpreter of the chat server, which has nothing of ours."""
        made = ROOT / ".cache" / "feedback"
        if not (made / "bin" / "uvicorn").exists():
            uv = [sys.executable, "-m", "uv"]
            subprocess.run([*uv, "venv", "-q", "--clear", "--python", sys.executable, str(made)], check=True)
            install = [*uv, "pip", "install", "-q", "--python", str(made / "bin" / "python")]
            subprocess.run([*install, "-r", str(EXAMPLE / "requirements.txt")], check=True)
        return made / "bin"

    def run(self) -> dict[str, Any]:
        """The result."""
        programs, port, began = self.environment(), free_port(), time.monotonic()
        shutil.copy(CLIENT, self.folder / "feedback_client.py")
        path = {"PYTHONPATH": os.pathsep.join(map(str, (EXAMPLE, CALCULATOR, self.folder)))}
        up = [*TRACEGRAD, "up", str(EXAMPLE / "tracegrad.toml"), "--set", f"seed={self._given.seed}"]
        up += [part for one in self._given.set for part in ("--set", one)]
        with self.started([*up, "--json"], "up") as process:
            agents = until(lambda: self.ask("env") or process.poll() is not None, "the run's addresses", START_S)
            if not isinstance(agents, dict):
                raise ChildProcessError(
                    f"expected a run, got status {process.returncode}; see {self.folder / 'up.log'}"
                )
            raters = until(lambda: self.ask("env", "--feedback"), "the rewards gateway's", START_S)
            wiring = Wiring(RunDir.open(self.folder / "runs" / "feedback"))
            until(lambda: self._is_served(wiring), "an engine with a version", START_S)
            ready_s = time.monotonic() - began
            serve = [*map(str, (programs / "opentelemetry-instrument", programs / "uvicorn"))]
            serve += ["server:app", "--port", str(port), "--no-access-log"]
            url = f"http://127.0.0.1:{port}"
            with self.started(serve, "server", {**os.environ, **agents, **raters, **path}):
                until(lambda: _answers(url), "the chat server", 60)
                self._visit(wiring, [str(programs / "python"), str(EXAMPLE / "crowd.py"), url], path, raters)
            crowd_s = time.monotonic() - began - ready_s
            until(lambda: self._is_drained(wiring), "all conversations accounted for", DRAIN_S)
            result = self._judge(wiring, raters)
        return {**result, "ready_s": round(ready_s), "crowd_s": round(crowd_s), "killed": self.killed}

    def _is_served(self, wiring: Wiring) -> bool:
        """Whether some engine serves the newest version."""
        newest = max((step.version for step in steps_of(wiring)), default=0)
        return max(served_by(wiring), default=-1) >= newest

    def _visit(self, wiring: Wiring, crowd: list[str], path: dict[str, str], raters: dict[str, str]) -> None:
        given, settings = self._given, wiring.settings
        assert settings.feedback is not None
        crowd += ["--conversations", str(given.conversations), "--seed", str(given.seed), "--out", str(self.crowd_file)]
        crowd += ["--idle-s", str(settings.streams.idle_s), "--wait-s", str(settings.feedback.wait_s)]
        crowd += ["--rewards-url", raters["TRACEGRAD_REWARDS_URL"], "--at-once", str(given.at_once)]
        crowd += [flag for flag in ("--permuted", "--by-outcome") if getattr(given, flag[2:].replace("-", "_"))]
        over = threading.Event()
        beside = [threading.Thread(target=self._forge, args=(wiring, over))]
        if given.kill:
            beside.append(threading.Thread(target=self._kill, args=(over,)))
        if given.roll_back:
            beside.append(threading.Thread(target=self._roll_back, args=(wiring, over)))
        for thread in beside:
            thread.start()
        try:
            subprocess.run(crowd, env={**os.environ, **path}, check=True)
        finally:
            over.set()
            for thread in beside:
                thread.join()

    def _num_begun(self) -> int:
        with contextlib.suppress(FileNotFoundError), self.crowd_file.open() as lines:
            return sum('"turn": 0' in line for line in lines)
        return 0

    def _kill(self, over: threading.Event) -> None:
        """Each process once, evenly over the conversations."""
        for number, name in enumerate(KILLED, 1):
            while self._num_begun() < number * self._given.conversations / (len(KILLED) + 1):
                if over.wait(1.0):
                    return
            processes = (self.ask("status") or {}).get("processes", [])
            for pid in [int(one["pid"]) for one in processes if one["process"] == name and one.get("pid")]:
                os.kill(pid, signal.SIGKILL)
                self.killed.append(name)
                print(f"killed {name} at {self._num_begun()} conversations", file=sys.stderr)

    def _roll_back(self, wiring: Wiring, over: threading.Event) -> None:
        """Once, when most have begun: to the version before the last two."""
        while self._num_begun() < 0.7 * self._given.conversations:
            if over.wait(1.0):
                return
        version = until(lambda: [step.version for step in steps_of(wiring)][-3:-2], "three steps", START_S)[0]
        policy = wiring.settings.policy.name
        asked = RollbackRequest(
            policy=policy,
            run=wiring.record.hash,
            request_id=f"asked-{version}",
            to_version=version,
            requested_by="benchmarks/feedback.py",
            at_ms=time.time_ns() // 1_000_000,
        )
        writer = wiring.log().writer()
        writer.append(wiring.topics.name(Topic.WEIGHTS), key=policy.encode(), value=WEIGHTS.encode(asked)).result(60)
        writer.close()
        print(f"asked for version {version} again at {self._num_begun()} conversations", file=sys.stderr)

    def _forge(self, wiring: Wiring, over: threading.Event) -> None:
        """Thumbs for conversations that exist, written to the topic by somebody who has the broker and no key."""
        topic = wiring.topics.name(Topic.REWARDS)
        while not over.wait(5.0):
            with contextlib.suppress(Exception):  # the broker is killed on the way
                writer = KafkaLog(wiring.endpoints.bootstrap_servers).writer()
                for record in [*read_to_end(wiring.kafka(), topic)][-5:]:
                    real = REWARDS.decode(record.value)
                    forged = Reward(
                        **{name: getattr(real, name) for name in Reward.__struct_fields__ if name not in ("schema",)}
                        | {"value": 1.0 - (real.value or 0.0), "idempotency_key": f"forged-{time.time_ns()}"}
                    )
                    writer.append(topic, key=record.key, value=REWARDS.encode(forged)).result(10)
                    self.num_forged += 1
                writer.close()

    num_forged = 0

    def _is_drained(self, wiring: Wiring) -> bool:
        """Whether nothing waits any more: neither for feedback nor for a batch that can be filled."""
        report = account(wiring, is_live=True)
        terms = report.groups.terms
        is_all = not report.missing and not report.episodes.terms.get("open") and not report.calls.terms.get("open")
        left = len(steps_of(wiring)) < wiring.settings.trainer.steps
        return is_all and not (left and terms.get("waiting", 0) >= wiring.settings.trainer.groups_per_step)

    def _judge(self, wiring: Wiring, raters: dict[str, str]) -> dict[str, Any]:
        until(lambda: self._is_served(wiring), "the last version to be served", 120)
        lines = [json.loads(line) for line in self.crowd_file.read_text().splitlines()]
        answers = [line for line in lines if "turn" in line]
        steps, score = steps_of(wiring), None
        if len(steps) >= wiring.settings.trainer.steps:
            score = until(lambda: held_out_score(wiring), "the last held-out score", DRAIN_S)
        report = account(wiring, is_live=True)
        return {
            "seed": self._given.seed,
            "permuted": self._given.permuted,
            "conversations": self._given.conversations,
            "versions": steps[-1].version if steps else 0,
            "greedy": score and score.mean,
            "last": mean_of_last(answers),
            "curve": curve(answers),
            "step_rewards": [round(step.reward, 4) for step in steps],
            "feedback": traced(lines, wiring, raters),
            "forged_on_topic": self.num_forged,
            "audit": {
                name: {"total": unit.total, **unit.terms}
                for name, unit in (("calls", report.calls), ("episodes", report.episodes), ("groups", report.groups))
            },
            "missing": report.num_missing,
        }


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def main() -> int:
    """Prints the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a new one")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--conversations", type=int, default=5000)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--permuted", action="store_true", help="the control: each rates what another got")
    parser.add_argument("--by-outcome", action="store_true", help="who got it wrong rates more often")
    parser.add_argument("--kill", action="store_true", help="SIGKILL each of the run's processes once")
    parser.add_argument("--roll-back", action="store_true", help="ask the trainer once for an older version")
    parser.add_argument("--set", action="append", default=[], help="a setting of the run, key=value")
    given = parser.parse_args()
    measured = Measured(given)
    result = measured.run()
    (measured.folder / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
