"""The small records in a run's folder, as JSON, and the key among them.

In: a path. Out: a record, or the file that holds one. Invariant: a file is replaced whole. Failure: ConfigurationError
with the remedy, where a file is not there or is damaged.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash

from .files import write_atomically

__all__ = ["KEY", "MARK", "RunKey", "read_key", "read_record", "write_record"]

T = TypeVar("T")
MARK = "run.json"
"""By which a run's folder is known."""
KEY = "key.json"
_KEY_BYTES = 32


class RunKey(msgspec.Struct, frozen=True, kw_only=True):
    """The secret of a run: who has it may write in the run's name. Programs of the run are told it, agents never."""

    schema: str = "run-key/1"
    run: RunHash
    """Whose key it is; a copy of the file, given to another run, says so by itself."""
    key: bytes
    """32 random bytes, in base64."""

    @classmethod
    def draw(cls, run: RunHash) -> RunKey:
        """A new one."""
        return cls(run=run, key=secrets.token_bytes(_KEY_BYTES))

    def __repr__(self) -> str:
        return f"RunKey({self.run})"


def read_key(path: Path) -> RunKey:
    """The key of the run in a folder, or in a copy of its key.json. Raises ConfigurationError when there is none."""
    file = path / KEY if path.is_dir() else path
    found = read_record(file, RunKey)
    if len(found.key) != _KEY_BYTES:
        raise ConfigurationError(
            f"{file}: expected a key of {_KEY_BYTES} bytes, got {len(found.key)}; put the run's own file back"
        )
    return found


def write_record(path: Path, record: msgspec.Struct, *, is_private: bool = False) -> None:
    """As JSON for people, replaced whole."""
    write_atomically(path, msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n", is_private=is_private)


def read_record(path: Path, kind: type[T], today: Callable[[Any], Any] = lambda given: given) -> T:
    """The record in a file, of which `today` makes what this release knows of it. Raises ConfigurationError."""
    try:
        return msgspec.convert(today(msgspec.json.decode(path.read_bytes())), kind)
    except FileNotFoundError:
        remedy = "start the run with `tracegrad up` or `tracegrad train FILE`, or name its folder by --run-dir"
        if path.name == KEY and (path.parent / MARK).exists():
            remedy = "without it nothing counts that the run wrote: put it back from a copy"
        raise ConfigurationError(f"no {path.name} in {path.parent}; {remedy}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"{path}: {error}; was it written by another release?") from error
