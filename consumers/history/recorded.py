"""What a source run recorded of its episodes: of which raw records each was made, and in which order groups trained.

In: one `RecordedEpisode` an episode, the ids of groups. Out: to which episodes the facts of a raw record belong, asked
in the order of each partition. Invariant: an episode is whole when exactly the records that it was made of have been
read; nothing here looks at a clock. Memory: a few hundred bytes an episode. Failure: records that retention has taken
are counted as missing, so that nobody waits for them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracegrad.schemas.log.protocol import Offsets, Position, TopicPartition


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Neighbouring records of a partition, [begin, end), and whose facts of theirs are meant."""

    where: TopicPartition
    begin: int
    end: int
    key: str
    """The episode's or its conversation's; another trace's, whose facts were forwarded."""


class Claim(NamedTuple):
    """What an episode was made of in a record."""

    episode: int
    """Its number."""
    key: str
    """Whose facts."""
    is_feedback: bool
    """The record itself, which is feedback that came behind the close."""


@dataclass(slots=True)
class RecordedEpisode:
    """One episode of the source.

    Example: RecordedEpisode(id="7c1f..a001", key="7c1f..a001", closed_by="complete", group="7c1f..g3", parts=(...)).
    """

    id: str
    key: str
    """The episode's id, of a captured one that of its conversation."""
    closed_by: str
    group: str
    """The group that it belongs to, of a captured one its conversation: what is chosen is chosen whole."""
    parts: tuple[RecordRange, ...]
    """Of what it was made; forgotten when it is known what of that is left."""
    said: tuple[RecordRange, ...] = ()
    """Of a captured one that trained: the feedback that came behind its close and counted."""
    is_captured: bool = False
    is_member: bool = True
    """Of an attempt: whether its group, as the source wrote it, has it; False of one that was superseded, or that came
    behind a group that closed in part."""
    is_exact: bool = True
    """Whether the parts name nothing but what it was made of; else what lies between is named with it."""
    num_awaited: int = field(init=False)
    """Records that have not been read, each as often as it is named."""
    num_missing: int = 0
    """Records that are gone, or that were never named for want of room: of these at least so many."""

    def __post_init__(self) -> None:
        self.num_awaited = sum(part.end - part.begin for part in (*self.parts, *self.said))


class RecordedEpisodes:
    """All episodes of the source that are to be folded again.

    Args:
        episodes: in the order of their records.
        order: ids of groups, in the order in which the source trained them; each counts where it stands first.
    """

    def __init__(self, episodes: Iterable[RecordedEpisode] = (), order: Iterable[str] = ()) -> None:
        self.episodes: Sequence[RecordedEpisode] = tuple(episodes)
        self.order: Sequence[str] = tuple(dict.fromkeys(order))
        ranges: dict[TopicPartition, list[tuple[int, int, Claim]]] = {}
        for number, episode in enumerate(self.episodes):
            for parts, is_feedback in ((episode.parts, False), (episode.said, True)):
                claims = {key: Claim(number, key, is_feedback) for key in {part.key for part in parts}}
                for part in parts:
                    ranges.setdefault(part.where, []).append((part.begin, part.end, claims[part.key]))
        self._cursors = {where: _Cursor(found) for where, found in ranges.items()}

    @property
    def bounds(self) -> Mapping[TopicPartition, Offsets]:
        """From the first record that any of them needs to behind the last."""
        return {where: cursor.bounds for where, cursor in self._cursors.items()}

    def at(self, position: Position) -> Sequence[Claim]:
        """What episodes were made of it; in each partition offsets are asked in
        ascending order."""
        cursor = self._cursors.get(TopicPartition(position.topic, position.partition))
        return cursor.at(position.offset) if cursor is not None else ()

    def is_whole_with(self, number: int) -> bool:
        """One more of its records was read; whether it was the last."""
        episode = self.episodes[number]
        episode.num_awaited -= 1
        return episode.num_awaited == 0

    def give_up(self, kept: Mapping[TopicPartition, Offsets]) -> int:
        """What the log still has: nobody waits for the rest. How many records that are."""
        num_gone = 0
        for episode in self.episodes:
            for part in (*episode.parts, *episode.said):
                at = kept.get(part.where, Offsets(0, 0))
                here = max(0, min(part.end, at.end) - max(part.begin, at.begin))
                gone = part.end - part.begin - here
                episode.num_awaited -= gone
                episode.num_missing += gone
                num_gone += gone
            episode.parts = episode.said = ()
        return num_gone


class _Cursor:
    """Goes through a partition, and forgets what lies behind it."""

    def __init__(self, ranges: list[tuple[int, int, Claim]]) -> None:
        ranges.sort(reverse=True)
        self._ranges = ranges
        self.bounds = Offsets(ranges[-1][0], max(end for _, end, _ in ranges))
        self._here: list[tuple[int, Claim]] = []
        """(end, claim) of the ranges that reach up to where it stands, or beyond."""

    def at(self, offset: int) -> Sequence[Claim]:
        self._here = [one for one in self._here if one[0] > offset]
        while self._ranges and self._ranges[-1][0] <= offset:
            _, end, claim = self._ranges.pop()
            if end > offset:
                self._here.append((end, claim))
        return [claim for _, claim in self._here]
