"""Where a history is to begin, as a file says it: `topic,partition,offset` a line, as kafka-consumer-groups reads and
writes them (`--from-file`, `--export`).

In: the file; what there is of each partition. Out: first offsets. Invariant: each lies in the log, or before what
retention has left of it. Failure: ConfigurationError with the file and the line.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Mapping
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition

__all__ = ["checked_begins", "digest_of", "read_begins"]

_COLUMNS = 3
_GREATEST = 2**63


def read_begins(path: Path) -> dict[TopicPartition, int]:
    """The first offsets in a file. Raises ConfigurationError."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"--from-file {path}: expected a text file, got {error}") from None
    found: dict[TopicPartition, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        row = [cell.strip() for cell in next(csv.reader([line]))]
        numbers = [int(cell) for cell in row[1:] if cell.isascii() and cell.isdecimal() and int(cell) < _GREATEST]
        if len(row) != _COLUMNS or not row[0] or len(numbers) != _COLUMNS - 1:
            raise ConfigurationError(
                f"--from-file {path}, line {number}: expected topic,partition,offset, such as otlp_spans,0,1200, got "
                f"{line!r}"
            )
        where = TopicPartition(row[0], numbers[0])
        if where in found:
            raise ConfigurationError(
                f"--from-file {path}, line {number}: expected each partition once, got {where.topic},{where.partition} "
                "again; leave one of them out"
            )
        found[where] = numbers[1]
    if not found:
        raise ConfigurationError(f"--from-file {path}: expected lines of topic,partition,offset, got none")
    return found


def checked_begins(
    begins: Mapping[TopicPartition, int], kept: Mapping[TopicPartition, Offsets]
) -> dict[TopicPartition, int]:
    """The same, where each is of a partition that is read, and not behind its end. Raises ConfigurationError."""
    for where, begin in begins.items():
        if where not in kept:
            raise ConfigurationError(
                f"--from-file: expected partitions of {', '.join(sorted({at.topic for at in kept}))}, which a replay "
                f"reads, got {where.topic},{where.partition}"
            )
        if begin > kept[where].end:
            raise ConfigurationError(
                f"--from-file: expected an offset up to {kept[where].end}, where {where.topic},{where.partition} ends, "
                f"got {begin}"
            )
    return dict(begins)


def digest_of(begins: Mapping[TopicPartition, int] | None) -> str:
    """By which two files that say the same are equal; empty without a file."""
    if begins is None:
        return ""
    told = "\n".join(f"{where.topic},{where.partition},{begin}" for where, begin in sorted(begins.items()))
    return hashlib.sha256(told.encode()).hexdigest()
