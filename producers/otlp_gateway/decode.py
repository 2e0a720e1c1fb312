"""OTLP bodies become export requests: gzip, protobuf and JSON.

In: the bytes and headers of a request. Out: the decoded message. Invariant: no more than `limit` bytes are ever
decompressed, piece by piece, so a small body cannot fill the memory. Failure: RequestError (413) or RecordError (400).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator

from tracegrad.schemas.errors import RecordError, RequestError
from tracegrad.schemas.otlp.read_json import read_json
from tracegrad.schemas.otlp.salvage import SalvagedRequest, salvage
from tracegrad.schemas.otlp.signal import Signal

PROTOBUF = "application/x-protobuf"
JSON = "application/json"
_CHUNK_BYTES = 64 * 1024
"""Of input; what follows a member's end is copied, so it has to be small."""
_PIECE_BYTES = 1024 * 1024
_MAX_MEMBERS = 64
"""Exporters send one; each costs some 50 us, and 8 MiB hold 400,000."""


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


def decode_body(signal: Signal, data: bytes, content_type: str) -> SalvagedRequest:
    """The message of a body, and what of it cannot be read; unknown fields are ignored in JSON and kept in protobuf.

    Raises:
        RecordError: the body is not what its content type says.
    """
    return read_json(signal, data) if content_type == JSON else salvage(signal, data)
