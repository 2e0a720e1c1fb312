"""The view people love: one held-out task, first and last transcript side by side, between them what learned it.

In: what the index tells (told.py), the two attempts' records; of a run that has ended, what an earlier page kept of
both. Out: the model of the view. Invariant: what is kept is shown without the log and the index. Failure:
RequestError for a task that was never held out; a record that is gone is said to be.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.episodes import EPISODES, Episode

from ...index.schema import open_index
from ..board import Ask, Board
from ..view import View
from .source import read_episodes
from .told import End, Kept, Side, TaskSeen, Told, Tried, tell
from .transcript import Pieces, Said, said

__all__ = ["VIEW", "Attempt", "Learned", "keep_learned", "learned", "learned_of"]

_WIDTH, _HEIGHT = 600.0, 80.0


class Attempt(NamedTuple):
    """One of the two that are shown."""

    facts: End
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
    is_read: bool
    """Whether the log was asked for what is not there."""


def learned(told: Told, episodes: Mapping[str, Episode] | None, pieces: Pieces | None = None) -> Learned:
    """The view. Pure.

    Args:
        episodes: records of the two attempts, as far as they are there; None: no log was there to ask.
        pieces: the policy's tokenizer.
    """
    attempts = [_attempt(one, (episodes or {}).get(one.episode), pieces) for one in told.ends]
    bars, dots = _between(told.versions, told.tries)
    return Learned(
        task=told.task,
        first=attempts[0],
        last=attempts[1] if attempts[1:] else None,
        changes=list(_changes(*attempts)) if attempts[1:] else [],
        bars=bars,
        dots=dots,
        before=told.before,
        after=told.after,
        others=told.others,
        num_others=told.num_others,
        is_read=episodes is not None,
    )


def _attempt(facts: End, episode: Episode | None, pieces: Pieces | None) -> Attempt:
    calls = said(episode, pieces) if episode is not None else []
    return Attempt(facts, calls, facts.calls - len(calls))


def _between(versions: Sequence[tuple[int, int, float]], tries: Sequence[Tried]) -> tuple[list[Bar], list[Dot]]:
    """Versions between the first attempt and the last, each as high as its step's reward; and the attempts."""
    numbers = [one.version for one in tries if one.version is not None]
    if not numbers:
        return [], []
    first, last = min(numbers), max(numbers)
    rewards = [*(reward for *_, reward in versions), *(one.reward for one in tries if one.reward is not None), 0.0]
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
        for version, step, reward in versions
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
    if (old.reward, new.reward) != (None, None):
        yield f"reward {_number(old.reward)} -> {_number(new.reward)}"
    added = sorted({*new.tool} - {*old.tool})
    dropped = sorted({*old.tool} - {*new.tool})
    if added:
        yield f"uses {', '.join(added)} now"
    if dropped:
        yield f"no longer uses {', '.join(dropped)}"
    for name, words in (("tools", "tools that ran"), ("tools_failed", "tools that failed"), ("calls", "calls")):
        if getattr(old, name) != getattr(new, name):
            yield f"{words} {getattr(old, name)} -> {getattr(new, name)}"
    broken = [sum(tool.is_unparsable for call in one.calls for tool in call.tools) for one in (first, last)]
    if broken[0] != broken[1]:
        yield f"tool requests that do not parse {broken[0]} -> {broken[1]}"
    if old.tokens != new.tokens:
        yield f"tokens written {old.tokens} -> {new.tokens}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def learned_of(board: Board, ask: Ask) -> Learned | None:
    """The view of the task that the URL names, or of the one that shows most; None: no task was held out. Blocks."""
    if board.about.replays is not None:
        return None  # the attempts are those of the source's policy
    task, kept = ask.query.get("task"), board.learned
    if kept is not None and (kept.told is None or task in (None, kept.told.task.task)):
        return learned(kept.told, _decoded(kept), board.pieces) if kept.told is not None else None
    with board.index() as connection:
        told = tell(connection, task)
    if told is None:
        return None
    return learned(told, _read(board, board.log, told) if board.log is not None else None, board.pieces)


def keep_learned(board: Board, mark: str) -> Kept | None:
    """What an index that lacks nothing tells, with the records; None: no log is there, or it lost one. Blocks."""
    if board.opened is None or board.about.replays is not None:
        return None
    with open_index(board.index_path) as connection:
        told = tell(connection)
    found = _read(board, board.opened, told) if told is not None else {}
    if told is not None and len(found) < len(told.ends):
        return None
    return Kept(mark=mark, told=told, records=[EPISODES.encode(one) for one in found.values()])


def _read(board: Board, log: Log, told: Told) -> dict[str, Episode]:
    found = read_episodes(log, board.topics, told.places)
    return {id_: one.episode for id_, one in found.items()}


def _decoded(kept: Kept) -> dict[str, Episode]:
    found = {}
    for record in kept.records:
        try:
            episode = EPISODES.decode(record)
        except RecordError:
            continue
        found[episode.episode_id] = episode
    return found


def _model(board: Board, ask: Ask) -> dict[str, Any]:
    return {"found": learned_of(board, ask), "is_live": board.about.is_live}


VIEW = View("learned", "Learned", "episodes/learned.html", _model)
