"""What no record of an episode alone tells: the step that trained it, or why it trained nothing; how often it was rated
behind its close.

In: an index whose tables were filled. Out: `episodes.step`, `.excluded`, `.rated` of the groups that are `is_dirty`.
Invariant: all are a function of the other tables, whatever the order in which these were filled; a settling that was
broken off goes on. The cause that is told: of an attempt that a later one followed, or whose group credit has not
written, its own; else credit's for the member, credit's for the group, the trainer's for the group.
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

from tracegrad.schemas.records.training import surviving_steps

from .file import transaction
from .schema import INDEX_BY_GROUP, INDEXES

_GROUPS = 2_000
"""Groups of a transaction."""
_SETTLE = """
UPDATE episodes SET
    excluded = CASE WHEN f.is_out THEN f.reason ELSE own_excluded END,
    step = CASE WHEN f.is_out AND f.reason IS NULL THEN f.step END,
    rated = f.rated
FROM (
    SELECT e.n AS n, s.step AS step, g."offset" IS NOT NULL AND e.final AS is_out,
        COALESCE(m.excluded, g.excluded, s.excluded) AS reason, g.rated AS rated
    FROM groups g JOIN episodes e ON e."group" = g.n
    LEFT JOIN members m ON m.episode = e.id
    LEFT JOIN (
        SELECT sg."group" AS "group", MIN(sg.step) AS step, sg.excluded AS excluded
        FROM step_groups sg JOIN steps USING(step, epoch)
        WHERE stands AND sg."group" BETWEEN :begin AND :end GROUP BY sg."group"
    ) s ON s."group" = g.n
    WHERE g.is_dirty AND g.n BETWEEN :begin AND :end
) f WHERE f.n = episodes.n
"""


class _Step(NamedTuple):
    step: int
    epoch: int


def settle(connection: sqlite3.Connection) -> None:
    """Brings them up to date; makes the indexes where they are not yet."""
    connection.execute(INDEX_BY_GROUP)
    with transaction(connection):
        _mark_standing(connection)
    while True:
        with transaction(connection):
            found = connection.execute(
                "SELECT MIN(n), MAX(n) FROM (SELECT n FROM groups WHERE is_dirty ORDER BY n LIMIT ?)", (_GROUPS,)
            ).fetchone()
            if found[0] is None:
                break
            bounds = {"begin": found[0], "end": found[1]}
            connection.execute(_SETTLE, bounds)
            connection.execute("UPDATE groups SET is_dirty = 0 WHERE is_dirty AND n BETWEEN :begin AND :end", bounds)
    for statement in INDEXES:
        connection.execute(statement)


def _mark_standing(connection: sqlite3.Connection) -> None:
    """A later epoch voids steps that were read long ago."""
    rows = connection.execute("SELECT step, epoch, stands FROM steps").fetchall()
    standing = set(surviving_steps(_Step(step, epoch) for step, epoch, _ in rows))
    for step, epoch, stood in rows:
        if ((step, epoch) in standing) != bool(stood):
            connection.execute("UPDATE steps SET stands = ? WHERE step = ? AND epoch = ?", (not stood, step, epoch))
            groups = 'SELECT "group" FROM step_groups WHERE step = ? AND epoch = ?'
            connection.execute(f"UPDATE groups SET is_dirty = 1 WHERE n IN ({groups})", (step, epoch))
