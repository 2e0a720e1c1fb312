"""Token ids and logprobs as bytes (int32 and float32, little-endian): 50 times faster than lists of numbers."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from ..errors import RecordError

Ids = npt.NDArray[np.int32]
Logprobs = npt.NDArray[np.float32]
Mask = npt.NDArray[np.uint8]
"""0 and 1, a byte each."""
_NO_IDS: Ids = np.zeros(0, np.int32)


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


class CallTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Token ids of a told call, as the policy has them."""

    prompt: Ids = _NO_IDS
    answer: Ids = _NO_IDS
    """With the token that ends the message, but for an answer that met the token limit."""
    logprobs: Logprobs | None = None
    """Of each id of the answer; None: it was rendered, or they are not told."""
    temperature: float | None = None
    """At which the answer was sampled, where its ids are told; None: nobody says."""
    reason: str = ""
    """Why there are no ids; empty: there are."""
    masked: str = ""
    """Of ids: why they cannot train by a ratio of probabilities, though by the likelihood; empty: they can."""
