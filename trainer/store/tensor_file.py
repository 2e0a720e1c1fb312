"""A safetensors file, hashed as it is written: the header's length, the header, the tensors.

In: tensors in host memory. Out: the file, byte for byte that of safetensors' `save_file`, so that equal weights have
one sha256, whichever release wrote them; its name, size and sha256. Most of the time is spent without Python's lock: a
thread may write while another trains. On failure: OSError; the caller removes what is half written.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tracegrad.schemas.records.weights import WeightFile

_PIECE_BYTES = 16 * 1024 * 1024
_WIDE = {torch.int64: "I64", torch.float64: "F64", torch.float32: "F32", torch.int32: "I32"}
_NARROW = {torch.bfloat16: "BF16", torch.float16: "F16", torch.int16: "I16"}
_BYTES = {torch.float8_e4m3fn: "F8_E4M3", torch.float8_e5m2: "F8_E5M2", torch.int8: "I8", torch.uint8: "U8"}
_NAMES = {**_WIDE, **_NARROW, **_BYTES, torch.bool: "BOOL"}
"""Tensors lie in this order, those of one type by name: what needs the widest alignment comes first."""
_ORDER = {dtype: place for place, dtype in enumerate(_NAMES)}

Tensors = Mapping[str, Tensor]
Metadata = Mapping[str, str] | None
Write = Callable[[memoryview], object]


def write_tensors(path: Path, tensors: Tensors, metadata: Metadata = None) -> WeightFile:
    """Writes the file, not yet fsynced."""
    with path.open("wb") as file:
        return describe_tensors(path.name, tensors, metadata, file.write)


def describe_tensors(name: str, tensors: Tensors, metadata: Metadata = None, write: Write = len) -> WeightFile:
    """What `write_tensors` would write, which `write` is given in pieces."""
    sha256, size = hashlib.sha256(), 0
    for piece in _pieces(tensors, metadata):
        sha256.update(piece)
        write(piece)
        size += len(piece)
    return WeightFile(name=name, bytes=size, sha256=sha256.hexdigest())


def _pieces(tensors: Tensors, metadata: Metadata) -> Iterator[memoryview]:
    header: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    ordered = sorted(tensors.items(), key=lambda one: (_ORDER[one[1].dtype], one[0]))
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    yield memoryview(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        whole = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data
        for begin in range(0, len(whole), _PIECE_BYTES):
            yield whole[begin : begin + _PIECE_BYTES]
