"""The index's file: opened, made where there is none, thrown away where it is of another release or damaged.

In: a path. Out: a connection. All that the file holds lies on topics. Invariants: it is its owner's alone; who opens it
at once with another gets the same tables; a transaction is all of its block, or nothing. Failure: ConfigurationError
where the file cannot be made; UnavailableError where damage is come upon: the file is removed then.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from tracegrad.schemas.errors import ConfigurationError, UnavailableError

from .schema import NUMBER, TABLES

_BUSY_S = 30.0
"""How long a transaction of another process is waited for; they are short."""
_LOOK_EVERY_S = 0.02
_CACHE_KIB = 64 * 1024


@contextmanager
def open_index(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection. Behind the first page damage shows itself to the question that comes upon it, perhaps amid an
    answer."""
    try:
        with closing(connect(path)) as connection:
            yield connection
    except sqlite3.DatabaseError as error:
        if not _is_damage(error):
            raise
        remove(path)
        raise UnavailableError(
            f"{path} was damaged ({error}) and is removed; ask again, which makes it anew"
        ) from error


def connect(path: Path) -> sqlite3.Connection:
    """The same, for the caller to close."""
    for is_last in (False, True):
        try:
            connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
            try:
                _prepare(connection, path)
            except BaseException:  # Ctrl-C too: an open connection would hold the file
                connection.close()
                raise
            return connection
        except (sqlite3.OperationalError, OSError) as error:
            raise ConfigurationError(f"expected to open or make {path}, got {error}") from error
        except sqlite3.DatabaseError as error:
            if is_last:
                raise ConfigurationError(f"expected a file of SQLite at {path}, got {error}; remove it") from error
            remove(path)
    raise AssertionError("unreachable")


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    path.chmod(0o600)  # before there is a word in it
    connection.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
    _keep_a_wal(connection)
    # A power cut may take the last transactions, never the file's order; what is missing is read again.
    connection.execute("PRAGMA synchronous = NORMAL")
    if not is_current(connection):
        with transaction(connection):
            if not is_current(connection):  # another has made it meanwhile
                _make(connection)


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


def is_current(connection: sqlite3.Connection) -> bool:
    """Whether the tables are those of this release."""
    (number,) = connection.execute("PRAGMA user_version").fetchone()
    return bool(number == NUMBER)


def empty(connection: sqlite3.Connection) -> None:
    """Makes all tables anew, without a row."""
    with transaction(connection):
        _make(connection)


def _make(connection: sqlite3.Connection) -> None:
    named = "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'"
    for (name,) in connection.execute(named).fetchall():
        connection.execute(f'DROP TABLE "{name}"')
    for statement in TABLES.split(";"):
        connection.execute(statement)
    connection.execute(f"PRAGMA user_version = {NUMBER}")


def remove(path: Path) -> None:
    """The file, and what SQLite keeps beside it."""
    for suffix in ("", "-wal", "-shm"):
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).unlink()


def _is_damage(error: sqlite3.Error) -> bool:
    """Whether it says that the file holds what SQLite never wrote. What Python says itself has no code."""
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


def rows_of(cursor: sqlite3.Cursor) -> Iterator[dict[str, Any]]:
    """What a question found, each row by the names of its columns."""
    names = [name for name, *_ in cursor.description]
    return (dict(zip(names, row, strict=True)) for row in cursor)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of the block, or nothing; no other process writes meanwhile."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        _, _, path = connection.execute("PRAGMA database_list").fetchone()
        raise UnavailableError(f"expected to write {path}, got {error}; another process is at it") from error
    try:
        yield
    except BaseException:
        if connection.in_transaction:  # of some errors SQLite ends it by itself
            connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
