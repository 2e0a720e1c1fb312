"""System: the run's parts and what flows between them, and whether the accounts add up.

In: the board. Out: a model. Invariants: of the board alone, under its lock, but for the audit that a run's end left in
its folder; a sum is green only when both sides were counted apart. Failure: none; what nobody told is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.topics import Topic

from ..views.processes import process_rows
from .board import Board, TopicCount, ViewQuery
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


class AccountSum(msgspec.Struct, frozen=True):
    """An identity of the accounts."""

    total: int
    terms: dict[str, int]

    @property
    def holds(self) -> bool:
        """Whether the terms add up."""
        return self.total == sum(self.terms.values())


class AuditSummary(msgspec.Struct, frozen=True):
    """What is read of a run's audit.json."""

    calls: AccountSum
    episodes: AccountSum
    groups: AccountSum
    feedback: AccountSum
    num_missing: int


def model(board: Board, _ask: ViewQuery) -> dict[str, Any]:
    """What the template shows."""
    audited = audited_of(Path(board.about.folder))
    with board.lock:
        state, counts = board.state, board.counts
        processes = list(process_rows(state, is_live=board.about.is_live))
        newest = state.newest_step
        dead = counts.get(Topic.DEAD_LETTERS)
        return {
            "rooms": [
                (room, [one for one in processes if _is_of(one.name, names)], [(t, counts.get(t)) for t in topics])
                for room, names, topics in ROOMS
            ],
            "processes": processes,
            "dead_letters": sorted(board.dead_letters.items(), key=lambda item: -item[1]),
            "num_dead": dead.num if dead else None,
            "num_told": board.dead_letters.total(),
            "excluded": sorted(newest.accounting.excluded.items(), key=lambda item: -item[1]) if newest else [],
            "sums": sums_of(newest, counts.get(Topic.TRANSITIONS), board.begin_of(Topic.TRANSITIONS)),
            "audited": {} if audited is None or board.about.is_live else _audited_sums(audited),
            "num_missing": audited.num_missing if audited else 0,
        }


def sums_of(newest: TrainingStep | None, transitions: TopicCount | None, begin: int) -> dict[str, AccountSum]:
    """What the topics tell of groups by themselves: the trainer's ledger, and where it stands on `transitions`."""
    if newest is None:
        return {}
    accounting = newest.accounting
    excluded = {f"excluded: {reason}": num for reason, num in sorted(accounting.excluded.items())}
    sums = {"groups consumed": AccountSum(accounting.consumed, {"trained": accounting.trained, **excluded})}
    if transitions is not None:
        waiting = max(0, transitions.num + begin - newest.next_offset)
        terms = {"consumed": accounting.consumed, "read again": accounting.duplicates, "waiting": waiting}
        sums["groups on transitions"] = AccountSum(transitions.num + begin, terms)
    return sums


def audited_of(folder: Path) -> AuditSummary | None:
    """What the audit at the run's end found; None where none was made, or another release wrote it."""
    try:
        return msgspec.json.decode((folder / "results" / "audit.json").read_bytes(), type=AuditSummary)
    except (OSError, msgspec.DecodeError):
        return None


def _audited_sums(audited: AuditSummary) -> dict[str, AccountSum]:
    units = {what: getattr(audited, what) for what in ("calls", "episodes", "groups", "feedback")}
    return {what: unit for what, unit in units.items() if unit.total}


def _is_of(process: str, names: tuple[str, ...]) -> bool:
    return any(process == name or process.startswith(f"{name}-") for name in names)


VIEW = View("system", "System", "system.html", model)
