"""What an id means: a version's, an episode's, a group's or a call's; which episodes have a key.

In: an index, a text. Out: a Subject. Invariant: what was guessed is said, so that a user can correct it. Failure:
ConfigurationError for an id that names nothing here, or more than one episode.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from enum import StrEnum
from typing import NamedTuple

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import canonical_call
from tracegrad.schemas.records.versions import parse_label

_VERSION = re.compile(r"v?(0|[1-9][0-9]{0,11})")
_HEX = re.compile(r"[0-9a-f]{8,32}")
_NAMED = 5


class Kind(StrEnum):
    """What an id can be of."""

    VERSION = "version"
    EPISODE = "episode"
    GROUP = "group"
    CALL = "call"


class Subject(NamedTuple):
    """What an id was taken for."""

    kind: Kind
    id: str
    """A version's number; an episode's or a group's id, whole; a call's as records hold it."""


def taken_for(connection: sqlite3.Connection, text: str, kind: Kind | None = None) -> Subject:
    """What an id means, of this kind or of any: a whole id before an episode that begins so. Raises
    ConfigurationError."""
    whole = next((one for one in _readings(connection, text) if kind in (None, one.kind)), None)
    if whole is not None:
        return whole
    begun = _episodes_like(connection, text) if kind in (None, Kind.EPISODE) else []
    if len(begun) == 1:
        return Subject(Kind.EPISODE, begun[0])
    if begun:
        told = ", ".join(begun[:_NAMED]) + (", ..." if len(begun) > _NAMED else "")
        raise ConfigurationError(f"expected one episode, got {text!r}, with which several begin: {told}")
    raise ConfigurationError(
        f"expected an id of this run ({kind or 'version, episode, group or call'}), got {text[:80]!r}: a version is a "
        "number, v18 or a label; an episode 32 hex, the first 8 or more, its conversation's key; a group 24 hex; a "
        "call as its API spelt it; of a span name its trace"
    )


def _readings(connection: sqlite3.Connection, text: str) -> Iterator[Subject]:
    label = parse_label(text)
    number = str(label.version) if label else match[1] if (match := _VERSION.fullmatch(text)) else None
    if number is not None and _has_version(connection, int(number), label.run if label else None):
        yield Subject(Kind.VERSION, number)
    if (call := canonical_call(text)) is not None:
        yield Subject(Kind.CALL, call)
    if connection.execute("SELECT 1 FROM episodes WHERE id = ?", (text,)).fetchone():
        yield Subject(Kind.EPISODE, text)
    # That of a captured episode bears the episode's id.
    if connection.execute("SELECT 1 FROM groups WHERE id = ?", (text,)).fetchone():
        yield Subject(Kind.GROUP, text)


def _has_version(connection: sqlite3.Connection, version: int, run: str | None) -> bool:
    row = connection.execute("SELECT run FROM versions WHERE version = ?", (version,)).fetchone()
    return row is not None and run in (None, row[0])


def _episodes_like(connection: sqlite3.Connection, text: str) -> list[str]:
    """Episodes whose id begins so, or of the conversation or forwarded trace that is called so."""
    if not _HEX.fullmatch(text):
        return []
    rows = connection.execute("SELECT id FROM episodes WHERE id GLOB ? ORDER BY id LIMIT 20", (f"{text}*",)).fetchall()
    return [id_ for (id_,) in rows] or [id_ for id_, *_ in episodes_of_key(connection, text)]


def episodes_of_key(connection: sqlite3.Connection, key: str) -> list[tuple[str, int, int]]:
    """(id, partition and offset of the record) of what came under a key: a rollout's attempts, a trace, a
    conversation."""
    return connection.execute(
        'SELECT id, partition, "offset" FROM episodes WHERE id GLOB ? '
        'UNION SELECT id, partition, "offset" FROM keys JOIN episodes ON n = episode WHERE key = ?',
        (f"{key}*", key),
    ).fetchall()
