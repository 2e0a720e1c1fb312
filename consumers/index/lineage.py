"""What came of what, by the index alone: version <- step <- groups <- episodes, and the same forward.

In: an index, what an id was taken for. Out: a Lineage: the records of the chain that it hangs on. Which calls and raw
records an episode was made of stands on the log (origins.py). Invariant: a version's content is that of its step, or
of the version that it was rolled back to; only steps of the surviving lineage count. Failure: none; what is not there
is left out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

import msgspec

from tracegrad.schemas.records.versions import Version

from .file import rows_of
from .subject import Kind


class VersionLink(msgspec.Struct, frozen=True, kw_only=True):
    """A version. Example: VersionLink(version=18, label="7c1f3e9a-v18-e4", made_by="step", base_version=17, ...)."""

    version: int
    label: str
    made_by: str
    """`step` (by all steps since those of base_version, up to this one); `rollback` (it has the content of
    base_version); `start`, of the model that the run began with."""
    base_version: int
    step: int
    at_ms: int
    uri: str


class StepLink(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the surviving lineage; its batch is [begin, next) of the policy's partition of `transitions`."""

    step: int
    epoch: int
    version: int | None
    """That it led to; None: it led to none, or its update waits for a later one (`[publish] every`)."""
    begin: int
    next: int
    at_ms: int
    reward: float | None
    num_trained: int
    excluded: dict[str, str]
    """Group -> why the trainer left it out."""


class GroupLink(msgspec.Struct, frozen=True, kw_only=True):
    """A group; `offset`: on `transitions`, None where credit has not written it."""

    group: str
    offset: int | None
    step: int | None
    excluded: str | None
    """By credit or by the trainer, the group as a whole."""
    rules: tuple[str, ...]
    """Digests of the AIR rules of its episodes."""
    feedback: dict[str, list[tuple[int, int]]] = {}
    """`topic/partition` -> offsets [begin, end) of what was said behind the close, as its record's header tells."""


class EpisodeLink(msgspec.Struct, frozen=True, kw_only=True):
    """An episode; its record lies at (`partition`, `offset`) of `episodes`."""

    episode: str
    group: str
    partition: int
    offset: int
    revision: int
    state: str
    reward: float | None
    step: int | None
    excluded: str | None
    purpose: str | None = None
    calls: tuple[str, ...] = ()
    """Of its record."""
    made_of: dict[str, list[tuple[int, int]]] = {}
    """`topic/partition` -> offsets [begin, end) of the raw records, as its record's header tells."""


class Lineage(msgspec.Struct, frozen=True, kw_only=True):
    """The chain, from either end."""

    asked: str
    kind: Kind
    """What that was taken for."""
    versions: tuple[VersionLink, ...] = ()
    """The version asked for, and the one whose content it has; or those that steps led to."""
    contained_in: tuple[tuple[int, int], ...] = ()
    """Versions, from and to, that were made from one of these."""
    steps: tuple[StepLink, ...] = ()
    groups: tuple[GroupLink, ...] = ()
    episodes: tuple[EpisodeLink, ...] = ()


def of_version(connection: sqlite3.Connection, version: int, asked: str) -> Lineage:
    """Back from a version, and to those that were made from it."""
    versions = _versions(connection, "version = ?", version)
    while versions[-1].made_by == "rollback":  # to an older one: numbers only grow
        before = _versions(connection, "version = ? AND version < ?", versions[-1].base_version, versions[-1].version)
        if not before:
            break
        versions += before
    numbers = _steps_of(connection, versions[-1])
    marks = ", ".join("?" * len(numbers))
    return Lineage(
        asked=asked,
        kind=Kind.VERSION,
        versions=tuple(versions),
        contained_in=_made_from(connection, {version}),
        steps=_steps(connection, numbers),
        groups=_groups(connection, f"s.step IN ({marks})", *numbers),
        episodes=_episodes(connection, f"e.step IN ({marks})", *numbers),
    )


def of_group(connection: sqlite3.Connection, group: str, asked: str) -> Lineage:
    """A group's episodes, and on from it."""
    rows = connection.execute('SELECT e.id FROM episodes e JOIN groups g ON g.n = e."group" WHERE g.id = ?', (group,))
    return of_episodes(connection, [id_ for (id_,) in rows], asked, Kind.GROUP, [group])


def of_episodes(
    connection: sqlite3.Connection, ids: Iterable[str], asked: str, kind: Kind, groups: Iterable[str] = ()
) -> Lineage:
    """On from these."""
    episodes = tuple(one for id_ in sorted(ids) for one in _episodes(connection, "e.id = ?", id_))
    named = dict.fromkeys([*groups, *(one.group for one in episodes)])
    found = tuple(one for group in named for one in _groups(connection, "g.id = ?", group))
    steps = _steps(connection, sorted({one.step for one in found if one.step is not None}))
    # A group may train without one of its episodes.
    trained = {one.step for one in episodes}
    led_to = {one.version: one for step in steps if step.step in trained for one in _first_with(connection, step)}
    return Lineage(
        asked=asked,
        kind=kind,
        versions=tuple(led_to.values()),
        contained_in=_made_from(connection, set(led_to)),
        steps=steps,
        groups=found,
        episodes=episodes,
    )


def _steps_of(connection: sqlite3.Connection, version: VersionLink) -> list[int]:
    """The steps whose updates a version has and its base has not."""
    if version.made_by != "step":
        return []
    row = connection.execute("SELECT step FROM versions WHERE version = ?", (version.base_version,)).fetchone()
    first = row[0] + 1 if row is not None else version.step
    rows = connection.execute(
        "SELECT step FROM steps WHERE stands AND step BETWEEN ? AND ? ORDER BY step", (first, version.step)
    )
    return [step for (step,) in rows]


def _first_with(connection: sqlite3.Connection, step: StepLink) -> list[VersionLink]:
    """The first version that has the update of a step; none where a rollback came before."""
    later = _versions(connection, "version >= ? AND step >= ? ORDER BY version", step.version or 0, step.step)
    return [one for one in later if step.step in _steps_of(connection, one)][:1]


def _versions(connection: sqlite3.Connection, condition: str, *values: int) -> list[VersionLink]:
    rows = connection.execute(
        "SELECT version, run, epoch, base_version, step, at_ms, uri, "
        "EXISTS(SELECT 1 FROM steps s WHERE stands AND s.version = v.version AND s.step = v.step) "
        f"FROM versions v WHERE {condition}",
        values,
    )
    return [
        VersionLink(
            version=version,
            label=Version(run=run, version=version, epoch=epoch).label,
            made_by="step" if is_trained else "start" if version == 0 else "rollback",
            base_version=base,
            step=step,
            at_ms=at_ms,
            uri=uri,
        )
        for version, run, epoch, base, step, at_ms, uri, is_trained in rows
    ]


def _made_from(connection: sqlite3.Connection, versions: set[int]) -> tuple[tuple[int, int], ...]:
    """All versions that have these in their line, themselves too, as stretches."""
    found = set(versions)
    for version, base in connection.execute("SELECT version, base_version FROM versions ORDER BY version"):
        if base in found and version > base:
            found.add(version)
    stretches: list[tuple[int, int]] = []
    for version in sorted(found):
        if stretches and stretches[-1][1] == version - 1:
            stretches[-1] = (stretches[-1][0], version)
        else:
            stretches.append((version, version))
    return tuple(stretches)


def _steps(connection: sqlite3.Connection, numbers: Iterable[int]) -> tuple[StepLink, ...]:
    found = []
    for number in numbers:
        steps = connection.execute(
            "SELECT step, epoch, CASE WHEN is_updated AND NOT unpublished THEN version END AS version, "
            'begin, "next", at_ms, reward FROM steps WHERE stands AND step = ?',
            (number,),
        )
        for row in rows_of(steps):
            told = connection.execute(
                "SELECT g.id, (SELECT word FROM words WHERE n = s.excluded) FROM step_groups s "
                'JOIN groups g ON g.n = s."group" WHERE step = ? AND epoch = ? ORDER BY g."offset", g.id',
                (row["step"], row["epoch"]),
            ).fetchall()
            excluded = {group: reason for group, reason in told if reason is not None}
            found.append(StepLink(num_trained=len(told) - len(excluded), excluded=excluded, **row))
    return tuple(found)


def _groups(connection: sqlite3.Connection, condition: str, *values: str | int) -> tuple[GroupLink, ...]:
    rows = connection.execute(
        'SELECT g.id AS "group", g."offset" AS "offset", s.step AS step, '
        "(SELECT word FROM words WHERE n = COALESCE(g.excluded, s.excluded)) AS excluded FROM groups g "
        'LEFT JOIN (SELECT sg."group" AS "group", sg.step AS step, sg.excluded AS excluded FROM step_groups sg '
        'JOIN steps USING(step, epoch) WHERE stands) s ON s."group" = g.n '
        f'WHERE {condition} ORDER BY g."offset", g.id',
        values,
    )
    rules = (
        "SELECT DISTINCT word FROM episodes e JOIN words w ON w.n = e.rules "
        'WHERE "group" = (SELECT n FROM groups WHERE id = ?) ORDER BY word'
    )
    return tuple(
        GroupLink(rules=tuple(word for (word,) in connection.execute(rules, (row["group"],))), **row)
        for row in rows_of(rows)
    )


def _episodes(connection: sqlite3.Connection, condition: str, *values: str | int) -> tuple[EpisodeLink, ...]:
    rows = connection.execute(
        'SELECT e.id AS episode, g.id AS "group", e.partition AS partition, e."offset" AS "offset", '
        "e.revision AS revision, (SELECT word FROM words WHERE n = e.state) AS state, e.reward AS reward, "
        "e.step AS step, (SELECT word FROM words WHERE n = e.excluded) AS excluded, "
        "(SELECT word FROM words WHERE n = e.purpose) AS purpose FROM episodes e "
        f'JOIN groups g ON g.n = e."group" WHERE {condition} ORDER BY g."offset", e.id',
        values,
    )
    return tuple(EpisodeLink(**row) for row in rows_of(rows))
