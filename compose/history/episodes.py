"""The episodes of a run, read by themselves: what was made is asked, nothing is folded.

In: a run whose log answers. Out: episodes. Failure: a record that cannot be read is left out.
"""

from __future__ import annotations

from collections.abc import Iterator

from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, made_of, place_of
from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic
from tracegrad.streams.ratings import rate_again

from ..run.wiring import Wiring


def episodes_of(source: Wiring) -> Iterator[Episode]:
    """All; of one that was written several times the record that counts: of the greatest revision the first. Blocks."""
    log, topic = source.log(is_history=True), source.topics.name(Topic.EPISODES)
    counts: dict[str, tuple[int, Position]] = {}
    for record in read_to_end(log, topic):
        made = made_of(record.headers, MadeOf)
        if made is not None and (made.id not in counts or counts[made.id][0] < made.revision):
            counts[made.id] = made.revision, record.position
    for record, episode in decoded(read_to_end(log, topic), {topic: EPISODES}):
        _, place = counts.get(episode.episode_id, (0, record.position))
        if place == record.position:
            yield episode


def as_credited(source: Wiring, episode: Episode) -> Episode:
    """A captured one with the feedback that came behind its close, as its group names it on `transitions`; each other
    as it is. Blocks."""
    if episode.rollout_id is not None:
        return episode
    log, topics = source.log(is_history=True), source.topics
    groups = (made_of(one.headers, GroupMadeOf) for one in read_to_end(log, topics.name(Topic.TRANSITIONS)))
    own = next((one for one in groups if one is not None and one.group == episode.episode_id), None)
    if own is None or not own.feedback:
        return episode
    said = [
        record.value
        for record in read_to_end(log, topics.name(Topic.REWARDS))
        for begin, end in own.feedback.get(place_of(Topic.REWARDS, record.partition), ())
        if begin <= record.offset < end and record.value is not None
    ]
    return EPISODES.decode(rate_again(EPISODES.encode(episode), said))
