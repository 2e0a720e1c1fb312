"""What a replay makes, beside what its source made of the same records: how much of it there is, and what is not equal.

In: the bodies on the source's `episodes` and `transitions`; outputs of a fold as they come. Out: counts. Invariant: an
episode or a group counts once, as the source's greatest revision, or its first record. Memory: some hundred bytes a
group or an episode. Failure: none; a record without a header of what it was made of is left out.
"""

from __future__ import annotations

import hashlib
from collections import Counter

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import GroupMadeOf, MadeOf, made_of
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.transitions import decode_group, encode_group, group_id_of
from tracegrad.schemas.topics import Topic, Topics

from .recorded import RecordedEpisodes

_TOLD = 5
"""Ids named of those that differ."""


class ChangeCounts(msgspec.Struct, kw_only=True):
    """Of episodes, or of groups."""

    equal: int = 0
    """Byte for byte, but for the digest of the rules: others may pay the same."""
    other: int = 0
    new: int = 0
    """That the source has none of."""
    gone: int = 0
    """Of the source, and not made."""
    named: list[str] = msgspec.field(default_factory=list)
    """The first that are not equal."""

    @property
    def text(self) -> str:
        """Without the names of those that are equal."""
        words = f"{self.equal} equal to the source's, {self.other} other, {self.new} new, {self.gone} not made"
        more = ", .." if self.other + self.new > len(self.named) else ""
        return words + (f"; of those not equal: {', '.join(self.named)}{more}" if self.named else "")


class Changes:
    """Of one fold.

    Args:
        source: the log.
        topics: the source's.
        recorded: what is meant of it; with no episodes, all.
    """

    def __init__(self, source: Log, topics: Topics, recorded: RecordedEpisodes) -> None:
        self.counts: Counter[str] = Counter()
        """`spans`, `calls` and sampled `tokens` in the episodes made."""
        self._told = {Topic.EPISODES: ChangeCounts(), Topic.TRANSITIONS: ChangeCounts()}
        self._were: dict[tuple[Topic, str], tuple[int, bytes]] = {}
        """(revision, digest) of what was not made again yet."""
        self._found = {(Topic.EPISODES, one.id) for one in recorded.episodes}
        self._found |= {(Topic.TRANSITIONS, id_) for id_ in recorded.order}
        for record in read_to_end(source, topics.name(Topic.EPISODES)):
            if (episode := made_of(record.headers, MadeOf)) is not None:
                self._was(Topic.EPISODES, episode.id, episode.revision, record.value or b"")
        for record in read_to_end(source, topics.name(Topic.TRANSITIONS)):
            if (group := made_of(record.headers, GroupMadeOf)) is not None:
                self._was(Topic.TRANSITIONS, group.group, 0, record.value or b"")

    def _was(self, topic: Topic, id_: str, revision: int, value: bytes) -> None:
        known = self._were.get((topic, id_))
        if (not self._found or (topic, id_) in self._found) and (known is None or known[0] < revision):
            self._were[topic, id_] = revision, _digest(topic, value)

    def add_output(self, output: Output) -> None:
        """One more record that was made."""
        if output.topic is Topic.EPISODES:
            episode = EPISODES.decode(output.value)
            self.counts["spans"] += episode.num_spans
            self.counts["calls"] += len(episode.calls)
            self.counts["tokens"] += sum(call.num_sampled for call in episode.calls)
            self._compare(Topic.EPISODES, episode.episode_id, output.value)
        elif output.topic is Topic.TRANSITIONS and (id_ := group_id_of(output.value)) is not None:
            self._compare(Topic.TRANSITIONS, id_, output.value)

    def _compare(self, topic: Topic, id_: str, value: bytes) -> None:
        told, was = self._told[topic], self._were.pop((topic, id_), None)
        if was is not None and was[1] == _digest(topic, value):
            told.equal += 1
            return
        told.other += was is not None
        told.new += was is None
        if len(told.named) < _TOLD:
            told.named.append(id_)

    def totals(self) -> tuple[ChangeCounts, ChangeCounts]:
        """(episodes, groups), at the end."""
        for topic, told in self._told.items():
            told.gone = sum(one is topic for one, _ in self._were)
        return self._told[Topic.EPISODES], self._told[Topic.TRANSITIONS]


def _digest(topic: Topic, value: bytes) -> bytes:
    """Of what it says, whatever rules it names."""
    try:
        if topic is Topic.EPISODES:
            value = EPISODES.encode(msgspec.structs.replace(EPISODES.decode(value), air_rules=""))
        else:
            summary, rows = decode_group(value)
            value = encode_group(msgspec.structs.replace(summary, air_rules=()), rows)
    except RecordError:
        pass  # of another release: as it is
    return hashlib.sha256(value).digest()
