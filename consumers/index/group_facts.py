"""Groups by what is known of their episodes, the newest first, page by page.

In: an index, a question, where the page before ended. Out: one `GroupFacts` a group of which some episode fits.
Invariant: a group stands where its newest episode does, so that of a run that goes on no group is told twice, or passed
over, from page to page. Failure: none.
"""

from __future__ import annotations

import json
import sqlite3
from typing import NamedTuple

from .file import rows_of
from .query import Question, condition_of


class GroupFacts(NamedTuple):
    """What is known of a group; numbers are over its episodes by which rollouts count."""

    group: str
    at_ms: int
    """Of its newest episode; it and `place` are where the next page begins."""
    place: int
    task: str | None
    purpose: str | None
    agents: tuple[str, ...]
    num: int
    num_superseded: int
    best: float | None
    mean: float | None
    least: float | None
    paid: float
    """By rules, mean of an episode."""
    tools: int
    tools_failed: int
    first_version: int | None
    version: int | None
    step: int | None
    """That trained it, or a part of it."""
    excluded: tuple[str, ...]
    """Why it, or some of its episodes, trained nothing; none: it trained, waits, or is held out."""
    is_captured: bool
    rated: int
    """Pieces of feedback behind its close."""


_OF_GROUP = """
SELECT COUNT(*) - SUM(NOT final) AS num, SUM(NOT final) AS num_superseded,
    MAX(CASE WHEN final THEN reward END) AS best, AVG(CASE WHEN final THEN reward END) AS mean,
    MIN(CASE WHEN final THEN reward END) AS least, COALESCE(AVG(CASE WHEN final THEN paid END), 0.0) AS paid,
    SUM(tools) AS tools, SUM(tools_failed) AS tools_failed, MIN(first_version) AS first_version,
    MAX(version) AS version, MAX(step) AS step, MAX(captured) AS is_captured, COALESCE(MAX(rated), 0) AS rated
FROM episodes e WHERE e."group" = ?
"""
_WORDS = 'SELECT DISTINCT word FROM episodes e JOIN words w ON w.n = e.{} WHERE e."group" = ? ORDER BY word'
_NEWEST = 'NOT EXISTS(SELECT 1 FROM episodes x WHERE x."group" = o."group" AND (x.at_ms, x.n) > (o.at_ms, o.n))'


def groups_where(
    connection: sqlite3.Connection,
    question: Question,
    *,
    before: tuple[int, int] | None = None,
    limit: int = 50,
) -> list[GroupFacts]:
    """As many as `limit`; `before` is (at_ms, place) of the last one of the page before."""
    condition, values, is_rare = condition_of(connection, question)
    # Of what is rare the groups are gathered first; of what is common few are looked at until the page is full.
    fits = (
        f'o."group" IN (SELECT e."group" FROM episodes e WHERE {condition})'
        if is_rare
        else f'EXISTS(SELECT 1 FROM episodes e WHERE e."group" = o."group" AND {condition})'
    )
    rows = connection.execute(
        f'SELECT o."group", o.at_ms, o.n FROM episodes o WHERE (o.at_ms, o.n) < (?, ?) AND {_NEWEST} AND {fits} '
        "ORDER BY o.at_ms DESC, o.n DESC LIMIT ?",
        (*(before or (2**62, 2**62)), *values, limit),
    ).fetchall()
    return [_facts(connection, *row) for row in rows]


def _facts(connection: sqlite3.Connection, group: int, at_ms: int, place: int) -> GroupFacts:
    (id_,) = connection.execute("SELECT id FROM groups WHERE n = ?", (group,)).fetchone()

    def words(field: str) -> list[str]:
        return [word for (word,) in connection.execute(_WORDS.format(field), (group,))]

    return GroupFacts(
        group=id_,
        at_ms=at_ms,
        place=place,
        task=next(iter(words("task")), None),
        purpose=next(iter(words("purpose")), None),
        agents=tuple(sorted({name for word in words("agents") for name in json.loads(word)})),
        excluded=tuple(word for word in words("excluded") if word != "superseded"),
        **next(rows_of(connection.execute(_OF_GROUP, (group,)))),
    )
