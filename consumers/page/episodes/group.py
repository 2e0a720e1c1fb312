"""A group: its attempts from best to worst, tokens shaded by advantage, the rule that paid.

In: the run's index, its log, a group's id. Out: the model of the view. Invariant: returns and masks are those of the
group's record on `transitions`, advantages those that the trainer told; where no record tells them none is shown.
Failure: RequestError for a group that is not known; attempts whose records are gone are shown by what the index knows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.schemas.records.episodes import Episode

from ..board import Board, ViewQuery
from ..view import View
from .records import EpisodeRecord, GroupCredit, facts_of_group, read_episodes, read_trained
from .transcript import CallTranscript, Message, Pieces, call_transcripts

_SHOWN = 32
"""Attempts whose text is shown."""


class Member(NamedTuple):
    """An attempt."""

    facts: Mapping[str, Any]
    calls: list[CallTranscript]
    excluded: str


class RulePayment(NamedTuple):
    """What a rule, or a source of rewards, gave in this group."""

    rule: str
    total: float
    num: int
    """Times that it paid."""
    num_members: int


class GroupView(NamedTuple):
    """The view."""

    id: str
    task: str | None
    task_text: tuple[Message, ...]
    """What the attempts read first."""
    purpose: str
    members: list[Member]
    paid: list[RulePayment]
    trained: GroupCredit | None
    step: int | None
    has_advantages: bool
    num_unshown: int
    left_out: Sequence[str]
    """Why attempts of it train nothing; each reason once."""
    is_captured: bool


def group_of(
    id_: str,
    facts: Sequence[Mapping[str, Any]],
    records: Mapping[str, EpisodeRecord],
    trained: GroupCredit | None,
    pieces: Pieces | None = None,
) -> GroupView:
    """The view of a group.

    Args:
        facts: of its episodes, as the index has them.
        records: of those that are there, by episode.
        trained: the group as credit wrote it.
    """
    ordered = sorted(facts, key=_rank)
    calls = trained.calls if trained is not None else {}
    known = [one.advantage for one in calls.values() if one.advantage is not None]
    greatest = max(map(abs, known), default=0.0)
    left_out = {one.episode_id: one.excluded for one in trained.summary.members} if trained is not None else {}
    members = []
    for one in ordered[:_SHOWN]:
        read = records.get(one["episode"])
        shown = call_transcripts(read.episode, pieces, calls, greatest=greatest) if read is not None else []
        members.append(Member(one, shown, left_out.get(one["episode"], "") or one["excluded"] or ""))
    first = next((member.calls[0].prompt for member in members if member.calls), ())
    return GroupView(
        id=id_,
        task=ordered[0]["task"],
        task_text=first,
        purpose=ordered[0]["purpose"],
        members=members,
        paid=paid_by(read.episode for read in records.values()),
        trained=trained,
        step=next((one["step"] for one in ordered if one["step"] is not None), None),
        has_advantages=bool(known),
        num_unshown=len(ordered) - len(members),
        left_out=sorted({member.excluded for member in members if member.excluded}),
        is_captured=bool(ordered[0]["captured"]),
    )


def _rank(facts: Mapping[str, Any]) -> tuple[bool, float, float, str]:
    """From best to worst: by the final reward, then by what its calls earned; those without a reward last."""
    reward = facts["reward"]
    return reward is None, -(reward or 0.0), -(facts["paid"] or 0.0), facts["episode"]


def paid_by(episodes: Iterable[Episode]) -> list[RulePayment]:
    """By rule, of what paid most to what paid least; final rewards are the attempts' own, and not among them."""
    values: defaultdict[str, list[tuple[str, float]]] = defaultdict(list)
    for episode in episodes:
        for call in episode.calls:
            for one in call.rewards:
                values[one.rule].append((episode.episode_id, one.value))
    found = [
        RulePayment(rule, sum(value for _, value in of), len(of), len({id_ for id_, _ in of}))
        for rule, of in values.items()
    ]
    return sorted(found, key=lambda one: (-one.total, one.rule))


def _model(board: Board, ask: ViewQuery) -> dict[str, Any]:
    log = board.needed_log()
    with board.index() as connection:
        facts = facts_of_group(connection, ask.rest)
        trained = read_trained(log, board.topics, connection, ask.rest)
    records = read_episodes(log, board.topics, facts)
    return {"group": group_of(ask.rest, facts, records, trained, board.pieces)}


VIEW = View("group", "Group", "episodes/group.html", _model, is_live=False, is_listed=False)
