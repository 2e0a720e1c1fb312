"""One recording as a file: the raw records that an agent left, and beside them what it really did.

In: what `record.py` saw. Out: a compressed file under `fixtures/`, and back. Invariant: the truth comes from the
agent's own code and instructions and from the calls' records, never from spans.
"""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path

import msgspec

FIXTURES = Path(__file__).parent / "fixtures"
Way = str
"""`runner`: as the runner starts an agent; `captured`: several conversations of an agent that nobody started."""


class Raw(msgspec.Struct, frozen=True, kw_only=True):
    """A record of a raw topic, as the gateways wrote it."""

    topic: str
    key: bytes | None
    value: bytes


class TrueCall(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call and who made it."""

    call_id: str
    trip: int
    """The conversation."""
    agent: str | None
    """By the instructions that the agent was given; None: the program has no agents."""
    path: str = ""
    """Which API was asked, by the end of its path; empty: the request was not kept."""
    request: str = ""
    """The body that was sent, as the agent's client wrote it."""


class Executed(msgspec.Struct, frozen=True, kw_only=True):
    """A tool that ran."""

    call_id: str
    tool_call_id: str
    tool: str
    failed: bool


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """What one run of one agent left."""

    name: str
    way: Way
    run_hash: str
    rollout_id: str | None
    attempt_id: str | None
    versions: dict[str, str]
    """Packages of the agent's environment that matter."""
    records: tuple[Raw, ...]
    calls: tuple[TrueCall, ...]
    executed: tuple[Executed, ...]


def save(recording: Recording, folder: Path = FIXTURES) -> Path:
    """Writes it; equal recordings are equal bytes."""
    path = folder / f"{recording.name}-{recording.way}.msgpack.xz"
    path.write_bytes(lzma.compress(msgspec.msgpack.encode(recording), preset=9 | lzma.PRESET_EXTREME))
    return path


def load(path: Path) -> Recording:
    """Reads one."""
    return msgspec.msgpack.decode(lzma.decompress(path.read_bytes()), type=Recording)


def fixtures() -> Iterator[Path]:
    """All that are committed, by name."""
    yield from sorted(FIXTURES.glob("*.msgpack.xz"))
