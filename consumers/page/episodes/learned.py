"""The view people love: one held-out task, first and last transcript side by side, between them what learned it.

In: the run's index, its log. Out: the model of the view. Invariant: the first and the last attempt in time are shown,
whatever they came to, and of several samples of a pass the first that closed: none is picked because it is fair. Which
task, is picked: one that was lost and is won, of which most can be seen, unless the URL names one. Failure:
RequestError for a task that was never held out.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.calls import Purpose

from ..board import Ask, Board
from ..view import View
from .source import Read, facts_of, read_episodes
from .transcript import Pieces, Said, said

__all__ = ["VIEW", "Attempt", "Learned", "Side", "TaskSeen", "Tried", "learned", "learned_of", "tasks_of"]

_MAX_ATTEMPTS = 200_000
_MAX_TASKS = 500
_WIDTH, _HEIGHT = 600.0, 80.0


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


class Attempt(NamedTuple):
    """One of the two that are shown."""

    facts: Mapping[str, Any]
    calls: list[Said]
    """Empty where its record is gone."""
    num_hidden: int


class Bar(NamedTuple):
    """A version between the two, in the picture's own units."""

    version: int
    step: int
    reward: float
    x: float
    width: float
    y: float
    height: float


class Dot(NamedTuple):
    """An attempt at this task, likewise."""

    tried: Tried
    x: float
    y: float


class Side(NamedTuple):
    """All held-out tasks, at their first or last attempt."""

    num: int
    num_won: int
    """Worth as much as the best reward of all, or more than 0 where that is all that is known."""
    reward: float | None
    calls: float
    tools: float


class Learned(NamedTuple):
    """The view."""

    task: TaskSeen
    first: Attempt
    last: Attempt | None
    """None: it was attempted once."""
    changes: list[str]
    """What the last does that the first did not, in words."""
    bars: list[Bar]
    dots: list[Dot]
    before: Side
    after: Side
    others: list[TaskSeen]
    """Tasks to choose, the one that shows most first."""
    num_others: int


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


def learned(
    connection: sqlite3.Connection, read: Any, task: str | None = None, pieces: Pieces | None = None
) -> Learned | None:
    """The view; None: no task was held out yet, or none has ended.

    Args:
        read: facts of episodes to their records; blocks.
        task: the one that is asked for.
        pieces: the policy's tokenizer.
    """
    tasks = tasks_of(connection)
    if not tasks:
        return None
    chosen = next((one for one in tasks if one.task == task), None) if task is not None else tasks[0]
    if chosen is None:
        raise RequestError(f"no task {task!r} was held out in this run; choose one below", status=404)
    tries = _tries(connection, chosen.task)
    ends = [chosen.first] if chosen.num == 1 else [chosen.first, chosen.last]
    facts = [facts_of(connection, one.episode) for one in ends]
    records = read(facts)
    attempts = [_attempt(one, records.get(one["episode"]), pieces) for one in facts]
    bars, dots = _between(connection, tries)
    return Learned(
        task=chosen,
        first=attempts[0],
        last=attempts[1] if attempts[1:] else None,
        changes=list(_changes(*attempts)) if attempts[1:] else [],
        bars=bars,
        dots=dots,
        before=_side([one.first for one in tasks], tasks),
        after=_side([one.last for one in tasks], tasks),
        others=tasks[:_MAX_TASKS],
        num_others=len(tasks),
    )


def _tries(connection: sqlite3.Connection, task: str) -> list[Tried]:
    rows = connection.execute(
        "SELECT e.id, e.at_ms, e.version, e.reward, e.calls, e.tools FROM episodes e "
        "WHERE e.task = (SELECT n FROM words WHERE field = 'task' AND word = ?) "
        "AND e.purpose = (SELECT n FROM words WHERE field = 'purpose' AND word = ?) AND e.final "
        "ORDER BY e.at_ms, e.n",
        (task, Purpose.VALIDATION.value),
    )
    return [Tried(task, *row) for row in rows]


def _attempt(facts: Mapping[str, Any], record: Read | None, pieces: Pieces | None) -> Attempt:
    calls = said(record.episode, pieces) if record is not None else []
    return Attempt(facts, calls, int(facts["calls"]) - len(calls))


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


def _between(connection: sqlite3.Connection, tries: Sequence[Tried]) -> tuple[list[Bar], list[Dot]]:
    """Versions between the first attempt and the last, each as high as its step's reward; and the attempts."""
    numbers = [one.version for one in tries if one.version is not None]
    if not numbers:
        return [], []
    first, last = min(numbers), max(numbers)
    rows = connection.execute(
        "SELECT v.version, s.step, s.reward FROM versions v JOIN steps s ON s.step = v.step AND s.version = v.version "
        "WHERE s.stands AND s.reward IS NOT NULL AND v.version > ? AND v.version <= ? ORDER BY v.version",
        (first, last),
    ).fetchall()
    rewards = [*(reward for *_, reward in rows), *(one.reward for one in tries if one.reward is not None), 0.0]
    low, high = min(rewards), max(rewards)
    scale, wide = _HEIGHT / ((high - low) or 1.0), _WIDTH / max(1, last - first)
    bars = [
        Bar(
            version=version,
            step=step,
            reward=reward,
            x=round((version - first - 1) * wide, 1),
            width=round(max(1.0, wide - 1), 1),
            y=round(_HEIGHT - (reward - low) * scale, 1),
            height=round(max(0.5, (reward - low) * scale), 1),
        )
        for version, step, reward in rows
    ]
    dots = [
        Dot(one, round((one.version - first) * wide, 1), round(_HEIGHT - (one.reward - low) * scale, 1))
        for one in tries
        if one.version is not None and one.reward is not None
    ]
    return bars, dots


def _changes(first: Attempt, last: Attempt) -> Iterator[str]:
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
    for name, words in (("tools", "tools that ran"), ("tools_failed", "tools that failed"), ("calls", "calls")):
        if old[name] != new[name]:
            yield f"{words} {old[name]} -> {new[name]}"
    broken = [sum(tool.is_unparsable for call in one.calls for tool in call.tools) for one in (first, last)]
    if broken[0] != broken[1]:
        yield f"tool requests that do not parse {broken[0]} -> {broken[1]}"
    if old["tokens"] != new["tokens"]:
        yield f"tokens written {old['tokens']} -> {new['tokens']}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def learned_of(board: Board, ask: Ask) -> Learned | None:
    """The view of the task that the URL names, or of the one that shows most. Blocks."""
    with board.index() as connection:

        def read(facts: Sequence[Mapping[str, Any]]) -> dict[str, Read]:
            return read_episodes(board.log, board.topics, facts) if board.log is not None else {}

        return learned(connection, read, ask.query.get("task"), board.pieces)


def _model(board: Board, ask: Ask) -> dict[str, Any]:
    return {"found": learned_of(board, ask), "is_live": board.about.is_live}


VIEW = View("learned", "Learned", "episodes/learned.html", _model)
