"""Somebody's spans become a source run, which a replay reads as it reads any other's.

    topic:NAME[,LOGS] --> RUNS/INTO-source: settings, key, where each partition begins and ends; no processes
    files:PATH        --> RUNS/INTO-source: a broker of its own, on which the spans lie; no other processes

In: a topic of spans, one of log records if there is one, the cluster; or exported files. Out: the folder of a run that
read them. Invariants: cluster and files are only read; which records or files are meant is fixed when the folder is
made, so that the same command goes on with the same. Failure: ConfigurationError: no such topic or file, nothing on it,
or a folder that is of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

from ..files import read_record, write_record
from ..kafka.client_settings import KafkaConfig
from ..kafka.log import KafkaLog
from ..kafka.positions import TopicStart, begin_run
from ..kafka.topic_admin import create_topics, plan_topics
from ..run.pipeline import prepare_run
from ..run.run_dir import Endpoints, RunDir
from ..run.settings import RunSettings
from ..run.show import Show
from ..run.wiring import Wiring
from .exported_files import FileList, list_files
from .import_files import ImportProgress, import_files
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

    def settings(self, run: str) -> RunSettings:
        """Of the source run."""
        topics = {topic.value: name for topic, name in self.names.items()}
        kafka = msgspec.structs.replace(self.kafka, topics=topics)
        return RunSettings(run=run, kafka=kafka, select=SelectConfig(capture_all=True))


def topics_source(asked: ForeignTopics, into: str, runs_dir: Path, say: Callable[[str], None]) -> RunDir:
    """The source run of the replay `into`, made now or before."""
    path = runs_dir / f"{into}{_SUFFIX}"
    run_dir = RunDir(path.resolve())
    settings = asked.settings(path.name)
    if run_dir.is_made and run_dir.topic_starts:
        if run_dir.settings.kafka != settings.kafka:
            raise ConfigurationError(
                f"--from: {run_dir.path} is the source of a replay of other topics or of another cluster; give the "
                "same --from and --bootstrap-servers to go on with it, or another --into"
            )
        return run_dir
    servers = settings.kafka.bootstrap_servers
    assert servers is not None
    log = KafkaLog(servers, settings.kafka.client)
    starts = {name: _start(log, name, asked.since_ms, say) for name in asked.names.values()}
    if all(start.offsets == start.ends for start in starts.values()):
        since = "" if asked.since_ms is None else " since then"
        raise ConfigurationError(f"--from: expected records on {', '.join(starts)}{since}, got none")
    run_dir = RunDir.create(path, settings)
    run_dir.write_start(settings, Endpoints(bootstrap_servers=servers, llm_url="", otlp_endpoint="", engine_urls=()))
    run_dir.write_starts(starts)
    return run_dir


def _start(log: KafkaLog, name: str, since_ms: int | None, say: Callable[[str], None]) -> TopicStart:
    """From where to where a topic is meant; what is gone is said first."""
    kept = log.offsets(name)
    if gone := sum(at.begin for at in kept.values()):
        say(f"{name}: the topic no longer keeps the {gone} records before what it has now")
    ends = tuple(kept[number].end for number in sorted(kept))
    return TopicStart(log.topic_id(name), log.offsets_since(name, since_ms or 0), ends)


def files_source(asked: str, into: str, runs_dir: Path, show: Show) -> RunDir | None:
    """The source run of the replay `into`, of the files of a path, a folder or a glob. Blocks until all are imported;
    None: a signal came first."""
    run_dir = RunDir((runs_dir / f"{into}{_SUFFIX}").resolve())
    list_file, progress_file = (run_dir.path / name for name in ("files.json", "import.json"))
    files = list_files(asked) if not list_file.exists() else read_record(list_file, FileList)
    if files.asked != (meant := str(Path(asked).expanduser().absolute())):
        raise ConfigurationError(
            f"--from files:{asked}: expected {files.asked}, of which {run_dir.path} is the source, got {meant}; give "
            "that to go on with it, or another --into"
        )
    if progress_file.exists() and read_record(progress_file, ImportProgress).is_whole:
        return run_dir
    settings = RunSettings(run=run_dir.path.name, select=SelectConfig(capture_all=True))
    with run_dir.lock():
        write_record(list_file, files)
        show.say(f"{len(files.files)} files are imported into run {settings.run}; Ctrl-C, and the same command goes on")
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
    return run_dir if done.is_whole else None
