"""What a body will take in memory once it is decoded, told before it is: two bytes can be an empty span of 180.

In: bytes of an OTLP request in protobuf. Out: bytes of memory, beyond six for each of the body's own. Invariant:
protobuf's messages take no more than is told; what only looks like one, within a text, is told too. It takes less time
than decoding. Failure: none.
"""

from __future__ import annotations

import numpy as np

__all__ = ["weigh_protobuf"]

_FACTOR = 6
"""Bytes of memory for one of the body's that need not be told: a text takes one, an attribute about three."""
_SPAN_BYTES, _OTHER_BYTES = 180, 90
_SPAN_FIELD = 2
"""Of the field that holds spans; in other messages it holds smaller ones."""
_MESSAGE_FIELDS = (1, _SPAN_FIELD, 3, 4, 5, 6, 9, 11, 13, 15)
"""Numbers of OTLP's fields whose value is a message."""
_PIECE_BYTES = 1024 * 1024


def _excess() -> np.ndarray:
    """By tag and length: how much more than `_FACTOR` for each of its bytes such a message takes."""
    excess = np.zeros((256, 256), np.int64)
    for field in _MESSAGE_FIELDS:
        size = _SPAN_BYTES if field == _SPAN_FIELD else _OTHER_BYTES
        excess[field << 3 | 2] = np.maximum(0, size - _FACTOR * (np.arange(256) + 2))
    return excess


_EXCESS = _excess()
_LONGEST = int(np.flatnonzero(_EXCESS.any(axis=0))[-1])
"""A longer message takes no excess."""


def weigh_protobuf(data: bytes) -> int:
    """By every two bytes that could be the tag and the length of a short message."""
    total = 0
    for start in range(0, len(data), _PIECE_BYTES):
        piece = np.frombuffer(data, np.uint8, min(_PIECE_BYTES + 1, len(data) - start), start)
        tags = np.flatnonzero(piece[1:] <= _LONGEST)
        total += int(_EXCESS[piece[tags], piece[tags + 1]].sum())
    return total
