"""Files of exported telemetry as one stream of OTLP requests, and of what in them is none.

In: a path, a folder or a glob; where to go on. Out: requests in the order of the files' times, each with its signal,
its latest end and its place; and the damage. Invariants: which files, and how much of each, is fixed when they are
listed, so that a Collector may go on writing them; the same list gives the same stream, from any place of it; damage
costs its neighbours nothing (file_items.py); memory holds one request. Failure: ConfigurationError where nothing is
there, or where a listed file is not what it was.
"""

from __future__ import annotations

import glob
import hashlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.otlp.read import read_request
from tracegrad.schemas.otlp.salvage import SalvagedRequest
from tracegrad.schemas.otlp.signal import LOGS, TRACES, Signal, is_of, items_of, json_key
from tracegrad.schemas.reasons import Reason

from .call_lines import read_call_line
from .file_items import LostBytes, read_items, unpack_message

_CALLS = re.compile(r".*\.calls\.jsonl(\.gz|\.zst)?")
"""Files of calls in OpenAI's chat form, by their names: JSON lines as others."""
_HEAD_BYTES = 4096
"""By which a file is known to be the one that was listed."""


class ListedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was when it was listed; what is appended later does not count."""

    name: str
    """Relative to the list's root."""
    num_bytes: int
    head: str
    """sha256 of its first 4 KiB, or of all of it."""


class FileList(msgspec.Struct, frozen=True, kw_only=True):
    """What is read, in order."""

    schema: str = "exported-files/1"
    asked: str
    """The path or the glob, absolute."""
    root: str
    files: tuple[ListedFile, ...]
    listed_ms: int
    """Nothing in them can have ended later."""


class Place(NamedTuple):
    """An item of the files: `spans.json`, 12 is its twelfth line, or message."""

    file: str
    item: int


class FileItem(NamedTuple):
    """What became of an item: a request, with or without parts that are lost; or only what is lost."""

    place: Place
    signal: Signal
    request: Any = None
    """Decoded; None: nothing can be read."""
    lost: tuple[LostBytes, ...] = ()

    @property
    def ended_ms(self) -> int:
        """The latest end of its spans or log records, ms since the epoch; 0: none says, or nothing can be read."""
        items = () if self.request is None else items_of(self.signal, self.request)
        return max((ended_ns(item) for *_, item in items), default=0) // 1_000_000


def list_files(asked: str) -> FileList:
    """The files of a path, of a folder at any depth, or of a glob, without hidden and empty ones. Reads into each.

    They are ordered by the end of each one's first request, whatever a rotation called them. Raises ConfigurationError.
    """
    listed_ms = int(time.time() * 1000)
    whole = Path(asked).expanduser().absolute()
    base = next(path for path in (whole, *whole.parents) if path.exists() or not glob.has_magic(str(path)))
    root = base.parent if base.is_file() else base
    paths = whole.rglob("*") if whole.is_dir() else map(Path, glob.glob(str(whole), recursive=base != whole))
    found = []
    for path in [whole] if whole.is_file() else paths:
        parts = path.relative_to(root).parts
        if not path.is_file() or any(part.startswith(".") for part in parts):
            continue
        try:
            size = path.stat().st_size
            file = ListedFile(name="/".join(parts), num_bytes=size, head=_head_of(path, size))
            ends = (item.ended_ms for item in _read_file(path, file))
            found.append((next(filter(None, ends), 0), file.name, file))
        except OSError as error:
            raise ConfigurationError(f"{path}: expected a file that can be read, got: {error}") from error
    files = tuple(file for *_, file in sorted(found, key=lambda one: one[:2]) if file.num_bytes)
    if not files:
        raise ConfigurationError(f"--from files:{asked}: expected a file, a folder with files, or a glob, got none")
    return FileList(asked=str(whole), root=str(root), files=files, listed_ms=listed_ms)


def read_files(files: FileList, after: Place | None = None) -> Iterator[FileItem]:
    """What lies behind a place; None: all. Blocks. Raises ConfigurationError where a file is not what was listed."""
    begin = [file.name for file in files.files].index(after.file) if after is not None else 0
    for file in files.files[begin:]:
        path = Path(files.root, file.name)
        try:
            if path.stat().st_size < file.num_bytes or _head_of(path, file.num_bytes) != file.head:
                raise OSError("another or a shorter file")
            yield from _read_file(path, file, after.item if after is not None and after.file == file.name else 0)
        except OSError as error:
            raise ConfigurationError(
                f"{path}: expected the file that was listed, of {file.num_bytes} bytes, got: {error}; put it back, or "
                "begin again with another name"
            ) from error


def _read_file(path: Path, file: ListedFile, num_read: int = 0) -> Iterator[FileItem]:
    """Of one file, behind so many items."""
    is_calls, likely = _CALLS.fullmatch(file.name) is not None, TRACES
    for number, data in enumerate(read_items(path, file.num_bytes, is_lines=is_calls), 1):
        if number <= num_read or data == b"":
            continue
        request, lost = None, tuple[LostBytes, ...]()
        try:
            if isinstance(data, LostBytes):
                lost = (data,)
            elif is_calls:
                request = read_call_line(data, f"{file.name}:{number}", at_ms=number)
            else:
                likely, (request, parts) = _decoded(unpack_message(data), likely)
                lost = tuple(LostBytes(part.num_bytes, f"a part that is damaged: {part.sha256}") for part in parts)
        except RecordError as error:
            reason = Reason.METRICS if error.reason == Reason.METRICS else Reason.UNDECODABLE
            lost = (LostBytes(len(data), str(error), reason),)
        yield FileItem(Place(file.name, number), likely, request, lost)


def _decoded(data: bytes, likely: Signal) -> tuple[Signal, SalvagedRequest]:
    """A request, and what it is of: JSON says it, in protobuf the two differ by what an item holds. Raises RecordError.

    Args:
        likely: tried first; a file of one signal is decoded once.
    """
    named = json_key(data)
    both = (likely, LOGS if likely is TRACES else TRACES)
    signals = [signal for signal in both if not named or is_of(signal, named)]
    # Protobuf reads nearly any short text as fields that it does not know.
    if not signals or not (named or data.startswith(b"\n")):
        reason = Reason.METRICS if "metrics" in named.lower() else Reason.UNDECODABLE
        raise RecordError(f"expected spans or log records in OTLP, got {named or 'something else'}", reason=reason)
    refusal: RecordError | None = None
    for signal in signals:
        try:
            found = read_request(signal, data)
        except RecordError as error:
            refusal = refusal or error
            continue
        items = [item for *_, item in items_of(signal, found.request)]
        # Read as the other signal, items of one may be damage, and what is left of the request empty.
        is_empty = not items and not found.lost
        if named or is_empty or any(_is_one(signal, item) for item in items):
            return signal, found
    if _is_metrics(data):
        raise RecordError("expected spans or log records in OTLP, got metrics", reason=Reason.METRICS)
    raise refusal or RecordError("expected spans or log records in OTLP, got a message of neither")


def _is_metrics(data: bytes) -> bool:
    try:
        request = ExportMetricsServiceRequest.FromString(data)
    except DecodeError:
        return False
    scopes = (of_scope for of_resource in request.resource_metrics for of_scope in of_resource.scope_metrics)
    return any(metric.WhichOneof("data") for of_scope in scopes for metric in of_scope.metrics)


def _is_one(signal: Signal, item: Any) -> bool:
    if signal is TRACES:
        return len(item.trace_id) == 16 and len(item.span_id) == 8
    return bool(item.time_unix_nano or item.observed_time_unix_nano or item.severity_number)


def ended_ns(item: Any) -> int:
    """Of a span or a log record; 0: it does not say."""
    names = ("end_time_unix_nano", "start_time_unix_nano", "time_unix_nano", "observed_time_unix_nano")
    return next(filter(None, (getattr(item, name, 0) for name in names)), 0)


def _head_of(path: Path, num_bytes: int) -> str:
    with path.open("rb") as file:
        return hashlib.sha256(file.read(min(num_bytes, _HEAD_BYTES))).hexdigest()
