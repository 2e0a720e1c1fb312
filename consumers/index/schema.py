"""The index's file: its tables, and how it is opened.

In: a path. Out: a connection to a file of this release's form; one of another form, or that is damaged, is thrown
away: all that it holds lies on topics. Texts that repeat are numbers of `words`, so that a glob is tried on each word
once and not on each episode. Invariant: what is in the file was made of exactly the records below `positions`; both
change in one transaction, so a builder that is killed goes on where it stood. Failure: ConfigurationError where the
file cannot be made.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tracegrad.schemas.errors import ConfigurationError, UnavailableError

from ..episode_facts import NAMES, NUMBERS, WORDS

__all__ = ["empty", "is_current", "is_damage", "open_index", "read_mark", "remove", "transaction", "write_mark"]

_FORM = 3
"""Of the tables below and of what is read into them: another number, and each index is made anew."""
_BUSY_S = 30.0
"""How long a transaction of another process is waited for; they are short."""
_LOOK_EVERY_S = 0.02
_CACHE_KIB = 64 * 1024

_REAL = ("reward", "paid", "duration_s")

_TABLES = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE positions(topic TEXT, partition INTEGER, next INTEGER, PRIMARY KEY(topic, partition)) WITHOUT ROWID;
CREATE TABLE topics(topic TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE unread(topic TEXT, reason TEXT, num INTEGER, PRIMARY KEY(topic, reason)) WITHOUT ROWID;
CREATE TABLE words(n INTEGER PRIMARY KEY, field TEXT, word TEXT, UNIQUE(field, word));
CREATE TABLE groups(
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, "offset" INTEGER, excluded INTEGER, is_dirty INTEGER DEFAULT 1);
CREATE TABLE members(episode TEXT PRIMARY KEY, excluded INTEGER) WITHOUT ROWID;
CREATE TABLE episodes(
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, "group" INTEGER, partition INTEGER, "offset" INTEGER, at_ms INTEGER,
    {", ".join(f"{name} {'REAL' if name in _REAL else 'INTEGER'}" for name in (*WORDS, *NAMES, *NUMBERS))},
    own_excluded INTEGER, excluded INTEGER, step INTEGER);
CREATE TABLE spans(place INTEGER, begin INTEGER, "end" INTEGER, episode INTEGER,
    PRIMARY KEY(place, begin, "end", episode)) WITHOUT ROWID;
CREATE TABLE keys(key TEXT, episode INTEGER, PRIMARY KEY(key, episode)) WITHOUT ROWID;
CREATE TABLE steps(
    step INTEGER, epoch INTEGER, version INTEGER, is_updated INTEGER, skipped TEXT, begin INTEGER, "next" INTEGER,
    at_ms INTEGER, reward REAL, unpublished INTEGER, stands INTEGER DEFAULT 0, PRIMARY KEY(step, epoch)) WITHOUT ROWID;
CREATE TABLE step_groups("group" INTEGER, step INTEGER, epoch INTEGER, excluded INTEGER,
    PRIMARY KEY(step, epoch, "group")) WITHOUT ROWID;
CREATE TABLE advantages("group" INTEGER, step INTEGER, epoch INTEGER, "offset" INTEGER,
    PRIMARY KEY("group", step, epoch)) WITHOUT ROWID;
CREATE TABLE versions(
    version INTEGER PRIMARY KEY, run TEXT, epoch INTEGER, base_version INTEGER, step INTEGER, "next" INTEGER,
    kind TEXT, uri TEXT, at_ms INTEGER);
CREATE INDEX steps_of_groups ON step_groups("group");
CREATE INDEX dirty_groups ON groups(n) WHERE is_dirty;
CREATE INDEX groups_by_offset ON groups("offset") WHERE "offset" IS NOT NULL;
"""
"""`groups.offset`: on `transitions`; `advantages.offset`: on the topic of that name. `stands`: the step is of the
surviving lineage."""


def open_index(path: Path) -> sqlite3.Connection:
    """A connection to the file, which is made where there is none that can be used."""
    for is_last in (False, True):
        try:
            connection = _connect(path)
            try:
                _prepare(connection)
            except BaseException:
                connection.close()
                raise
            return connection
        except sqlite3.OperationalError as error:
            raise ConfigurationError(f"expected to open or make {path}, got {error}") from error
        except sqlite3.DatabaseError as error:
            if is_last:
                raise ConfigurationError(f"expected an index at {path}, got {error}; remove the file") from error
            remove(path)
    raise AssertionError("unreachable")


def remove(path: Path) -> None:
    """The file, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def is_damage(error: sqlite3.Error) -> bool:
    """Whether it says that the file holds what SQLite never wrote."""
    return error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    _keep_a_wal(connection)
    # A power cut may take the last transactions, never the file's order; what is missing is read again.
    connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _keep_a_wal(connection: sqlite3.Connection) -> None:
    """SQLite waits for nobody here: who opens the file as another makes it is told that it is locked, at once."""
    until = time.monotonic() + _BUSY_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > until:
                raise
            time.sleep(_LOOK_EVERY_S)


def _prepare(connection: sqlite3.Connection) -> None:
    if not is_current(connection):
        with transaction(connection):
            if not is_current(connection):  # another has made it meanwhile
                _make(connection)


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the tables are of this release's form."""
    (form,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(form == _FORM)


def empty(connection: sqlite3.Connection) -> None:
    """Makes all tables anew, without a row."""
    with transaction(connection):
        _make(connection)


def _make(connection: sqlite3.Connection) -> None:
    for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
        connection.execute(f'DROP TABLE "{name}"')
    for statement in _TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {_FORM}")


def read_mark(connection: sqlite3.Connection) -> str | None:
    """What `write_mark` left, in a file that no builder changed since."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'mark'").fetchone()
    return row[0] if row is not None else None


def write_mark(connection: sqlite3.Connection, mark: str) -> None:
    """By what a caller knows again that nothing came since."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES('mark', ?)", (mark,))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing; no other process writes meanwhile."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        raise UnavailableError(f"expected to write the index, got {error}; another process is at it") from error
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
