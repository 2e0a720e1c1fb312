"""Somebody's span topic becomes a source run, which a replay reads as it reads any other's.

    topic:NAME[,LOGS] --> RUNS/INTO-source: settings, key, where each partition begins and ends; no processes

In: a topic of spans, one of log records if there is one, the cluster. Out: the folder of a run that read them.
Invariants: the cluster is only read; which records are meant is fixed when the folder is made, so that the same command
goes on with the same. Failure: ConfigurationError: no such topic, nothing on it, or a folder that is of something else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

from ..kafka.client_settings import KafkaConfig
from ..kafka.log import KafkaLog
from ..kafka.positions import TopicStart
from ..run.run_dir import Endpoints, RunDir
from ..run.settings import RunSettings

TOPIC = "topic:"
"""How `--from` names one."""
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


def source_of(asked: ForeignTopics, into: str, runs_dir: Path, say: Callable[[str], None]) -> RunDir:
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
    places = [TopicPartition(name, number) for number in sorted(kept)]
    since = log.admin.offsets_at(places, since_ms) if since_ms is not None else {}
    begins = tuple(since.get(where, kept[where.partition].begin) for where in places)
    if gone := sum(at.begin for at in kept.values()):
        say(f"{name}: the topic no longer keeps the {gone} records before what it has now")
    return TopicStart(log.topic_id(name), begins, tuple(kept[where.partition].end for where in places))
