"""Token ids and logprobs as bytes (int32 and float32, little-endian): 50 times faster than lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..errors import RecordError

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]
"""0 and 1, a byte each."""


def ids_to_bytes(ids: Sequence[int] | Ids) -> bytes:
    """Token ids, 4 bytes each."""
    return np.asarray(ids, dtype="<i4").tobytes()


def ids_from_bytes(data: bytes) -> Ids:
    """[T] token ids, read-only. Raises RecordError when the length is no multiple of 4."""
    return _from_bytes(data, "<i4").astype(np.int32, copy=False)


def logprobs_to_bytes(logprobs: Sequence[float] | Logprobs) -> bytes:
    """Natural-log probabilities, 4 bytes each."""
    return np.asarray(logprobs, dtype="<f4").tobytes()


def logprobs_from_bytes(data: bytes) -> Logprobs:
    """[T] natural-log probabilities, read-only. Raises RecordError when the length is no multiple of 4."""
    return _from_bytes(data, "<f4").astype(np.float32, copy=False)


def _from_bytes(data: bytes, dtype: str) -> npt.NDArray[np.generic]:
    if len(data) % 4:
        raise RecordError(f"expected a multiple of 4 bytes, got {len(data)}")
    return np.frombuffer(data, dtype=dtype)
