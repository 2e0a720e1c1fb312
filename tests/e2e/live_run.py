"""A `tracegrad train` under test: its process, its children by name, and what its topics say while it runs.

In: a command. Out: pids, what processes told, an Observer of the topics. Processes are stopped, continued and killed
by pid, found among the children of the run's own supervisor; nothing is ever killed by name.
"""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import psutil

from tests.serving import Background, is_alive
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.compose.run.run_dir import RunDir
from tracegrad.compose.run.wiring import Wiring
from tracegrad.consumers.views.run_state import RunState
from tracegrad.consumers.views.watch import fold_processes
from tracegrad.schemas.errors import TracegradError
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.records.process_status import process_name
from tracegrad.schemas.records.rollouts import ROLLOUT_EVENTS, ROLLOUTS, RolloutState
from tracegrad.schemas.records.training import TRAINING_STEPS
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, VersionManifest
from tracegrad.schemas.topics import Stage, Topic, Topics

ROOT = Path(__file__).parents[2]
_READ_EVERY_S = 0.3
_ASSIGNED = re.compile(r"assigned\{topic=(?P<topic>[^,]+),partition=(?P<partition>\d+)\}")
_BROKER = "tracegrad.compose.local_kafka.broker"
_ENGINE = "/engine-plugin/tracegrad_vllm_plugin.py"
"""What `serve engine` becomes."""
_SERVE = "tracegrad.compose.run.serve"
_HELPERS = {"agent-host": ("runner", "agent_host.py"), "kafka": ("kafka", "kafka.Kafka")}
"""Processes that a supervised one keeps: under which name, and a word of their command."""
TRACEGRAD = str(Path(sys.executable).with_name("tracegrad"))
"""The command as installed beside this interpreter."""


class LiveRun:
    """One run, which may be started more than once."""

    def __init__(
        self,
        command: Sequence[str],
        path: Path,
        output: Path,
        env: dict[str, str],
        beside: Mapping[str, Callable[[], int | None]] | None = None,
    ) -> None:
        """`beside`: processes of the run that the supervisor does not start: name -> the living one's pid."""
        self.path = path
        self.output = output
        self._beside = beside or {}
        self._command = list(command)
        self._env = env
        self._process: subprocess.Popen[bytes] | None = None
        self._read_at = 0.0
        self._pids: dict[str, int] = {}

    def start(self, *flags: str) -> None:
        """Starts the command; the same one resumes the run. It dies with the test."""
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                guarded([*self._command, *flags]), stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=self._env
            )

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The supervisor, as started last."""
        assert self._process is not None
        return self._process

    def poll(self) -> int | None:
        """The supervisor's exit status, when it has ended."""
        return self.process.poll()

    def kill(self) -> list[int]:
        """SIGKILLs the supervisor; the pids of all that it had started."""
        family = [child.pid for child in psutil.Process(self.process.pid).children(recursive=True)]
        self.process.kill()
        self.process.wait(10)
        return family

    def interrupt(self, timeout_s: float = 90.0) -> int:
        """One Ctrl-C; the exit status of a stop in order."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(timeout_s)

    def stop(self) -> None:
        """Twice Ctrl-C, for the end of a failed test."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            time.sleep(1)
            self._process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(20)
            self._process.kill()

    @cached_property
    def _told(self) -> tuple[Log, Topics, RunState]:
        wiring = self.wiring
        state = RunState(wiring.topics, wiring.record.hash, wiring.settings.policy.name)
        return wiring.log(), wiring.topics, state

    def processes(self) -> RunState:
        """What the processes told last; while the broker is away, what they told before."""
        log, topics, state = self._told
        if time.monotonic() - self._read_at > _READ_EVERY_S:
            with contextlib.suppress(TracegradError):
                fold_processes(log, topics, state)
            self._read_at = time.monotonic()
        return state

    def pid_of(self, name: str) -> int | None:
        """Of a living process of the run: a child of this supervisor, or a helper that a child keeps."""
        if name in self._beside:
            return self._beside[name]()
        keeper, word = _HELPERS.get(name, (name, ""))
        pid = self._pids.get(keeper)
        if pid is None or not is_alive(pid, parent=self.process.pid):
            self._pids = self.children()
            pid = self._pids.get(keeper)
        return _helper(pid, word) if word and pid is not None else pid

    def children(self) -> dict[str, int]:
        """The living children of this supervisor, by name."""
        found: dict[str, int] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self.process.pid).children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    name = _name_of(child.cmdline())
                    if name is not None and is_alive(child.pid):
                        found[name] = child.pid
        return found

    def worker(self, stage: Stage, ordinal: int) -> dict[str, list[int]] | None:
        """Topic -> partitions of a streams worker that folds; None while it does not."""
        report = self.processes().reports.get(f"streams-{stage.value}-{ordinal}")
        if report is None or not is_alive(report.pid) or not report.counters.get("ready"):
            return None
        assigned: dict[str, list[int]] = {}
        for series in report.counters:
            if found := _ASSIGNED.fullmatch(series):
                assigned.setdefault(found["topic"], []).append(int(found["partition"]))
        return assigned

    def standing(self) -> str:
        """What each process told last, and the end of what the command printed; for whoever reads a failure."""
        state = self.processes()
        lines = [f"{name}: {status}" for name, status in sorted(state.supervised.items())]
        lines += [f"{name}: {report.counters}" for name, report in sorted(state.reports.items())]
        return "\n".join([*lines, self.tail()])

    @property
    def wiring(self) -> Wiring:
        """Addresses and topic names as of the last start."""
        return Wiring(RunDir.open(self.path))

    def tail(self, num_bytes: int = 6_000) -> str:
        """The end of what the command printed."""
        return self.output.read_bytes()[-num_bytes:].decode("utf-8", "replace")


def _name_of(words: Sequence[str]) -> str | None:
    """What the supervisor calls the process of a command line; None: it is no part of the run."""
    if _BROKER in words:
        return "kafka"
    if any(word.endswith(_ENGINE) for word in words):
        return "engine"
    if _SERVE not in words:
        return None
    words = words[words.index(_SERVE) + 1 :]
    flags = dict(zip(words[1::2], words[2::2], strict=False))
    return process_name(words[0], flags.get("--stage"), int(flags.get("--ordinal", 0)))


def _helper(keeper: int, word: str) -> int | None:
    """The first living process below the keeper with that word in its command."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(keeper).children(recursive=True):
            # One that has just ended must not hide those after it.
            with contextlib.suppress(psutil.NoSuchProcess):
                if is_alive(child.pid) and word in " ".join(child.cmdline()):
                    return int(child.pid)
    return None


class Observer:
    """What the run's topics say so far; a thread of its own, which outlives the broker's restarts."""

    def __init__(self, run: LiveRun) -> None:
        self._run = run
        self._wiring = run.wiring
        self.topics = self._wiring.topics
        self.log = KafkaLog(self._wiring.endpoints.bootstrap_servers)
        self.open_attempts: dict[str, float] = {}
        """`rollout/attempt` started and not ended -> since when (monotonic)."""
        self.open_rollouts: set[str] = set()
        """Asked for, without a final event."""
        self.step = 0
        self.manifest = ""
        self.acked = ""
        self._seen: set[tuple[str, int, int]] = set()
        self._thread = Background(self._follow)

    def __enter__(self) -> Observer:
        self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._thread.__exit__()

    def _follow(self, stop: threading.Event) -> None:
        names = [self.topics.name(topic) for topic in _FOLLOWED]
        while not stop.is_set():
            # While the broker is away a new reader begins at the beginning, and folding is idempotent.
            with contextlib.suppress(TracegradError):
                for chunk in follow(self.log, names, stop=stop, poll_s=0.05, patience_s=0.0):
                    for record in chunk.records:
                        self._fold(record)
            stop.wait(0.3)

    def _fold(self, record: Record) -> None:
        if record.position in self._seen:
            return
        self._seen.add(record.position)
        topic = next(topic for topic in _FOLLOWED if self.topics.name(topic) == record.topic)
        if topic is Topic.ROLLOUTS:
            self.open_rollouts.add(ROLLOUTS.decode(record.value).rollout_id)
        elif topic is Topic.ROLLOUT_EVENTS:
            event = ROLLOUT_EVENTS.decode(record.value)
            if event.state is RolloutState.STARTED:
                self.open_attempts[f"{event.rollout_id}/{event.attempt_id}"] = time.monotonic()
            else:
                self.open_attempts.pop(f"{event.rollout_id}/{event.attempt_id}", None)
            if event.is_final:
                self.open_rollouts.discard(event.rollout_id)
        elif topic is Topic.TRAINING_STEPS:
            self.step = max(self.step, TRAINING_STEPS.decode(record.value).step)
        elif topic is Topic.WEIGHTS:
            weights = WEIGHTS.decode(record.value)
            if isinstance(weights, VersionManifest):
                self.manifest = weights.label
        elif topic is Topic.WEIGHT_ACKS:
            self.acked = WEIGHT_ACKS.decode(record.value).label

    def uncommitted(self, stage: Stage, topics: Sequence[Topic], partitions: dict[str, list[int]]) -> int:
        """Records of the partitions at or above the stage's committed offset; 0 also while the broker is away."""
        count = 0
        try:
            for topic in topics:
                name = self.topics.name(topic)
                mine = partitions.get(name, [])
                if not mine:
                    continue
                committed = self.log.committed(self.topics.group(stage), name)
                ends = self.log.offsets(name)
                count += sum(max(0, ends[p].end - committed.get(p, ends[p].begin)) for p in mine)
        except TracegradError:
            return 0
        return count

    def end_of(self, topic: Topic, partition: int = 0) -> int:
        """The partition's next offset; 0 while the broker is away."""
        try:
            return self.log.offsets(self.topics.name(topic))[partition].end
        except TracegradError:
            return 0


_FOLLOWED = (Topic.ROLLOUTS, Topic.ROLLOUT_EVENTS, Topic.TRAINING_STEPS, Topic.WEIGHTS, Topic.WEIGHT_ACKS)


@contextlib.contextmanager
def extra_worker(run: LiveRun, stage: Stage, ordinal: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A streams worker that nobody supervises, as a person would add one by hand; stopped in order at the end."""
    command = [TRACEGRAD, "serve", "streams", "--stage", stage.value, "--ordinal", str(ordinal)]
    with log.open("ab") as output:
        process = subprocess.Popen(
            guarded([*command, "--run-dir", str(run.path)]), stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        yield process
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(5)
