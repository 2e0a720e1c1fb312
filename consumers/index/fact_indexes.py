"""SQLite's indexes of the facts of episodes: those that there are from the first, and those that a question leads to.

In: a connection, names of facts. Out: the facts of which there is an index. Invariant: an index changes how long a
question takes, never its answer; so one that cannot be made now, since another process writes, is left for the next
question. Failure: none beyond SQLite's own.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

_FIRST = (
    "step", "excluded", "reward", "task", "state", "agent", "agents", "tool", "tools_failed", "version",
    "purpose",
)  # fmt: skip
_PREFIX = "episodes_by_"
_MANY = 50_000
"""So many episodes are looked at in some 20 ms, each. Of more, an index is made in about the time of one such look."""


def make_by_group(connection: sqlite3.Connection) -> None:
    """The one that settling needs."""
    connection.execute(f'CREATE INDEX IF NOT EXISTS {_PREFIX}group ON episodes("group")')


def make_first(connection: sqlite3.Connection) -> None:
    """Those that most questions need. Made when all has been read once: to fill them row by row takes longer than all
    else."""
    connection.execute(f"CREATE INDEX IF NOT EXISTS {_PREFIX}at ON episodes(at_ms)")
    for name in _FIRST:
        _make(connection, name)


def make_for(connection: sqlite3.Connection, names: Iterable[str]) -> None:
    """What a question asks for that has no index yet gets one, where there is much to look at."""
    (num,) = connection.execute("SELECT MAX(n) FROM episodes").fetchone()
    lacking = set(names) - indexed(connection) if (num or 0) >= _MANY else set()
    if not lacking:
        return
    (patience_ms,) = connection.execute("PRAGMA busy_timeout").fetchone()
    connection.execute("PRAGMA busy_timeout = 0")
    try:
        for name in sorted(lacking):
            _make(connection, name)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            raise
    finally:
        connection.execute(f"PRAGMA busy_timeout = {patience_ms}")


def indexed(connection: sqlite3.Connection) -> set[str]:
    """The facts of which there is one."""
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'index' AND tbl_name = 'episodes'")
    return {"episode", *(name.removeprefix(_PREFIX) for (name,) in rows if name.startswith(_PREFIX))}


def _make(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(f"CREATE INDEX IF NOT EXISTS {_PREFIX}{name} ON episodes({name}, at_ms)")
