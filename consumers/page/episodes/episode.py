"""An episode: its turns as a conversation, its spans as a waterfall, what each call was worth, and what trained on it.

    /episode/ID?color=advantage&all=1

In: the run's index, its log, an episode's id. Out: the model of the view. Invariant: long texts are
cut unless all is asked for, so that an episode of any size opens. Failure: RequestError for one that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import Reward

from ...index.lineage import Lineage, of_episodes
from ...index.subject import Kind, taken_for
from ..board import Board, ViewQuery
from ..view import View
from .group import RulePayment, paid_by
from .records import GroupCredit, read_credited, read_spans
from .spans import SpanBar, waterfall
from .transcript import CallTranscript, Pieces, call_transcripts

COLORS = ("logprob", "advantage", "none")
"""By what tokens may be coloured."""


class EpisodeView(NamedTuple):
    """The view."""

    facts: Mapping[str, Any]
    episode: Episode
    calls: list[CallTranscript]
    num_hidden: int
    bars: list[SpanBar]
    lineage: Lineage
    explained: Mapping[str, Any]
    color: str
    is_whole: bool
    has_advantages: bool
    paid: Sequence[RulePayment]
    feedback: Sequence[tuple[Reward, int]]
    """What was said of it behind its close, and counted; and of which call, by its number, or 0: of the whole."""


def view_of(
    facts: Mapping[str, Any],
    episode: Episode,
    trained: GroupCredit | None,
    spans: Sequence[Any],
    lineage: Lineage,
    explained: Mapping[str, Any],
    *,
    pieces: Pieces | None = None,
    color: str = "",
    is_whole: bool = False,
) -> EpisodeView:
    """The view of what was read. Pure."""
    by_call = trained.calls if trained is not None else {}
    own = {call.call_id: by_call[call.call_id] for call in episode.calls if call.call_id in by_call}
    known = [one.advantage for one in by_call.values() if one.advantage is not None]
    calls = call_transcripts(episode, pieces, own, greatest=max(map(abs, known), default=0.0), is_whole=is_whole)
    bars = waterfall(spans, {one.call.call_id: one.number for one in calls})
    has_advantages = any(one.advantage is not None for one in own.values())
    return EpisodeView(
        facts=facts,
        episode=episode,
        calls=calls,
        num_hidden=len(episode.calls) - len(calls),
        bars=bars,
        lineage=lineage,
        explained=explained,
        color=color if color in COLORS else "advantage" if has_advantages else "logprob",
        is_whole=is_whole,
        has_advantages=has_advantages,
        paid=paid_by([episode]),
        feedback=_feedback(episode, trained.feedback if trained is not None else ()),
    )


def _feedback(episode: Episode, rewards: Sequence[Reward]) -> list[tuple[Reward, int]]:
    numbers = {id_: number for number, call in enumerate(episode.calls, 1) for id_ in _ids_of(call)}
    return [(one, numbers.get(one.target, 0) if one.target is not None else 0) for one in rewards]


def _ids_of(call: EpisodeCall) -> tuple[str, ...]:
    return call.call_id, *(tool.id for tool in call.tool_calls)


def _model(board: Board, ask: ViewQuery) -> dict[str, Any]:
    log, topics = board.needed_log(), board.topics
    with board.index() as connection:
        try:
            id_ = taken_for(connection, ask.rest, Kind.EPISODE).id
        except ValueError as error:
            raise RequestError(str(error), status=404) from error
        facts, read, trained = read_credited(log, topics, connection, id_)
        lineage = of_episodes(connection, [id_], ask.rest, Kind.EPISODE)
    said = trained.feedback if trained is not None else ()
    seen = view_of(
        facts,
        read.episode,
        trained,
        read_spans(log, topics, read.made),
        lineage,
        board.explain(read.episode, said) if board.explain is not None else {},
        pieces=board.pieces,
        color=ask.query.get("color", ""),
        is_whole=ask.query.get("all") == "1",
    )
    return {"seen": seen, "colors": COLORS}


VIEW = View("episode", "Episode", "episodes/episode.html", _model, is_live=False, is_listed=False)
