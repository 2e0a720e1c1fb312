"""System: the run's parts, what flows between them, and what they left out.

In: the board. Out: a model. Invariant: of the board alone, under its lock. Failure: none; what nobody told is left out.
"""

from __future__ import annotations

from typing import Any

from tracegrad.schemas.topics import Topic

from ..views.processes import process_rows
from .board import Board, ViewQuery
from .view import View

ROOMS: tuple[tuple[str, tuple[str, ...], tuple[Topic, ...]], ...] = (
    (
        "Producers",
        ("tasks", "runner", "llm", "otlp", "rewards"),
        (
            *(Topic.ROLLOUTS, Topic.ROLLOUT_EVENTS, Topic.LLM_CALLS),
            *(Topic.OTLP_SPANS, Topic.OTLP_LOGS, Topic.REWARDS),
        ),
    ),
    (
        "Streams",
        ("streams",),
        (
            *(Topic.EPISODE_EVENTS, Topic.EPISODES, Topic.EPISODE_SCORES),
            *(Topic.TRANSITIONS, Topic.CLOSED_EPISODES, Topic.CLOSED_GROUPS),
        ),
    ),
    ("Trainer", ("trainer",), (Topic.WEIGHTS, Topic.TRAINING_STEPS, Topic.ADVANTAGES)),
    ("Consumers", ("weight-sync", "engine"), (Topic.WEIGHT_ACKS,)),
    ("Around them", ("kafka", "page"), (Topic.PROCESS_STATUS, Topic.DEAD_LETTERS)),
)
"""The house: room, first words of its processes' names, topics that it writes. As README's figure has them."""


def model(board: Board, _ask: ViewQuery) -> dict[str, Any]:
    """What the template shows."""
    with board.lock:
        state, counts = board.state, board.counts
        processes = list(process_rows(state, is_live=board.about.is_live))
        newest = state.newest_step
        dead = counts.get(Topic.DEAD_LETTERS)
        return {
            "rooms": [
                (room, [one for one in processes if one.name.startswith(names)], [(t, counts.get(t)) for t in topics])
                for room, names, topics in ROOMS
            ],
            "processes": processes,
            "dead_letters": sorted(board.dead_letters.items(), key=lambda item: -item[1]),
            "num_dead": dead.num if dead else None,
            "num_told": board.dead_letters.total(),
            "excluded": sorted(newest.accounting.excluded.items(), key=lambda item: -item[1]) if newest else [],
        }


VIEW = View("system", "System", "system.html", model)
