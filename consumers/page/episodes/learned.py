"""The view people love: one held-out task, first and last transcript side by side, between them what learned it.

In: the run's index, perhaps a task; the two attempts' records. Out: the model of the view. Invariant: of a task the
first and the last attempt in time, whatever they came to, and of several samples of a pass the first that closed. Which
task, is picked: one that was lost and is won, of which most can be seen, unless one is asked for. Failure: RequestError
for a task that was never held out; a record that is gone is said to be.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import Purpose

from ..board import Board, ViewQuery
from ..view import View
from .records import EpisodeRecord, facts_of, read_episodes
from .transcript import CallTranscript, Pieces, call_transcripts

_MAX_ATTEMPTS = 200_000
_MAX_TASKS = 500


class HeldOutAttempt(NamedTuple):
    """An attempt at a held-out task, as the index knows it."""

    task: str
    episode: str
    at_ms: int
    version: int | None
    reward: float | None
    calls: int
    tools: int


class HeldOutTask(NamedTuple):
    """What became of a held-out task, from its first attempt to its last."""

    task: str
    tries: Sequence[HeldOutAttempt]
    """In time."""

    @property
    def first(self) -> HeldOutAttempt:
        """The first one."""
        return self.tries[0]

    @property
    def last(self) -> HeldOutAttempt:
        """The last one, which may be the first."""
        return self.tries[-1]

    @property
    def num_better(self) -> int:
        """Attempts between that were worth more than the first."""
        return sum(one.reward is not None and one.reward > (self.first.reward or 0.0) for one in self.tries[1:-1])

    @property
    def gain(self) -> float:
        """Of the last over the first, 0 where one has no reward."""
        return 0.0 if self.first.reward is None or self.last.reward is None else self.last.reward - self.first.reward


class Totals(NamedTuple):
    """All held-out tasks, at their first or last attempt."""

    num: int
    num_won: int
    """Worth as much as the best reward of all, or more than 0 where that is all that is known."""
    calls: float
    tools: float


class AttemptTranscript(NamedTuple):
    """One of the two attempts that are shown."""

    facts: Mapping[str, Any]
    """Of the index."""
    calls: list[CallTranscript]
    """Empty where its record is gone."""
    num_hidden: int


class LearnedTask(NamedTuple):
    """The view."""

    task: HeldOutTask
    first: AttemptTranscript
    last: AttemptTranscript | None
    """None: it was attempted once."""
    changes: list[str]
    """What the last does that the first did not, in words."""
    versions: list[tuple[int, int, float]]
    """(version, step, its mean reward in training) of those between the two."""
    before: Totals
    after: Totals
    others: list[HeldOutTask]
    """Tasks to choose, the one that shows most first."""
    num_others: int
    is_read: bool
    """Whether the log was asked for what is not there."""


def tasks_of(connection: sqlite3.Connection) -> list[HeldOutTask]:
    """The held-out tasks, the one that shows most first: the greatest gain, most wins between, most that is done."""
    rows = connection.execute(
        "SELECT (SELECT word FROM words WHERE n = e.task), e.id, e.at_ms, e.version, e.reward, e.calls, e.tools "
        "FROM episodes e WHERE e.purpose = (SELECT n FROM words WHERE field = 'purpose' AND word = ?) "
        "AND e.final AND e.task IS NOT NULL ORDER BY e.task, e.at_ms, e.n LIMIT ?",
        (Purpose.VALIDATION.value, _MAX_ATTEMPTS),
    )
    by_task = groupby((HeldOutAttempt(*row) for row in rows), attrgetter("task"))
    return sorted((HeldOutTask(task, list(tries)) for task, tries in by_task), key=_shows, reverse=True)


def _shows(task: HeldOutTask) -> tuple[float, int, int, str]:
    return task.gain, task.num_better, task.last.calls + task.last.tools, task.task


def learned_of(board: Board, ask: ViewQuery) -> LearnedTask | None:
    """The view of the task that the URL names, or of the one that shows most; None: no task was held out yet, or none
    has ended. Blocks. Raises RequestError."""
    if board.about.replays is not None:
        return None  # the attempts are those of the source's policy
    with board.index() as connection:
        tasks, task = tasks_of(connection), ask.query.get("task")
        if not tasks:
            return None
        chosen = next((one for one in tasks if one.task == task), None) if task is not None else tasks[0]
        if chosen is None:
            raise RequestError(
                f"no task {task!r} was held out in this run; Learned, without ?task=, offers those that were",
                status=404,
            )
        ends = [facts_of(connection, one.episode) for one in (chosen.first, chosen.last)[: len(chosen.tries)]]
        versions = _versions(connection, chosen.tries)
    log = board.log
    episodes = read_episodes(log, board.topics, ends) if log is not None else {}
    shown = [_transcript(facts, episodes.get(facts["episode"]), board.pieces) for facts in ends]
    return LearnedTask(
        task=chosen,
        first=shown[0],
        last=shown[1] if shown[1:] else None,
        changes=list(_changes(*shown)) if shown[1:] else [],
        versions=versions,
        before=_totals([one.first for one in tasks], tasks),
        after=_totals([one.last for one in tasks], tasks),
        others=tasks[:_MAX_TASKS],
        num_others=len(tasks),
        is_read=log is not None,
    )


def _totals(tries: Sequence[HeldOutAttempt], tasks: Sequence[HeldOutTask]) -> Totals:
    """A task is won by the best reward that any got."""
    known = [one.reward for one in tries if one.reward is not None]
    best = max((reward for task in tasks for reward in (task.first.reward, task.last.reward) if reward), default=0.0)
    return Totals(
        num=len(tries),
        num_won=sum(reward >= best > 0 for reward in known),
        calls=sum(one.calls for one in tries) / len(tries),
        tools=sum(one.tools for one in tries) / len(tries),
    )


def _versions(connection: sqlite3.Connection, tries: Sequence[HeldOutAttempt]) -> list[tuple[int, int, float]]:
    """Behind the first attempt's version up to the last one's."""
    numbers = [one.version for one in tries if one.version is not None]
    if not numbers:
        return []
    return connection.execute(
        "SELECT v.version, s.step, s.reward FROM versions v JOIN steps s ON s.step = v.step AND s.version = v.version "
        "WHERE s.stands AND s.reward IS NOT NULL AND v.version > ? AND v.version <= ? ORDER BY v.version",
        (min(numbers), max(numbers)),
    ).fetchall()


def _transcript(facts: Mapping[str, Any], read: EpisodeRecord | None, pieces: Pieces | None) -> AttemptTranscript:
    calls = call_transcripts(read.episode, pieces) if read is not None else []
    return AttemptTranscript(facts, calls, facts["calls"] - len(calls))


def _changes(first: AttemptTranscript, last: AttemptTranscript) -> Iterator[str]:
    """What is done now that was not before, by what the records tell."""
    old, new = first.facts, last.facts
    if (old["reward"], new["reward"]) != (None, None):
        yield f"reward {_number(old['reward'])} -> {_number(new['reward'])}"
    added = sorted({*new["tool"]} - {*old["tool"]})
    dropped = sorted({*old["tool"]} - {*new["tool"]})
    if added:
        yield f"uses {', '.join(added)} now"
    if dropped:
        yield f"no longer uses {', '.join(dropped)}"
    broken = [sum(tool.is_unparsable for call in one.calls for tool in call.tools) for one in (first, last)]
    for words, before, after in (
        ("tools that ran", old["tools"], new["tools"]),
        ("tools that failed", old["tools_failed"], new["tools_failed"]),
        ("calls", old["calls"], new["calls"]),
        ("tool requests that do not parse", *broken),
        ("tokens written", old["tokens"], new["tokens"]),
    ):
        if before != after:
            yield f"{words} {before} -> {after}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _model(board: Board, ask: ViewQuery) -> dict[str, Any]:
    return {"found": learned_of(board, ask), "is_live": board.about.is_live}


VIEW = View("learned", "Learned", "episodes/learned.html", _model)
