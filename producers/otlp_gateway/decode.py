"""OTLP bodies become export requests: gzip, protobuf and JSON.

In: the bytes and headers of a request. Out: the decoded message. Invariant: no more than `limit` bytes are ever
decompressed, piece by piece, so a small body cannot fill the memory. Failure: RequestError (413) or RecordError (400).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterator
from typing import Any

import msgspec
from google.protobuf import json_format  # type: ignore[import-untyped]
from google.protobuf.message import Message  # type: ignore[import-untyped]

from tracegrad.schemas.errors import RecordError, RequestError
from tracegrad.schemas.otlp.salvage import Salvaged, salvage
from tracegrad.schemas.otlp.signal import Signal, items_of
from tracegrad.schemas.text import decode_json

__all__ = ["JSON", "PROTOBUF", "decode_body", "gunzip"]

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_CHUNK_BYTES = 64 * 1024
"""Of input; what follows a member's end is copied, so it has to be small."""
_PIECE_BYTES = 1024 * 1024
_MAX_MEMBERS = 64
"""Exporters send one; each costs some 50 us, and 8 MiB hold 400,000."""
_IDS = ("trace_id", "span_id", "parent_span_id")


def gunzip(data: bytes, *, limit: int) -> Iterator[bytes]:
    """The decompressed bytes of a few gzip members, in pieces, so that each can be accounted for before the next.

    Raises:
        RequestError: 413, more than `limit` bytes would come out; decompression stopped there.
        RecordError: not gzip, cut short, or of more than 64 members.
    """
    position = num_members = num_bytes = 0
    while position < len(data):
        num_members += 1
        if num_members > _MAX_MEMBERS:
            raise RecordError(f"expected at most {_MAX_MEMBERS} gzip members, got more")
        member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        while not member.eof:
            chunk = data[position : position + _CHUNK_BYTES]
            try:
                piece = member.decompress(chunk, _PIECE_BYTES)
            except zlib.error as error:
                raise RecordError(f"expected a complete gzip body, got {error}") from error
            if not chunk and not piece:
                raise RecordError("expected a complete gzip body, got a part")
            position += len(chunk) - len(member.unused_data) - len(member.unconsumed_tail)
            num_bytes += len(piece)
            if num_bytes > limit:
                raise RequestError(f"expected at most {limit} bytes after decompression, got more", status=413)
            yield piece


def decode_body(signal: Signal, data: bytes, content_type: str) -> Salvaged:
    """The message of a body, and what is damaged of it; unknown fields are ignored in JSON and kept in protobuf.

    Raises:
        RecordError: the body is not what its content type says.
    """
    return Salvaged(_from_json(signal, data)) if content_type == JSON else salvage(signal, data)


def _from_json(signal: Signal, data: bytes) -> Message:
    message = signal.request()
    try:
        # JavaScript cuts text between the halves of a pair, and a batch is not lost by it.
        body = msgspec.convert(decode_json(data), dict[str, Any])
        json_format.ParseDict(body, message, ignore_unknown_fields=True)
        for _, _, item in items_of(signal, message):
            for named in (item, *getattr(item, "links", ())):
                _read_hex(named)
    except (ValueError, TypeError, AttributeError, RecursionError, json_format.Error) as error:
        raise RecordError(f"expected OTLP JSON, got {type(error).__name__}: {str(error)[:200]}") from error
    return message


def _read_hex(item: Any) -> None:
    """OTLP JSON writes ids in hex, which protobuf's JSON mapping has just read as if they were base64."""
    for name in _IDS:
        if misread := getattr(item, name, b""):
            setattr(item, name, bytes.fromhex(base64.b64encode(misread).decode()))
