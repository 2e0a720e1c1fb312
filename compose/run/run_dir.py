"""The folder of a run: what it is called, where its processes listen, their logs, data, weights and results.

    run.json        name, created_at, hash, seed           written once
    key.json        the run's secret, its owner's alone     written once
    config.json     the resolved settings, likewise         at each start
    endpoints.json  where Kafka, gateways and engine listen at each start, ports kept
    starts.json     topics, and where the run began on them written once
    replay.json     of a replay: what was asked for         written first
    history.json    of a replay: what was made of another run by its trainer's start
    index.sqlite, page.msgpack  what `episodes`, `page` made of topics, at any time again
    outcome.json    how the last start ended                absent while it runs
    trainer/        checkpoints and, under weights/, the versions
    logs/ beats/ kafka/ streams/ engine-plugin/ results/ locks/
    ../_metrics/    where Prometheus finds each process         beside all runs, goes with the process

In: the name of a run. Out: paths and small records. Invariants: one supervisor at a time (a lock that the kernel
drops with its holder); the same name resumes, and refuses settings that would contradict what is on the log; nobody
but the owner enters the folder.
Failure: ConfigurationError with the remedy.
"""

from __future__ import annotations

import datetime
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tracegrad import __version__
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash, RunName, run_hash
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.trainer.history.config import History, Mode

from ..files import KEY, MARK, RunKey, hold_lock, is_held, moved, read_key, read_record, write_atomically, write_record
from ..kafka.positions import TopicStart, end_offsets, start_offsets
from .settings import RunSettings, without_gone
from .supervisor import Outcome

_STARTS = "starts.json"
AUDIT = "audit.json"
"""Among the results: what was counted when the run ended last."""
_FIXED = {
    "kafka": ("partitions", "max_message_bytes", "topic_prefix", "topics", "start"),
    "policy": ("name", "model"),
    "trainer": ("groups_per_step", "lora_rank", "lora_alpha"),
    "tasks": ("group_size",),
}
"""Settings that would contradict what is on the log."""


class RunRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a run is, for ever."""

    schema: str = "run/1"
    name: RunName
    created_at: str
    """ISO 8601, UTC."""
    hash: RunHash
    seed: int


class Endpoints(msgspec.Struct, frozen=True, kw_only=True):
    """Where the parts of a run listen."""

    bootstrap_servers: str
    llm_url: str
    """Of the LLM gateway, without `/v1`."""
    otlp_endpoint: str
    """Of the OTLP gateway, without `/v1/traces`."""
    engine_urls: tuple[str, ...]
    """One of each engine of the policy."""
    release: str = __version__
    """Of the supervisor that started them: one of another release may write what the others cannot read."""
    otlp_grpc: str = ""
    """`host:port` of the OTLP gateway over gRPC."""
    feedback_url: str = ""
    """Of the rewards gateway, without `/v1`; empty: there is none."""
    page_url: str = ""
    """Of the page, without its token; empty: it is not served."""


class ReplayRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay was asked for at first: who asks again goes on with it, and gets the same."""

    schema: str = "replay/1"
    source: str
    """The source run's folder."""
    hash: RunHash
    """The source."""
    asked: str
    """The window in the user's words."""
    begin_ms: int | None
    end_ms: int | None
    """What they meant then."""
    reclose: bool
    mode: Mode | None
    rules: dict[str, str]
    """Section of the settings -> sha256 of it, of those that decide what is made."""
    begins: str = ""
    """Of an earlier release's replay from given offsets: their sha256."""
    is_folded: bool = False
    """Whether all that is meant has been folded."""
    grader: str = ""
    """Digest of the grader that graded anew; empty: none did."""


class RunDir:
    """Paths under one run's folder, and the records in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.logs = path / "logs"
        self.locks = path / "locks"
        self.beats = path / "beats"
        self.metrics = path.parent / "_metrics"  # of all runs here: Prometheus takes one folder; no run is called so
        self.kafka = path / "kafka"
        self.streams = path / "streams"
        self.trainer = path / "trainer"
        self.weights = self.trainer / "weights"
        """The root under which version folders must lie."""
        self.results = path / "results"
        self.config = path / "config.json"
        self.endpoints_file = path / "endpoints.json"
        self.replay_file = path / "replay.json"
        self.history_file = path / "history.json"
        self._outcome_file = path / "outcome.json"

    @classmethod
    def open(cls, path: Path) -> RunDir:
        """The folder of a run that exists. Raises ConfigurationError otherwise."""
        if not (path / MARK).is_file():
            raise ConfigurationError(f"expected a run folder, got {path} without {MARK}; name the folder of one")
        return cls(path.resolve())

    @classmethod
    def create(cls, path: Path, settings: RunSettings) -> RunDir:
        """The folder of a new run, or of the same run again.

        Raises:
            ConfigurationError: the folder holds another run, or settings that the log cannot change with.
        """
        run = cls(path.resolve())
        run._make(run.logs, run.locks, run.kafka, run.trainer, run.weights, run.results)
        run._close_to_others()
        if (run.path / MARK).exists():
            run._check_same(settings)
            run._make_key()
            return run
        created_at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds")
        name = RunName(settings.run)
        record = RunRecord(name=name, created_at=created_at, hash=run_hash(name, created_at), seed=settings.seed)
        write_record(run.path / MARK, record)
        run._make_key()
        return run

    def _make(self, *folders: Path) -> None:
        try:
            for folder in folders:
                folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.path):
                pass  # where all of them are there already, only a file tells
        except OSError as error:
            raise ConfigurationError(
                f"--runs-dir: expected a folder to write the run to, got {self.path}: {error.strerror}; make it "
                "writable, or name another by --runs-dir or TRACEGRAD_RUNS_DIR"
            ) from error

    def beside(self) -> list[Path]:
        """The folders of the runs that lie where this one lies, itself among them."""
        return sorted(mark.parent for mark in self.path.parent.glob(f"*/{MARK}"))

    @property
    def record(self) -> RunRecord:
        """What the run is."""
        return read_record(self.path / MARK, RunRecord)

    def key(self) -> bytes:
        """The run's secret of 32 bytes. Raises ConfigurationError when its file is lost or damaged."""
        found = read_key(self.path)
        if found.run != self.record.hash:
            raise ConfigurationError(
                f"{self.path / KEY}: expected the key of run {self.record.hash}, got that of run {found.run}; "
                "put the run's own file back"
            )
        return found.key

    @property
    def endpoints(self) -> Endpoints:
        """Where its parts listen."""
        return read_record(self.endpoints_file, Endpoints)

    @property
    def settings(self) -> RunSettings:
        """Its resolved settings."""
        return read_record(self.config, RunSettings, without_gone)

    @property
    def is_made(self) -> bool:
        """Whether a run lies here."""
        return (self.path / MARK).is_file()

    @property
    def replayed(self) -> ReplayRecord | None:
        """Of a replay, what was asked for; None of other runs, and where there is none."""
        if not self.replay_file.exists():
            return None
        made = read_record(self.replay_file, ReplayRecord)
        return msgspec.structs.replace(made, source=str(moved(Path(made.source), self.path)))

    @property
    def history(self) -> History | None:
        """Of a run that replays another and trains on it, what its trainer is told; None before that is there, and of
        other runs."""
        if not self.history_file.exists():
            return None
        history = read_record(self.history_file, History)
        return msgspec.structs.replace(history, record=history.record and str(self.path / Path(history.record).name))

    @property
    def outcome(self) -> Outcome | None:
        """How the last start ended; None while it runs, and where nobody was left to say."""
        return read_record(self._outcome_file, Outcome) if self._outcome_file.exists() else None

    def write_outcome(self, outcome: Outcome) -> None:
        """Keeps why the run ended, for whoever looks at it later."""
        write_record(self._outcome_file, msgspec.structs.replace(outcome, at_ms=int(1000 * time.time())))

    @property
    def starts(self) -> dict[TopicPartition, int]:
        """Where the run began on the raw topics; empty before its first start."""
        return start_offsets(self.topic_starts)

    @property
    def ends(self) -> dict[TopicPartition, int]:
        """Where a source of somebody's topics ends on them; of any other run nothing."""
        return end_offsets(self.topic_starts)

    def has_topic(self, name: str) -> bool:
        """Whether there is such a topic: a source of somebody's topics has those alone."""
        return not self.ends or name in self.topic_starts

    @property
    def topic_starts(self) -> dict[str, TopicStart]:
        """The run's topics as it began with them, by name; empty before its first start."""
        path = self.path / _STARTS
        return read_record(path, dict[str, TopicStart]) if path.exists() else {}

    def write_starts(self, starts: Mapping[str, TopicStart]) -> None:
        """Keeps them, once and for all."""
        write_atomically(self.path / _STARTS, msgspec.json.format(msgspec.json.encode(starts)) + b"\n")

    def write_start(self, settings: RunSettings, endpoints: Endpoints) -> None:
        """Records what this start uses, before any process reads it."""
        self._outcome_file.unlink(missing_ok=True)
        (self.results / AUDIT).unlink(missing_ok=True)
        # It may hold the gateways' tokens and the cluster's passwords.
        write_record(self.config, settings, is_private=True)
        write_record(self.endpoints_file, endpoints)

    def _close_to_others(self) -> None:
        try:
            self.path.chmod(0o700)
        except PermissionError as error:
            raise ConfigurationError(
                f"expected a folder that this user owns, for keys and logs, got {self.path}: {error}; choose another"
            ) from error

    def _make_key(self) -> None:
        """Draws the key of a run that was never started."""
        if not (self.path / KEY).exists():
            if self.config.exists():
                raise ConfigurationError(
                    f"no {KEY} in {self.path}: without it no record of run {self.record.name!r} can be verified; put "
                    "the file back. A run of an earlier release has none: start another (--run NAME)"
                )
            write_record(self.path / KEY, RunKey.draw(self.record.hash), is_private=True)

    def _check_same(self, settings: RunSettings) -> None:
        record = self.record
        if record.name != settings.run:
            raise ConfigurationError(
                f"{self.path} holds run {record.name!r}, not {settings.run!r}; choose another folder"
            )
        if not self.config.exists():
            return
        before = self.settings
        changed = ["seed"] if record.seed != settings.seed else []
        changed += [
            f"[{section}] {key}"
            for section, keys in _FIXED.items()
            for key in keys
            # A run without tasks has no such section.
            if getattr(getattr(before, section), key, None) != getattr(getattr(settings, section), key, None)
            # Of tasks that are held out alone no groups are made.
            and not (section == "tasks" and before.select.train and settings.select.train)
        ]
        if changed:
            raise ConfigurationError(
                f"run {record.name!r} exists in {self.path} with another {', '.join(changed)}; "
                "set it back to resume the run, or give the new one a name of its own (--run NAME)"
            )

    @contextmanager
    def lock(self, name: str = "supervisor", *, wait_s: float = 0.0) -> Iterator[None]:
        """Holds a lock that dies with this process; a predecessor that is leaving gets `wait_s`.

        Raises:
            ConfigurationError: another process holds it, or nothing can be written here.
        """

        def refusal(holder: str) -> Exception:
            instead = "start another run (--run NAME)" if name == "supervisor" else "wait for its end"
            return ConfigurationError(
                f"process {holder} already is the {name} of {self.path}; stop it first, or {instead}"
            )

        self._make(self.locks)
        with hold_lock(self.locks / f"{name}.lock", refusal=refusal, wait_s=wait_s):
            yield

    def is_locked(self, name: str = "supervisor") -> bool:
        """Whether a live process holds a lock. Who reads a run that has ended holds the supervisor's too:
        history/run_broker.py."""
        return is_held(self.locks / f"{name}.lock")
