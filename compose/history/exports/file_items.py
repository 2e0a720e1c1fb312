"""A file of exported telemetry, item by item, however it is wrapped.

    spans.json               {"resourceSpans": ..}       a line each
    spans.pb                 length, bytes, length, ..   4 bytes big-endian before each message; `compression: zstd`
                                                         packs each message by itself
    spans.json.gz, .zst      either, packed as a whole   by logrotate, S3, or the exporter's native compression
    traces_17.binpb          one message                 as the S3 exporter writes an object

Forms are those of Collector contrib's exporter/fileexporter (file_writer.go, compression_writer.go), told apart by the
first bytes and never by names. In: a path, and how many bytes of it count. Out: items in order, and what is lost.
Invariants: memory holds one item; a line that is broken or too long costs itself; where a length or a packed stream
breaks, the rest of that file is lost, for nothing says where the next item begins. Failure: OSError of the file.
"""

from __future__ import annotations

import io
import re
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import zstandard

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.topics import MAX_CLIENT_BYTES

MAX_ITEM_BYTES = MAX_CLIENT_BYTES
"""A longer item fits no record, whatever is in it, and would lie in memory whole."""
_HEAD_BYTES = 64 * 1024
"""By which a file is known: a first line may be broken."""
_PIECE_BYTES = 1024
"""Read at once: packed ones may unpack to a thousand times as many."""
_ZSTD = b"\x28\xb5\x2f\xfd"
_PACKINGS: dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(zlib.MAX_WBITS | 16),
    _ZSTD: lambda: zstandard.ZstdDecompressor().decompressobj(),
}
"""How a packed file begins, and what unpacks a frame of it."""
_MESSAGE_BEGINS = (b"\n", b"{", _ZSTD[:1])
"""Of a message behind a length: protobuf's first field, JSON, packed."""
_SPREAD_JSON = re.compile(rb"\s*\{\s*[\r\n]")
"""A document over several lines."""
_OTLP_LINE = re.compile(rb"^\s*\{\s*\"resource", re.MULTILINE)
_OTHERS = (
    ("a Parquet file", re.compile(rb"PAR1")),
    ("a zip archive", re.compile(rb"PK\x03\x04")),
    ("an SQLite database", re.compile(rb"SQLite format 3")),
    ("a CSV table", re.compile(rb"\"?\w+\"?,\"?\w+\"?,[^\n{]*\n")),
    # https://langfuse.com/docs/api-and-data-platform/features/blob-storage-export-fields
    (
        "an export of Langfuse",
        re.compile(rb'[^\n]*"(?:trace_id|traceId)".*"(?:project_id|projectId|usage_details|usageDetails)"', re.DOTALL),
    ),
    ("an export of Langfuse", re.compile(rb'.*"type"\s*:\s*"(?:GENERATION|SPAN|EVENT)"', re.DOTALL)),
    ("Jaeger's JSON", re.compile(rb'\s*\{\s*"data"\s*:\s*\[|\s*\{[^{]*"(?:traceID|spanID|operationName)"')),
    ("Zipkin's JSON", re.compile(rb'\s*\[\s*\{.*?"(?:traceId|localEndpoint)"', re.DOTALL)),
    ("calls in chat form (name the file NAME.calls.jsonl)", re.compile(rb'\s*\{.*?"messages"\s*:', re.DOTALL)),
    ("a list in JSON (one request a line is read)", re.compile(rb"\s*\[")),
)
"""What else lies in such folders, and how it begins."""


class LostBytes(NamedTuple):
    """What is no item."""

    num_bytes: int
    """As they lie in the file, where its packing broke; else unpacked."""
    why: str
    reason: str = Reason.UNDECODABLE


class _Stream(io.RawIOBase):
    """Pieces, none of them empty, as a file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._piece = pieces, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._piece or memoryview(next(self._pieces, b""))
        num = min(len(buffer), len(piece))
        buffer[:num], self._piece = piece[:num], piece[num:]
        return num


def read_items(path: Path, num_bytes: int, *, is_lines: bool = False) -> Iterator[bytes | LostBytes]:
    """The items of the first `num_bytes` of a file, with an empty one for each empty line.

    Args:
        is_lines: they are lines, whatever they begin with.
    """
    lost: list[LostBytes] = []
    with path.open("rb") as file:
        pieces, head = _unpacked(file, num_bytes, lost), b""
        while len(head) < _HEAD_BYTES and (piece := next(pieces, b"")):
            head += piece
        read = _lines if is_lines else _reader_of(head[:_HEAD_BYTES])
        if read is not None:
            yield from read(io.BufferedReader(_Stream(chain([head], pieces))))
        elif head:
            got = _other(head) or f"a file that begins with bytes {head[:6].hex(' ')}"
            yield LostBytes(num_bytes, f"expected telemetry in OTLP, got {got}")
        yield from lost


def _unpacked(file: io.BufferedReader, num_left: int, lost: list[LostBytes]) -> Iterator[bytes]:
    """So many bytes of a file, unpacked, in pieces. Where its packing breaks they end, and that is lost: what came
    before counts."""
    begins = file.peek()
    new = next((new for magic, new in _PACKINGS.items() if begins.startswith(magic)), None)
    frame = new() if new is not None else None
    try:
        while piece := file.read(min(_PIECE_BYTES, num_left)):
            num_left -= len(piece)
            while new is not None and frame is not None and piece:
                frame = new() if frame.eof else frame
                if data := frame.decompress(piece):
                    yield data
                piece = frame.unused_data if frame.eof else b""
            if piece:
                yield piece
        if frame is not None and not frame.eof:
            raise EOFError("it is cut off")
    except (zlib.error, zstandard.ZstdError, EOFError) as error:
        why = f"expected a whole packed file, got one that cannot be unpacked to its end: {error}"
        lost.append(LostBytes(num_left + len(piece), why))


def unpack_message(data: bytes) -> bytes:
    """A message as it was before `compression: zstd`. Raises RecordError."""
    if not data.startswith(_ZSTD):
        return data
    try:
        if zstandard.frame_content_size(data) <= MAX_ITEM_BYTES:
            return zstandard.ZstdDecompressor().decompress(data, max_output_size=MAX_ITEM_BYTES)
    except zstandard.ZstdError as error:
        raise RecordError(f"expected a message packed by zstd, got {error}") from error
    raise RecordError(f"expected a message of at most {MAX_ITEM_BYTES} bytes, got a longer one")


def _reader_of(head: bytes) -> Callable[[io.BufferedIOBase], Iterator[bytes | LostBytes]] | None:
    """How a file that begins so is read; None: it is something else."""
    if len(head) >= 4 and int.from_bytes(head[:4]) <= MAX_ITEM_BYTES:
        # No text begins with a byte so small.
        return _messages if head[:4] == b"\0\0\0\0" or head[4:5] in _MESSAGE_BEGINS else None
    if _SPREAD_JSON.match(head):
        return _whole
    if _OTLP_LINE.search(head) or (head.lstrip().startswith(b"{") and _other(head) is None):
        return _lines
    return _whole if head.startswith(b"\n") else None


def _lines(stream: io.BufferedIOBase) -> Iterator[bytes | LostBytes]:
    while line := stream.readline(MAX_ITEM_BYTES):
        if len(line) < MAX_ITEM_BYTES or line.endswith(b"\n"):
            yield line.strip()
            continue
        num_bytes = len(line)
        while line and not line.endswith(b"\n"):
            line = stream.readline(_HEAD_BYTES)
            num_bytes += len(line)
        yield LostBytes(num_bytes, f"expected a line of fewer than {MAX_ITEM_BYTES} bytes, got a longer one")


def _messages(stream: io.BufferedIOBase) -> Iterator[bytes | LostBytes]:
    while head := stream.read(4):
        length = int.from_bytes(head)
        message = stream.read(length) if length <= MAX_ITEM_BYTES else b""
        if len(head) < 4 or len(message) < length:
            num_bytes = len(head) + len(message) + _num_left(stream)
            yield LostBytes(num_bytes, f"expected a message of {length} bytes, got the file's end before its")
        else:
            yield message


def _whole(stream: io.BufferedIOBase) -> Iterator[bytes | LostBytes]:
    message = stream.read(MAX_ITEM_BYTES + 1)
    if len(message) <= MAX_ITEM_BYTES:
        yield message
    else:
        num_bytes = len(message) + _num_left(stream)
        yield LostBytes(num_bytes, f"expected one message of at most {MAX_ITEM_BYTES} bytes, got more")


def _num_left(stream: io.BufferedIOBase) -> int:
    return sum(map(len, iter(lambda: stream.read(_HEAD_BYTES), b"")))


def _other(head: bytes) -> str | None:
    return next((name for name, begins in _OTHERS if begins.match(head)), None)
