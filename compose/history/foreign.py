"""Somebody's spans become a source run, which a replay reads as it reads any other's.

    topic:NAME[,LOGS] --> RUNS/INTO-source: settings, key, where each partition begins and ends; no processes
    files:PATH        --> RUNS/INTO-source: a broker of its own, on which the spans lie; no other processes

In: a topic of spans, one of log records if there is one, the cluster; or exported files. Out: the folder of a run that
read them. Invariants: cluster and files are only read; which records or files are meant is fixed when the folder is
made, so that the same command goes on with the same. Failure: ConfigurationError: no such topic or file, nothing on it,
or a folder that is of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import msgspec

from tracegrad.consumers.history.replay import merged
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Offsets
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

from ..files import read_record, write_record
from ..kafka.client_settings import KafkaConfig
from ..kafka.log import KafkaLog
from ..kafka.positions import TopicStart, begin_run, end_offsets, start_offsets
from ..kafka.topic_admin import create_topics, plan_topics
from ..run.pipeline import prepare_run
from ..run.run_dir import Endpoints, RunDir
from ..run.settings import RunSettings
from ..run.show import Show
from ..run.wiring import Wiring
from .exports.exported_files import FileList, list_files, read_files
from .exports.file_items import LostBytes
from .exports.import_files import ImportProgress, import_files
from .replay import told_to_stop
from .run_broker import own_broker

TOPIC, FILES = "topic:", "files:"
"""How `--from` names them."""
_SUFFIX = "-source"


class ForeignTopics(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are meant."""

    names: Mapping[Topic, str]
    """`otlp_spans`, and `otlp_logs` if there is one, as they are called on the cluster."""
    kafka: KafkaConfig
    """How to reach it."""
    since_ms: int | None = None
    """Records that were written then or later (ms since the epoch); None: all that there are."""

    @classmethod
    def named(cls, text: str, kafka: KafkaConfig, since_ms: int | None) -> ForeignTopics:
        """Of `topic:SPANS` or `topic:SPANS,LOGS`. Raises ConfigurationError."""
        spans, _, logs = text.removeprefix(TOPIC).partition(",")
        if not spans or "," in logs:
            raise ConfigurationError(
                f"--from {text}: expected topic:NAME, or topic:SPANS,LOGS where a Collector writes logs to a topic too"
            )
        if kafka.bootstrap_servers is None:
            raise ConfigurationError(f"--from {text}: expected --bootstrap-servers with it, got none")
        names = {Topic.OTLP_SPANS: spans, **({Topic.OTLP_LOGS: logs} if logs else {})}
        return cls(names=names, kafka=kafka, since_ms=since_ms)

    def requests(self, say: Callable[[str], None]) -> Iterator[tuple[Signal, bytes]]:
        """What a replay would read, in the order of the records' times. Blocks."""
        log, starts = self._opened(say)
        begins, ends = start_offsets(starts), end_offsets(starts)
        bounds = {where: Offsets(begin, ends[where]) for where, begin in begins.items()}
        for record in merged(log, bounds):
            yield LOGS if record.topic == self.names.get(Topic.OTLP_LOGS) else TRACES, record.value or b""

    def source(self, into: str, runs_dir: Path, show: Show) -> RunDir:
        """The source run of the replay `into`, made now or before."""
        run_dir = _source_of(into, runs_dir)
        kafka = msgspec.structs.replace(self.kafka, topics={topic.value: name for topic, name in self.names.items()})
        settings = RunSettings(run=run_dir.path.name, kafka=kafka, select=SelectConfig(capture_all=True))
        if run_dir.is_made and run_dir.topic_starts:
            if run_dir.settings.kafka != settings.kafka:
                raise ConfigurationError(
                    f"--from: {run_dir.path} is the source of a replay of other topics or of another cluster; give the "
                    "same --from and --bootstrap-servers to go on with it, or another --into"
                )
            return run_dir
        log, starts = self._opened(show.say)
        run_dir = RunDir.create(run_dir.path, settings)
        servers = log.bootstrap_servers
        run_dir.write_start(
            settings, Endpoints(bootstrap_servers=servers, llm_url="", otlp_endpoint="", engine_urls=())
        )
        run_dir.write_starts(starts)
        return run_dir

    def _opened(self, say: Callable[[str], None]) -> tuple[KafkaLog, dict[str, TopicStart]]:
        """The cluster, and from where to where each topic is meant; what is gone is said first."""
        assert self.kafka.bootstrap_servers is not None
        log, starts = KafkaLog(self.kafka.bootstrap_servers, self.kafka.client), {}
        for name in self.names.values():
            kept = log.offsets(name)
            if gone := sum(at.begin for at in kept.values()):
                say(f"{name}: the topic no longer keeps the {gone} records before what it has now")
            ends = tuple(kept[number].end for number in sorted(kept))
            starts[name] = TopicStart(log.topic_id(name), log.offsets_since(name, self.since_ms or 0), ends)
        if all(start.offsets == start.ends for start in starts.values()):
            since = "" if self.since_ms is None else " since then"
            raise ConfigurationError(f"--from: expected records on {', '.join(starts)}{since}, got none")
        return log, starts


class ForeignFiles(NamedTuple):
    """Exported files."""

    asked: str
    """A path, a folder or a glob."""

    def requests(self, say: Callable[[str], None]) -> Iterator[tuple[Signal, bytes | LostBytes]]:
        """As of topics, in the files' order, with what is lost."""
        files = list_files(self.asked)
        say(f"{len(files.files)} files are looked at")
        for item in read_files(files):
            if item.request is not None:
                yield item.signal, item.request.SerializeToString()
            for lost in item.lost:
                yield item.signal, lost._replace(why=f"{item.place.file}, item {item.place.item}: {lost.why}")

    def source(self, into: str, runs_dir: Path, show: Show) -> RunDir | None:
        """As of topics. Blocks until all files are imported; None: a signal came first."""
        run_dir = _source_of(into, runs_dir)
        list_file, progress_file = (run_dir.path / name for name in ("files.json", "import.json"))
        files = list_files(self.asked) if not list_file.exists() else read_record(list_file, FileList)
        if files.asked != (meant := str(Path(self.asked).expanduser().absolute())):
            raise ConfigurationError(
                f"--from files:{self.asked}: expected {files.asked}, of which {run_dir.path} is the source, got "
                f"{meant}; give that to go on with it, or another --into"
            )
        if progress_file.exists() and read_record(progress_file, ImportProgress).is_whole:
            return run_dir
        # One partition: several would be merged by time, which need not be the files' order.
        kafka = KafkaConfig(partitions=1)
        settings = RunSettings(run=run_dir.path.name, kafka=kafka, select=SelectConfig(capture_all=True))
        with run_dir.lock():
            write_record(list_file, files)
            show.say(f"{len(files.files)} files are imported into run {settings.run}")
            source = Wiring(prepare_run(settings, run_dir.path))
            with own_broker(source), told_to_stop() as stop:
                log, topics = source.kafka(), source.topics
                create_topics(log, topics, plan_topics(topics, policies=(settings.policy.name,), kafka=settings.kafka))
                if not run_dir.topic_starts:
                    run_dir.write_starts(begin_run(log, topics))
                done = import_files(
                    files,
                    progress_file,
                    log,
                    topics,
                    stop=stop,
                    tell=lambda progress: show.progress("import", msgspec.to_builtins(progress), progress.text),
                )
        show.result("imported", msgspec.to_builtins(done), [f"imported: {done.text}", *done.told])
        if not done.is_whole:
            show.say("stopped; the same command goes on")
        return run_dir if done.is_whole else None


def _source_of(into: str, runs_dir: Path) -> RunDir:
    return RunDir((runs_dir / f"{into}{_SUFFIX}").resolve())
