"""Brings an index up to date with its run's topics.

    episodes, transitions, training_steps, weights, advantages --> tables          positions: how far each was read

In: the log, the run's topics, an index. Out: the index, as of all that lay on the log when it began. Invariants: the
result does not depend on the order of the topics, on how often it was broken off, or on who else builds at the same
time; records and positions are one transaction, so memory is bounded. A topic that was made anew, or that
lost records which were not read yet, makes the index begin from nothing. Failure: a record that cannot be read is
counted with its reason; a log that is away is waited for, then UnavailableError.
"""

from __future__ import annotations

import itertools
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from typing import NamedTuple

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.log.follow import PATIENCE_S, Chunk, follow
from tracegrad.schemas.log.protocol import Log, Record, TopicPartition
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.topics import Topic, Topics

from .file import empty, is_current, transaction
from .fill import TableWriter
from .settle import settle

INDEXED = (Topic.EPISODES, Topic.TRANSITIONS, Topic.TRAINING_STEPS, Topic.WEIGHTS, Topic.ADVANTAGES)
_YOUNG = Topic.ADVANTAGES
"""A run of an earlier release, which has ended, lacks it."""
_LACKED = "lacked"
_CHUNK = 2_000
"""Records of a read."""
_RECORDS, _HOLD_S = 50_000, 2.0
"""Of a transaction at most, and for how long others may have to wait for it. Ids lie anywhere in their index: with few
records in each, nearly every page of it is written once a record."""


class IndexProgress(NamedTuple):
    """How far it is."""

    num_read: int
    num_records: int
    """Of the topics, as far as their ends are known."""


def catch_up(
    log: Log,
    topics: Topics,
    policy: str,
    connection: sqlite3.Connection,
    *,
    tell: Callable[[IndexProgress], None] = lambda progress: None,
    patience_s: float = PATIENCE_S,
) -> None:
    """Reads what came since. Blocks. Raises UnavailableError.

    Args:
        policy: the run's; an episode that never called it trains nothing.
        tell: is told of progress, after each transaction.
        patience_s: how long a log that is away is waited for.
    """
    lacks = _lacks(log, topics.name(_YOUNG), topics.name(Topic.TRAINING_STEPS), connection)
    names = {topics.name(topic): topic for topic in INDEXED if not (lacks and topic is _YOUNG)}
    if not _is_continued(log, names, connection):
        empty(connection)
    while not _read(log, names, policy, connection, tell, patience_s):
        pass  # another process builds too: on from where it stands
    settle(connection)


def _lacks(log: Log, name: str, steps: str, connection: sqlite3.Connection) -> bool:
    """Whether there is no such topic. A cluster that knows none is asked again and again, which takes long: not where
    no step came since it was asked."""
    stood = sum(kept.end for kept in log.offsets(steps).values())
    row = connection.execute("SELECT value FROM meta WHERE name = ?", (_LACKED,)).fetchone()
    if row is not None and row[0] == stood:
        return True
    try:
        return not log.offsets(name)
    except ConfigurationError:
        connection.execute("INSERT OR REPLACE INTO meta VALUES(?, ?)", (_LACKED, stood))
        return True


def _is_continued(log: Log, names: Iterable[str], connection: sqlite3.Connection) -> bool:
    """Whether the topics are those that were read, and hold what was not."""
    known = dict(connection.execute("SELECT topic, id FROM topics").fetchall())
    positions = _positions(connection)
    for name in names:
        if known.get(name, "") not in ("", log.topic_id(name)):
            return False
        for partition, kept in log.offsets(name).items():
            at = positions.get(TopicPartition(name, partition))
            if at is not None and not kept.begin <= at <= kept.end:
                return False
    # Others of the log that they were read from.
    return all(where.topic in set(names) for where in positions)


def _positions(connection: sqlite3.Connection) -> dict[TopicPartition, int]:
    rows = connection.execute("SELECT topic, partition, next FROM positions")
    return {TopicPartition(topic, partition): at for topic, partition, at in rows}


def _read(
    log: Log,
    names: Mapping[str, Topic],
    policy: str,
    connection: sqlite3.Connection,
    tell: Callable[[IndexProgress], None],
    patience_s: float,
) -> bool:
    """Reads to the end; False where another process moved the index meanwhile."""
    fill = TableWriter(connection, policy)
    stood = _positions(connection)
    ids = [(name, log.topic_id(name)) for name in names]
    chunks = follow(
        log, list(names), starts=stood, may_skip=True, poll_s=0.2, max_records=_CHUNK, patience_s=patience_s
    )
    with closing(chunks):
        for first in chunks:
            if not (first.records or first.is_caught_up):
                continue
            with transaction(connection):
                if not is_current(connection) or _positions(connection) != stood:
                    return False
                for chunk in _some(first, chunks):
                    _take(fill, chunk.records, names, connection)
                fill.end()
                stood = dict(chunk.positions)
                rows = [(*where, at) for where, at in stood.items()]
                connection.executemany("INSERT OR REPLACE INTO positions VALUES(?, ?, ?)", rows)
                connection.executemany("INSERT OR REPLACE INTO topics VALUES(?, ?)", ids)
            tell(IndexProgress(sum(stood.values()), sum(chunk.ends.values())))
            if chunk.is_caught_up:
                return True
    return True


def _some(first: Chunk, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """The chunks of a transaction."""
    num, began = 0, time.monotonic()
    for chunk in itertools.chain([first], chunks):
        yield chunk
        num += len(chunk.records)
        if chunk.is_caught_up or num >= _RECORDS or time.monotonic() - began > _HOLD_S:
            return


def _take(
    fill: TableWriter, records: Sequence[Record], names: Mapping[str, Topic], connection: sqlite3.Connection
) -> None:
    for record in records:
        try:
            fill.folds[names[record.topic]](record)
        except (RecordError, OverflowError) as error:  # OverflowError: a number that no column holds
            connection.execute(
                "INSERT INTO unread VALUES(?, ?, 1) ON CONFLICT(topic, reason) DO UPDATE SET num = num + 1",
                (names[record.topic], getattr(error, "reason", Reason.TOO_LARGE)),
            )
