"""What stands on the log alone of an episode that the index found: its calls, and the raw records it was made of.

In: the log, links of a Lineage, an id of a call. Out: links with both, of groups with the feedback that came
behind their close; the episodes that an id is in. Each record is read at its place. Failure: a record that is gone, or
that says nothing, leaves its link as it was; ConfigurationError for a call that is in no episode.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator
from contextlib import closing

import msgspec

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.ids import key_in
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, made_of, raw_positions
from tracegrad.schemas.log.protocol import Log, Offsets, Record, TopicPartition
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.records.episodes import EPISODES, ContextCall, EpisodeCall
from tracegrad.schemas.topics import Topic, Topics

from .lineage import EpisodeLink, GroupLink
from .subject import episodes_of_key

_READ_S = 10.0
"""How long one record is waited for."""
_NEAR = 2_000
"""Records between two that are read over rather than skipped."""


def with_origins(log: Log, topics: Topics, links: Iterable[EpisodeLink]) -> tuple[EpisodeLink, ...]:
    """The same, each with its calls and raw positions. Blocks."""
    links = tuple(links)
    places = [(link.partition, link.offset) for link in links]
    found = {(one.partition, one.offset): one for one in records_at(log, topics.name(Topic.EPISODES), places)}
    return tuple(_with_origin(link, found.get((link.partition, link.offset))) for link in links)


def _with_origin(link: EpisodeLink, record: Record | None) -> EpisodeLink:
    made = made_of(record.headers, MadeOf) if record is not None else None
    return msgspec.structs.replace(
        link, calls=_calls(record), made_of=raw_positions([made.parts]) if made is not None else {}
    )


def with_feedback(log: Log, topics: Topics, links: Iterable[GroupLink]) -> tuple[GroupLink, ...]:
    """The same, each with what was said of it behind its close. Blocks."""
    links = tuple(links)
    places = [(partition_of(), link.offset) for link in links if link.offset is not None]
    records = records_at(log, topics.name(Topic.TRANSITIONS), places)
    made = {record.offset: made_of(record.headers, GroupMadeOf) for record in records}
    told = {offset: one.feedback for offset, one in made.items() if one is not None}
    return tuple(
        msgspec.structs.replace(link, feedback=told.get(link.offset, {}) if link.offset is not None else {})
        for link in links
    )


def _calls(record: Record | None) -> tuple[str, ...]:
    try:
        episode = EPISODES.decode(record.value if record is not None else None)
    except RecordError:
        return ()
    calls: tuple[EpisodeCall | ContextCall, ...] = (*episode.calls, *episode.context_calls)
    return tuple(call.call_id for call in calls)


def episodes_of_call(log: Log, topics: Topics, connection: sqlite3.Connection, call: str) -> list[str]:
    """Ids of the episodes with this call: those of its key are looked at. Blocks. Raises ConfigurationError."""
    key = key_in(call)
    candidates = {(partition, at): id_ for id_, partition, at in episodes_of_key(connection, key)} if key else {}
    found = [
        candidates[record.partition, record.offset]
        for record in records_at(log, topics.name(Topic.EPISODES), candidates)
        if call in _calls(record)
    ]
    if not found:
        raise ConfigurationError(
            f"call {call} is in none of the {len(candidates)} episodes of its key {key}: it is open, late, of another "
            "run, or was not selected; `tracegrad audit` says what became of each"
        )
    return found


def records_at(log: Log, topic: str, places: Iterable[tuple[int, int]]) -> Iterator[Record]:
    """The records at these (partition, offset), but for those that are gone."""
    by_partition: dict[int, list[int]] = {}
    for partition, offset in sorted(places):
        by_partition.setdefault(partition, []).append(offset)
    for partition, offsets in by_partition.items():
        wanted = set(offsets)
        begin = 0
        while begin < len(offsets):
            end = begin + 1
            while end < len(offsets) and offsets[end] - offsets[end - 1] <= _NEAR:
                end += 1
            for record in _stretch(log, TopicPartition(topic, partition), offsets[begin], offsets[end - 1]):
                if record.offset in wanted:
                    yield record
            begin = end


def _stretch(log: Log, where: TopicPartition, first: int, last: int) -> Iterator[Record]:
    kept = log.offsets(where.topic).get(where.partition, Offsets(0, 0))
    first, last = max(first, kept.begin), min(last, kept.end - 1)
    if first > last:
        return
    with closing(log.tail({where: first})) as reader:
        give_up_at = time.monotonic() + _READ_S
        while reader.positions()[where] <= last and time.monotonic() < give_up_at:
            for record in reader.read(timeout_s=0.2):
                give_up_at = time.monotonic() + _READ_S
                yield record
