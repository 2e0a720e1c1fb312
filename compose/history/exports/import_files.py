"""Exported files become a source's own log, for replays to read.

    files -> exported_files -> split by trace -> otlp_spans, otlp_logs; what is none: dead_letters, by reference

In: the files, where the progress is kept, the log, on which nobody else writes. Out: records, each with the time of its
latest end, and the progress. Invariant: whoever is killed when, the next call goes on, and the log holds each piece
once, in the files' order within each partition: the progress says up to where all is acknowledged, and each record
behind that says in a header which piece it is. Memory holds one request, or 8 MiB of them, whose spans of one
trace become one record, in the place of the last. Failure:
ConfigurationError (another file, nothing readable), UnavailableError and LogGapError of the log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tracegrad.producers.otlp_gateway.split import Piece, split
from tracegrad.schemas.errors import ConfigurationError, LogGapError, RecordError
from tracegrad.schemas.keys import original_key, trace_key
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.protocol import Headers, Log, LogWriter, Position, Record, TopicPartition
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.dead_letters import dead_letter_headers
from tracegrad.schemas.topics import Topic, Topics

from ...files import read_record, write_record
from .exported_files import FileItem, FileList, Place, ended_ns, read_files
from .file_items import LostBytes

PIECE_HEADER = "tracegrad.piece"
"""Of a record: its item of the files, its number among those of that item, and the file."""
_TARGET_BYTES = 1_000_000
"""Pieces of a trace are closed at this size, as by the OTLP gateway."""
_WINDOW_RECORDS, _WINDOW_BYTES = 500, 8 * 1024 * 1024
"""Gathered before they are appended and awaited."""
_ACK_S = 60.0
_UNKNOWN = "an unknown number of"
"""Of a packed file that is cut off: nobody knows what was behind."""
_MAX_TOLD = 20


class ImportProgress(msgspec.Struct, kw_only=True):
    """How far an import is. All up to `place` is acknowledged, and lies before `ends`."""

    schema: str = "import/1"
    place: Place | None = None
    ends: dict[str, list[int]]
    """Of each topic the next offsets of its partitions, from 0."""
    counts: dict[str, int] = {}
    """`requests`, `spans` and `log_records` in them, `records` that hold these; requests of `metrics`, which are left
    out; `lost_bytes`, and by its reason how often something was lost."""
    told: list[str] = []
    """The first of what was lost, in words."""
    is_whole: bool = False
    newest_ms: int = 0
    """The latest time of a record."""
    behind_ms: int = 0
    """How far before that the time of a later record lay: files are of several Collectors, or read from a topic."""

    @property
    def text(self) -> str:
        """One line."""
        num = {what: self.counts.get(what, 0) for what in ("requests", "spans", "log_records", "lost_bytes")}
        at = f"{self.place.file}, item {self.place.item}" if self.place is not None else "no file"
        lost = f"; {num['lost_bytes'] or _UNKNOWN} bytes lost" if self.told else ""
        told = f"{num['requests']} requests, {num['spans']} spans, {num['log_records']} log records"
        return f"{told}, up to {at}{lost}"


def clock_rate(folder: Path, idle_s: float) -> float:
    """At which a replay of this source lets time pass: silence lasts `idle_s`, and as long as what ends it may be read
    later; twice, for the clock moves in steps. 1: no files were imported into it."""
    behind_ms = read_record(file, ImportProgress).behind_ms if (file := folder / "import.json").exists() else 0
    return idle_s / (idle_s + 2 * behind_ms / 1000)


def import_files(
    files: FileList,
    path: Path,
    log: Log,
    topics: Topics,
    *,
    stop: threading.Event | None = None,
    tell: Callable[[ImportProgress], object] = lambda progress: None,
) -> ImportProgress:
    """Appends what is not there yet, up to the end of the files or until `stop` is set. Blocks.

    Args:
        path: where the progress is kept; whoever calls again with it gives the same files, and holds the source's lock.
        tell: is told whenever all so far is acknowledged.
    """
    names = [topics.name(topic) for topic in (Topic.OTLP_SPANS, Topic.OTLP_LOGS, Topic.DEAD_LETTERS)]
    begun = ImportProgress(ends={name: [0] * len(log.offsets(name)) for name in names})
    progress = read_record(path, ImportProgress) if path.exists() else begun
    for topic, acknowledged in progress.ends.items():
        kept = log.offsets(topic)
        if any(kept[number].end < end for number, end in enumerate(acknowledged)):
            raise LogGapError(f"expected {topic} up to {acknowledged}, as {path} says, got less; begin again elsewhere")
    with closing(_Import(path, log, topics, files, progress).run()) as steps:
        for _ in steps if not progress.is_whole else ():
            tell(progress)
            if stop is not None and stop.is_set():
                return progress
    if not progress.counts.get("requests"):
        told = "; ".join(progress.told[:3])
        raise ConfigurationError(f"--from files:{files.asked}: expected requests in OTLP, or calls, got none; {told}")
    return progress


class _NewRecord(NamedTuple):
    topic: Topic
    key: bytes | None
    value: bytes
    timestamp_ms: int
    headers: Headers = ()


@dataclass
class _Import:
    """One call's work; `progress` moves with it."""

    path: Path
    log: Log
    topics: Topics
    files: FileList
    progress: ImportProgress
    window: dict[object, tuple[bytes, FileItem, Any]] = field(default_factory=dict)
    """Which piece of the files a record is, and of what; of a trace one record, as old as the last that came to it."""

    def run(self) -> Generator[None, None, None]:
        """Steps behind each window, and at the end."""
        there, writer, num_bytes = set(self._written()), self.log.writer(), 0
        try:
            for item in read_files(self.files, self.progress.place):
                for number, made in enumerate(self._made_of(item)):
                    self._gather(f"{item.place.item} {number} {item.place.file}".encode(), item, made)
                    num_bytes += made.num_bytes if isinstance(made, Piece) else 0
                self.progress.place = item.place
                # By the files alone, so that who is called again makes the records that a killed one wrote.
                if len(self.window) >= _WINDOW_RECORDS or num_bytes >= _WINDOW_BYTES:
                    self._write(writer, there)
                    num_bytes = 0
                    yield
            self.progress.is_whole = True
            self._write(writer, there)
            yield
        finally:
            writer.close()

    def _gather(self, header: bytes, item: FileItem, made: Any) -> None:
        """Spans of a trace lie in many requests, and a record costs more than a span of it."""
        key = (item.signal, made.trace_id) if isinstance(made, Piece) and made.trace_id else header
        first = self.window.pop(key, None)
        if first is not None and first[2].num_bytes + made.num_bytes <= _TARGET_BYTES:
            first[2].items += made.items
            first[2].num_bytes += made.num_bytes
            header, item, made = first
        elif first is not None:
            self.window[first[0]] = first
        self.window[key] = header, item, made

    def _written(self) -> Iterator[bytes]:
        """Which pieces lie behind what was acknowledged: their writer was killed."""
        for topic, ends in self.progress.ends.items():
            starts = {TopicPartition(topic, number): end for number, end in enumerate(ends)}
            for record in read_to_end(self.log, topic, starts=starts):
                ends[record.partition] = record.offset + 1
                yield dict(record.headers).get(PIECE_HEADER, b"")

    def _write(self, writer: LogWriter, there: set[bytes]) -> None:
        """The window's records that are not there yet, and then the progress."""
        waiting = list[Future[Position]]()
        made = [(header, item, self._record_of(item, one)) for header, item, one in self.window.values()]
        for header, item, record in (one for one in made if one[0] not in there):
            topic = self.topics.name(record.topic)
            future = writer.append(
                topic,
                key=record.key,
                value=record.value,
                headers=(*record.headers, (PIECE_HEADER, header)),
                # Without a key a client would choose by chance, and each start another one.
                partition=None if record.key is not None else item.place.item % len(self.progress.ends[topic]),
                timestamp_ms=record.timestamp_ms,
            )
            waiting.append(future)
        self.window.clear()
        self._save(waiting)

    def _save(self, waiting: Iterable[Future[Position]]) -> None:
        for future in waiting:
            at = future.result(_ACK_S)
            self.progress.ends[at.topic][at.partition] = at.offset + 1
        write_record(self.path, self.progress)

    def _made_of(self, item: FileItem) -> Iterator[Piece | _NewRecord]:
        lost, pieces = list(item.lost), list[Piece]()
        if item.request is not None:
            limit_bytes = self.topics.value_bytes(item.signal.topic)
            try:
                pieces, rejected = split(
                    item.signal, item.request, target_bytes=_TARGET_BYTES, item_limit_bytes=limit_bytes
                )
                lost += [
                    LostBytes(one.num_bytes, f"span {one.span_id} of {one.trace_id}", one.reason) for one in rejected
                ]
                self._count("requests")
            except RecordError as error:
                lost.append(LostBytes(item.request.ByteSize(), str(error)))
        for one in lost:
            if one.reason == Reason.METRICS:
                self._count(Reason.METRICS)
            else:
                yield self._dead_letter(item, one)
        yield from pieces

    def _record_of(self, item: FileItem, piece: Piece | _NewRecord) -> _NewRecord:
        if isinstance(piece, _NewRecord):
            return piece
        self._count("records")
        self._count(item.signal.fields, len(piece.items))
        latest_ms = max(ended_ns(one) for *_, one in piece.items) // 1_000_000
        # A broker takes no record of the future, and a clock that goes wrong must not end an import. Without a time
        # a record is as old as those before it.
        at_ms = min(latest_ms or self.progress.newest_ms or 1, self.files.listed_ms)
        self.progress.newest_ms = max(self.progress.newest_ms, at_ms)
        self.progress.behind_ms = max(self.progress.behind_ms, self.progress.newest_ms - at_ms)
        return _NewRecord(item.signal.topic, trace_key(piece.trace_id), piece.value(), at_ms)

    def _dead_letter(self, item: FileItem, lost: LostBytes) -> _NewRecord:
        """By reference."""
        self._count(lost.reason)
        self._count("lost_bytes", lost.num_bytes)
        detail = f"{item.place.file}, item {item.place.item}: {lost.num_bytes or _UNKNOWN} bytes lost: {lost.why}"
        if len(self.progress.told) < _MAX_TOLD:
            self.progress.told.append(detail)
        origin = Record(topic=self.topics.name(item.signal.topic), partition=-1, offset=-1, key=None, value=None)
        headers = dead_letter_headers(origin, stage="import", reason=lost.reason, detail=detail, item=item.place.item)
        return _NewRecord(Topic.DEAD_LETTERS, original_key(origin), detail.encode(), self.files.listed_ms, headers)

    def _count(self, what: str, num: int = 1) -> None:
        self.progress.counts[what] = self.progress.counts.get(what, 0) + num
