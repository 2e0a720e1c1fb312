"""What a source run wrote of its episodes and groups, read from the headers of its records; bodies are not looked at.

In: the log, the source's topics. Out: `RecordedEpisodes`. Invariant: an episode that was written twice, as by a killed
worker, is one; of its records the one of the greatest revision counts, then the first. Failure: a record without such a
header, of an earlier release, is left out and counted.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash, attempt_of
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, Positions, made_of, parse_place
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.policies import partition_of
from tracegrad.schemas.topics import INPUTS, Stage, Topic, Topics

from .recorded import RecordedEpisode, RecordedEpisodes, RecordRange

_RAW = frozenset(INPUTS[Stage.NORMALIZE])
logger = logging.getLogger(__name__)


def read_recorded(log: Log, topics: Topics, runs: Iterable[RunHash]) -> RecordedEpisodes:
    """All that there is now. Blocks. Raises UnavailableError; ConfigurationError where no record tells what it was made
    of.

    Args:
        runs: hashes of the runs whose runners' attempts it took.
    """
    episodes: dict[str, MadeOf] = {}
    num_silent = 0
    for record in read_to_end(log, topics.name(Topic.EPISODES)):
        made = made_of(record.headers, MadeOf)
        if made is None:
            num_silent += 1
        elif made.id not in episodes or made.revision > episodes[made.id].revision:
            episodes[made.id] = made
    if num_silent and not episodes:
        raise ConfigurationError(
            f"expected {topics.name(Topic.EPISODES)!r} to tell of which records its {num_silent} episodes were made, "
            "got records of an earlier release, which do not; --reclose assembles them anew"
        )
    if num_silent:
        logger.warning("%d episodes do not tell of which records they were made, and are left out", num_silent)
    groups: dict[str, GroupMadeOf] = {}
    for record in read_to_end(log, topics.name(Topic.TRANSITIONS)):
        group = made_of(record.headers, GroupMadeOf) if record.partition == partition_of() else None
        if group is not None:
            groups.setdefault(group.group, group)
    reading = _HeaderReader(groups, topics, runs)
    # One by one, so that of each there is either the header or what is made of it.
    return RecordedEpisodes((reading.recorded(episodes.pop(id_)) for id_ in [*episodes]), groups)


class _HeaderReader:
    """Words and places that many episodes share are held once."""

    def __init__(self, groups: Mapping[str, GroupMadeOf], topics: Topics, runs: Iterable[RunHash]) -> None:
        self._groups = groups
        self._runs = frozenset(runs)
        self._names = {topic: topics.name(topic) for topic in _RAW}
        self._places: dict[str, TopicPartition | None] = {}
        self._words: dict[str, str] = {}

    def recorded(self, made: MadeOf) -> RecordedEpisode:
        is_captured = attempt_of(made.id, self._runs) is None
        of_itself, whole = self._groups.get(made.id), None if is_captured else self._groups.get(made.group)
        parts = (part for key, positions in made.parts.items() for part in self._parts(positions, self._one(key, made)))
        return RecordedEpisode(
            id=made.id,
            key=self._one(made.key, made),
            closed_by=self._words.setdefault(made.closed_by, made.closed_by),
            group=self._words.setdefault(made.group, made.group),
            parts=tuple(parts),
            said=tuple(self._parts(of_itself.feedback if of_itself else {}, made.key)),
            is_captured=is_captured,
            is_member=whole is None or whole.num_omitted > 0 or any(ref.id == made.id for ref in whole.episodes),
            is_exact=made.gap == 1,
            num_missing=made.num_omitted,
        )

    def _one(self, key: str, made: MadeOf) -> str:
        return made.id if key == made.id else self._words.setdefault(key, key)

    def _parts(self, positions: Positions, key: str) -> Iterator[RecordRange]:
        for at, ranges in positions.items():
            if at not in self._places:
                self._places[at] = self._place(at)
            where = self._places[at]
            if where is not None:
                yield from (RecordRange(where, begin, end, key) for begin, end in ranges)

    def _place(self, at: str) -> TopicPartition | None:
        found = parse_place(at)
        return TopicPartition(self._names[found[0]], found[1]) if found and found[0] in self._names else None
