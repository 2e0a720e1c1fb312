"""Records behind the views: an episode's, its group's, its spans, each read at the place that the index knows.

In: the run's index, its log, ids. Out: records, decoded. Invariant: nothing is read over, so an episode of a run of any
length opens alike. Failure: RequestError (404) for an id that the index does not know or a record that is gone; what
else cannot be read is left out.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from tracegrad.schemas.errors import RecordError, RequestError
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, Positions, made_of, parse_place
from tracegrad.schemas.log.protocol import Log, Record
from tracegrad.schemas.log.where import Term
from tracegrad.schemas.otlp.read import decode_spans, spans_of
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.rollouts import REWARDS, Reward, piece_id
from tracegrad.schemas.records.training import ADVANTAGES
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow, decode_group
from tracegrad.schemas.topics import Topic, Topics

from ...index.origins import records_at
from ...index.query import Question, find
from .spans import SpanView, span_view

T = TypeVar("T")
_MAX_SPAN_RECORDS = 1_000
_MAX_SAID = 100
_MAX_MEMBERS = 256


class EpisodeRecord(NamedTuple):
    """An episode's record, and of what it was made."""

    episode: Episode
    made: MadeOf | None


class CallCredit(NamedTuple):
    """What a group's record says of a call."""

    return_: float
    peers: str
    mask: bytes
    """A byte for each of its tokens: 1 where it trains."""
    advantage: float | None = None
    """What the trainer made of it, where a topic tells."""


class GroupCredit(NamedTuple):
    """A group's record on `transitions`."""

    summary: GroupSummary
    calls: Mapping[str, CallCredit]
    """By call id."""
    feedback: Sequence[Reward] = ()
    """What was said of its episode behind the close, and counted: no record of `episodes` tells it."""


def facts_of(connection: sqlite3.Connection, id_: str) -> dict[str, Any]:
    """What the index knows of an episode. Raises RequestError."""
    found = next(find(connection, Question(terms=(Term("episode", "=", id_),))), None) if "*" not in id_ else None
    if found is None:
        raise RequestError(f"no episode {id_[:80]} is known of this run; if it just ended, look again", status=404)
    return found


def facts_of_group(connection: sqlite3.Connection, id_: str) -> list[dict[str, Any]]:
    """What the index knows of a group's episodes, superseded ones too. Raises RequestError."""
    terms = (Term("group", "=", id_),)
    found = list(find(connection, Question(terms=terms, limit=_MAX_MEMBERS))) if "*" not in id_ else []
    if not found:
        raise RequestError(f"no group {id_[:80]} is known of this run; if it just ended, look again", status=404)
    return found


def read_episodes(log: Log, topics: Topics, facts: Iterable[Mapping[str, Any]]) -> dict[str, EpisodeRecord]:
    """Their records, by episode; those that are gone, or that nobody can read, are left out. Blocks."""
    places = [(one["partition"], one["offset"]) for one in facts]
    return {
        episode.episode_id: EpisodeRecord(episode, made_of(record.headers, MadeOf))
        for record, episode in _decoded_at(log, topics.name(Topic.EPISODES), places, EPISODES.decode)
    }


def read_credited(
    log: Log, topics: Topics, connection: sqlite3.Connection, id_: str
) -> tuple[dict[str, Any], EpisodeRecord, GroupCredit | None]:
    """What is known of an episode, its record, and its group as credit wrote it. Blocks. Raises RequestError."""
    facts = facts_of(connection, id_)
    found = read_episodes(log, topics, [facts]).get(id_)
    if found is None:
        raise RequestError(f"the record of episode {id_} is gone from the log, or cannot be read", status=404)
    return facts, found, read_trained(log, topics, connection, facts["group"])


def _decoded_at(
    log: Log, topic: str, places: Iterable[tuple[int, int]], decode: Callable[[bytes | None], T]
) -> Iterator[tuple[Record, T]]:
    for record in records_at(log, topic, places):
        with contextlib.suppress(RecordError):
            yield record, decode(record.value)


def read_trained(log: Log, topics: Topics, connection: sqlite3.Connection, group: str) -> GroupCredit | None:
    """A group as credit wrote it; None: it has not, or will not. Blocks."""
    row = connection.execute('SELECT "offset" FROM groups WHERE id = ?', (group,)).fetchone()
    places = [(partition_of(), row[0])] if row is not None and row[0] is not None else []
    for record, (summary, rows) in _decoded_at(log, topics.name(Topic.TRANSITIONS), places, decode_group):
        calls = _calls(rows, _advantages(log, topics, connection, group))
        return GroupCredit(summary, calls, _said(log, topics, made_of(record.headers, GroupMadeOf)))
    return None


def _said(log: Log, topics: Topics, made: GroupMadeOf | None) -> list[Reward]:
    """Of two words under one key the last; as it was said."""
    places = list(islice(_places(made.feedback if made is not None else {}, Topic.REWARDS), _MAX_SAID))
    last: dict[str, Reward] = {}
    for _, one in _decoded_at(log, topics.name(Topic.REWARDS), places, REWARDS.decode):
        known = last.setdefault(piece_id(one), one)
        last[piece_id(one)] = max(known, one, key=attrgetter("at_ms"))
    return sorted(last.values(), key=lambda one: (one.at_ms, piece_id(one)))


def _places(positions: Positions, of: Topic) -> Iterator[tuple[int, int]]:
    for place, ranges in positions.items():
        topic, partition = parse_place(place) or (None, 0)
        for begin, end in ranges if topic is of else ():
            yield from ((partition, offset) for offset in range(begin, end))


def _advantages(log: Log, topics: Topics, connection: sqlite3.Connection, group: str) -> Mapping[str, float]:
    """By call, as the step that stands told them; of a call whose tokens have several the mean."""
    rows = connection.execute(
        'SELECT a."offset" FROM advantages a JOIN steps USING(step, epoch) WHERE stands AND a."group" = '
        "(SELECT n FROM groups WHERE id = ?) ORDER BY step LIMIT 1",
        (group,),
    )
    places = [(partition_of(), offset) for (offset,) in rows]
    told = _decoded_at(log, topics.name(Topic.ADVANTAGES), places, ADVANTAGES.decode)
    return {call.call_id: call.mean for _, group in told for call in group.calls}


def _calls(rows: Iterable[SegmentRow], advantages: Mapping[str, float]) -> dict[str, CallCredit]:
    """Each call once: as in the row where it trains, else in any."""
    found: dict[str, CallCredit] = {}
    for row in rows:
        for turn in row.turns:
            mask = row.loss_mask[turn.start : turn.end].tobytes()
            known = found.get(turn.call_id)
            if known is None or (any(mask) and not any(known.mask)):
                advantage = advantages.get(turn.call_id)
                found[turn.call_id] = CallCredit(turn.return_, turn.peers, mask, advantage)
    return found


def read_spans(log: Log, topics: Topics, made: MadeOf | None) -> list[SpanView]:
    """The spans that an episode was made of, as far as a bounded number of records holds them. Blocks."""
    if made is None:
        return []
    places = chain.from_iterable(_places(positions, Topic.OTLP_SPANS) for positions in made.parts.values())
    wanted = set(islice(places, _MAX_SPAN_RECORDS))
    found: dict[str, SpanView] = {}
    for _, request in _decoded_at(log, topics.name(Topic.OTLP_SPANS), wanted, decode_spans):
        spans = list(spans_of(request))
        own = [one for one in spans if one[2].trace_id.hex() in made.parts]
        # A conversation's key is no trace's; one record then holds one trace, unless ranges were told as one.
        for resource, scope, span in own or (spans if made.gap == 1 else ()):
            found[span.span_id.hex()] = span_view(resource, scope, span)
    return list(found.values())
