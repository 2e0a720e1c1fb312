"""The index's tables, and the mark that it is complete.

Texts that repeat are numbers of `words`, so that a glob is tried on each word once and not on each episode. Invariant:
what is in the file was made of exactly the records below `positions`; both change in one transaction, so a builder that
is killed goes on where it stood.
"""

from __future__ import annotations

import sqlite3

from ..episode_facts import NAMES, NUMBERS, WORDS

NUMBER = 6
"""Of the tables and of what is read into them: another number, and each file is made anew."""
_REAL = ("reward", "paid", "duration_s")
TABLES = f"""
CREATE TABLE meta(name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE positions(topic TEXT, partition INTEGER, next INTEGER, PRIMARY KEY(topic, partition)) WITHOUT ROWID;
CREATE TABLE topics(topic TEXT PRIMARY KEY, id TEXT) WITHOUT ROWID;
CREATE TABLE unread(topic TEXT, reason TEXT, num INTEGER, PRIMARY KEY(topic, reason)) WITHOUT ROWID;
CREATE TABLE words(n INTEGER PRIMARY KEY, field TEXT, word TEXT, UNIQUE(field, word));
CREATE TABLE groups(
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, "offset" INTEGER, excluded INTEGER, rated INTEGER,
    is_dirty INTEGER DEFAULT 1);
CREATE TABLE members(episode TEXT PRIMARY KEY, excluded INTEGER) WITHOUT ROWID;
CREATE TABLE episodes(
    n INTEGER PRIMARY KEY, id TEXT UNIQUE, "group" INTEGER, partition INTEGER, "offset" INTEGER, at_ms INTEGER,
    {", ".join(f"{name} {'REAL' if name in _REAL else 'INTEGER'}" for name in (*WORDS, *NAMES, *NUMBERS))},
    own_excluded INTEGER, rated INTEGER, excluded INTEGER, step INTEGER);
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

INDEXED = (
    "step", "excluded", "reward", "task", "state", "agent", "agents", "tool", "tools_failed", "version", "purpose",
)  # fmt: skip
"""Facts by which most questions find episodes. Of another one each episode is looked at, 50,000 in some 20 ms."""
INDEX_BY_GROUP = 'CREATE INDEX IF NOT EXISTS episodes_by_group ON episodes("group")'
"""The one that settling needs."""
INDEXES = (
    "CREATE INDEX IF NOT EXISTS episodes_by_at ON episodes(at_ms)",
    *(f"CREATE INDEX IF NOT EXISTS episodes_by_{name} ON episodes({name}, at_ms)" for name in INDEXED),
)
"""Made when all has been read once: to fill them row by row takes longer than all else."""


def read_mark(connection: sqlite3.Connection) -> str | None:
    """What `write_mark` left, in a file that no builder changed since."""
    row = connection.execute("SELECT value FROM meta WHERE name = 'mark'").fetchone()
    return row[0] if row is not None else None


def write_mark(connection: sqlite3.Connection, mark: str) -> None:
    """By what a caller knows again that nothing came since."""
    connection.execute("INSERT OR REPLACE INTO meta VALUES('mark', ?)", (mark,))
