"""An index of a run in memory, and all that it knows, in a form that does not depend on how it was made."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from tests.memory_log import MemoryLog
from tests.streams.make import TOPICS
from tracegrad.consumers.index.build import catch_up
from tracegrad.consumers.index.file import connect
from tracegrad.consumers.index.query import Question, find, unread


class Busy(sqlite3.Connection):
    """Of two that change a new file's journal at once the one that is told, at once, that it is locked."""

    num_left = 2

    def execute(self, sql: str, *values: Any) -> sqlite3.Cursor:
        """As Connection.execute."""
        if "journal_mode" in sql and self.num_left:
            self.num_left -= 1
            error = sqlite3.OperationalError("database is locked")
            error.sqlite_errorcode = sqlite3.SQLITE_BUSY
            raise error
        return super().execute(sql, *values)


def index_of(log: MemoryLog, path: Path) -> sqlite3.Connection:
    """Brought up to date; the folder is made where there is none."""
    path.mkdir(exist_ok=True)
    connection = connect(path / "index.sqlite")
    catch_up(log, TOPICS, "policy", connection, patience_s=1.0)
    return connection


def known(connection: sqlite3.Connection) -> dict[str, Any]:
    """Without numbers of rows, which tell in which order things came."""
    tables = {
        "groups": 'SELECT id, "offset", (SELECT word FROM words w WHERE w.n = excluded), is_dirty FROM groups '
        'WHERE "offset" IS NOT NULL OR EXISTS(SELECT 1 FROM episodes e WHERE e."group" = groups.n)',
        "members": "SELECT episode, (SELECT word FROM words w WHERE w.n = excluded) FROM members",
        "keys": "SELECT key, id FROM keys JOIN episodes ON n = episode",
        "steps": "SELECT * FROM steps",
        "step_groups": "SELECT id, step, epoch, (SELECT word FROM words w WHERE w.n = s.excluded) FROM step_groups s "
        'JOIN groups g ON g.n = s."group"',
        "versions": "SELECT * FROM versions",
    }
    return {
        "episodes": list(find(connection, Question(order_by="episode"))),
        "unread": unread(connection),
        **{name: sorted(connection.execute(query).fetchall(), key=repr) for name, query in tables.items()},
    }


def damage(path: Path, table: str) -> None:
    """Of a table's rows; that it is there can be read."""
    with closing(sqlite3.connect(path)) as connection:
        (size,) = connection.execute("PRAGMA page_size").fetchone()
        (page,) = connection.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    with path.open("r+b") as file:
        file.seek((page - 1) * size)
        file.write(b"\xa5" * size)
