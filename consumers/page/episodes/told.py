"""What the index tells of the held-out tasks, and of one of them: of "what was learned" all but two records.

In: the run's index, perhaps a task. Out: `Told`, a record that may be kept. Invariant: of a task the first and the last
attempt in time, whatever they came to, and of several samples of a pass the first that closed. Which task, is picked:
one that was lost and is won, of which most can be seen, unless one is asked for. Failure: RequestError for a task that
was never held out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import Purpose

from .source import facts_of

__all__ = ["End", "Kept", "Side", "TaskSeen", "Told", "Tried", "tasks_of", "tell"]

_MAX_ATTEMPTS = 200_000
_MAX_TASKS = 500


class Tried(NamedTuple):
    """An attempt at a held-out task, as the index knows it."""

    task: str
    episode: str
    at_ms: int
    version: int | None
    reward: float | None
    calls: int
    tools: int


class TaskSeen(NamedTuple):
    """A held-out task: what became of it, from its first attempt to its last."""

    task: str
    first: Tried
    last: Tried
    num: int
    num_better: int
    """Attempts between that were worth more than the first."""

    @property
    def gain(self) -> float:
        """Of the last over the first, 0 where one has no reward."""
        return 0.0 if self.first.reward is None or self.last.reward is None else self.last.reward - self.first.reward


class Side(NamedTuple):
    """All held-out tasks, at their first or last attempt."""

    num: int
    num_won: int
    """Worth as much as the best reward of all, or more than 0 where that is all that is known."""
    reward: float | None
    calls: float
    tools: float


class End(msgspec.Struct, frozen=True):
    """One of the two attempts that are shown, by the facts of the index."""

    episode: str
    partition: int
    offset: int
    at_ms: int
    version: int | None
    reward: float | None
    state: str
    calls: int
    tokens: int
    tools: int
    tools_failed: int
    tool: list[str]


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """Of one task among all."""

    task: TaskSeen
    tries: list[Tried]
    """All attempts at it, in time."""
    first: End
    last: End | None
    """None: it was attempted once."""
    versions: list[tuple[int, int, float]]
    """(version, step, mean reward) of those between the two."""
    before: Side
    after: Side
    others: list[TaskSeen]
    """Tasks to choose, the one that shows most first."""
    num_others: int

    @property
    def places(self) -> list[dict[str, Any]]:
        """Where their records lie."""
        return [{"partition": one.partition, "offset": one.offset} for one in self.ends]

    @property
    def ends(self) -> list[End]:
        """One or two."""
        return [self.first, *([self.last] if self.last is not None else [])]


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The same with what was said, as a page leaves it for the next one."""

    mark: str
    """Of the episodes' topic; another one: something came since."""
    told: Told | None
    """None: no task was held out."""
    records: list[bytes] = []
    """Of the two attempts, as they lie on `episodes`."""

    def __repr__(self) -> str:
        return f"Kept({self.mark}, {len(self.records)} records)"


def tasks_of(connection: sqlite3.Connection) -> list[TaskSeen]:
    """The held-out tasks, the one that shows most first: the greatest gain, most wins between, most that is done."""
    rows = connection.execute(
        "SELECT (SELECT word FROM words WHERE n = e.task), e.id, e.at_ms, e.version, e.reward, e.calls, e.tools "
        "FROM episodes e WHERE e.purpose = (SELECT n FROM words WHERE field = 'purpose' AND word = ?) "
        "AND e.final AND e.task IS NOT NULL ORDER BY e.task, e.at_ms, e.n LIMIT ?",
        (Purpose.VALIDATION.value, _MAX_ATTEMPTS),
    )
    found = [_seen(list(tries)) for _, tries in groupby((Tried(*row) for row in rows), attrgetter("task"))]
    return sorted(found, key=_shows, reverse=True)


def _seen(tries: Sequence[Tried]) -> TaskSeen:
    first, last = tries[0], tries[-1]
    better = sum(one.reward is not None and one.reward > (first.reward or 0.0) for one in tries[1:-1])
    return TaskSeen(first.task, first, last, len(tries), better)


def _shows(task: TaskSeen) -> tuple[float, int, int, str]:
    return task.gain, task.num_better, task.last.calls + task.last.tools, task.task


def tell(connection: sqlite3.Connection, task: str | None = None) -> Told | None:
    """What the index tells; None: no task was held out yet, or none has ended."""
    tasks = tasks_of(connection)
    if not tasks:
        return None
    chosen = next((one for one in tasks if one.task == task), None) if task is not None else tasks[0]
    if chosen is None:
        raise RequestError(
            f"no task {task!r} was held out in this run; Learned, without ?task=, offers those that were", status=404
        )
    tries = _tries(connection, chosen.task)
    return Told(
        task=chosen,
        tries=tries,
        first=_end(facts_of(connection, chosen.first.episode)),
        last=_end(facts_of(connection, chosen.last.episode)) if chosen.num > 1 else None,
        versions=_between(connection, tries),
        before=_side([one.first for one in tasks], tasks),
        after=_side([one.last for one in tasks], tasks),
        others=tasks[:_MAX_TASKS],
        num_others=len(tasks),
    )


def _end(facts: Mapping[str, Any]) -> End:
    return msgspec.convert(facts, End, strict=False)


def _tries(connection: sqlite3.Connection, task: str) -> list[Tried]:
    rows = connection.execute(
        "SELECT e.id, e.at_ms, e.version, e.reward, e.calls, e.tools FROM episodes e "
        "WHERE e.task = (SELECT n FROM words WHERE field = 'task' AND word = ?) "
        "AND e.purpose = (SELECT n FROM words WHERE field = 'purpose' AND word = ?) AND e.final "
        "ORDER BY e.at_ms, e.n",
        (task, Purpose.VALIDATION.value),
    )
    return [Tried(task, *row) for row in rows]


def _side(tries: Sequence[Tried], tasks: Sequence[TaskSeen]) -> Side:
    """A task is won by the best reward that any got."""
    known = [one.reward for one in tries if one.reward is not None]
    best = max((reward for task in tasks for reward in (task.first.reward, task.last.reward) if reward), default=0.0)
    return Side(
        num=len(tries),
        num_won=sum(reward >= best > 0 for reward in known),
        reward=sum(known) / len(known) if known else None,
        calls=sum(one.calls for one in tries) / len(tries),
        tools=sum(one.tools for one in tries) / len(tries),
    )


def _between(connection: sqlite3.Connection, tries: Sequence[Tried]) -> list[tuple[int, int, float]]:
    """By version, behind the first attempt's up to the last one's."""
    numbers = [one.version for one in tries if one.version is not None]
    if not numbers:
        return []
    return connection.execute(
        "SELECT v.version, s.step, s.reward FROM versions v JOIN steps s ON s.step = v.step AND s.version = v.version "
        "WHERE s.stands AND s.reward IS NOT NULL AND v.version > ? AND v.version <= ? ORDER BY v.version",
        (min(numbers), max(numbers)),
    ).fetchall()
