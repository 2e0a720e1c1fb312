"""Run: how training goes, and what is going on now.

In: the board. Out: a model, and the charts' numbers. Invariant: of the board alone, under its lock.
Failure: none.
"""

from __future__ import annotations

import heapq
from typing import Any

import msgspec

from tracegrad.schemas.topics import Topic

from ..views.activity import Activity, activity_in, waiting_text
from ..views.held_out import HeldOut, held_out_of, held_out_text
from .board import Board, ViewQuery
from .charts import Charts, alarm_spells, charts_of
from .view import View

_VERSIONS = 8
"""That are listed."""


def model(board: Board, _ask: ViewQuery) -> dict[str, Any]:
    """What the template shows."""
    with board.lock:
        steps, passes, state = board.state.steps, _passes(board), board.state
        now = now_of(board)
        newest = steps[-1] if steps else None
        versions, best = state.versions, state.held_out.best
        serving = state.serving if board.about.is_live else [ack for _, ack in sorted(state.acks.items())]
        return {
            "now": now,
            "waiting": waiting_text(now) if board.is_read else "Reading the run's topics ...",
            "newest": newest,
            "held_out": [(one, held_out_text(one)) for one in passes],
            "versions": [versions[number] for number in heapq.nlargest(_VERSIONS, versions)],
            "num_versions": len(versions),
            "best": best.score.version if best is not None and best.score is not None else None,
            "serving": serving,
            "served": sorted({ack.version for ack in serving}),
            "alarms": sorted(alarm_spells(steps).items()),
            "mark": f"{len(steps)}-{newest.step if newest else 0}-{len(passes)}",
        }


def numbers(board: Board, _ask: ViewQuery) -> Charts:
    """Of the charts."""
    with board.lock:
        steps, passes = board.state.steps, _passes(board)
    return charts_of(steps, passes)


def now_of(board: Board) -> Activity:
    """The run at this moment, with what the board knows beside its state; the caller holds the lock."""
    about = board.about
    told = activity_in(
        board.state, steps=about.steps, groups_per_step=about.groups_per_step, concurrency=about.concurrency
    )
    return msgspec.structs.replace(
        told,
        is_live=about.is_live,
        num_running=len(board.running),
        num_waiting_groups=_waiting_groups(board),
        lag=sum(sum(count.lag.values()) for count in board.counts.values()) if board.counts else None,
    )


def _passes(board: Board) -> list[HeldOut]:
    """With a score, in order."""
    by_number = board.state.held_out.by_number
    return [one for number in sorted(by_number) if (one := held_out_of(by_number[number])) is not None]


def _waiting_groups(board: Board) -> int | None:
    """On the policy's partition behind the last batch."""
    ends = board.ends.get(Topic.TRANSITIONS)
    if not ends:
        return None
    newest = board.state.newest_step
    if newest is None:
        return sum(at.end - at.begin for at in ends.values())
    return max(0, max(at.end for at in ends.values()) - newest.next_offset)


VIEW = View("", "Run", "run.html", model, numbers)
