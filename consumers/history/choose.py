"""What of a history is meant: episodes by the time at which their groups began, or by what stands on them, and all that
these are made of. Pure.

In: what the source recorded, a window, ids that fit. Out: the episodes that are meant, and from where to where each
partition is read. Invariant: a group is chosen whole, by its first record, and by any of its episodes that fits; as
much is read before the window's begin and behind its end as its episodes need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from tracegrad.schemas.log.protocol import Offsets, TopicPartition

from .recorded import Recorded, RecordedEpisode

__all__ = ["Window", "bounds_of", "chosen"]


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets between which a history is meant: where a time lies in each partition. None: no bound."""

    begin: Mapping[TopicPartition, int] | None = None
    end: Mapping[TopicPartition, int] | None = None


def chosen(recorded: Recorded, window: Window, fitting: Collection[str] | None = None) -> Recorded:
    """The episodes of the groups that began within the window, and of which one is `fitting`, by id; None: any."""
    if window.begin is None and window.end is None and fitting is None:
        return recorded
    groups: dict[str, list[RecordedEpisode]] = {}
    for episode in recorded.episodes:
        groups.setdefault(episode.group, []).append(episode)
    wanted = {
        group
        for group, episodes in groups.items()
        if _begins_within(episodes, window) and (fitting is None or any(one.id in fitting for one in episodes))
    }
    kept = [one for one in recorded.episodes if one.group in wanted]
    # A group of captured ones bears its episode's id. For one that is not chosen nobody is to wait.
    ids = wanted | {one.id for one in kept}
    return Recorded(kept, (id_ for id_ in recorded.order if id_ in ids))


def _begins_within(episodes: list[RecordedEpisode], window: Window) -> bool:
    parts = [part for episode in episodes for part in episode.parts]
    begin, end = window.begin or {}, window.end
    is_early = any(part.begin < begin.get(part.where, 0) for part in parts)
    is_late = end is not None and all(part.begin >= end.get(part.where, part.end) for part in parts)
    return not is_early and not is_late


def bounds_of(
    recorded: Recorded, window: Window, kept: Mapping[TopicPartition, Offsets], began: Mapping[TopicPartition, int]
) -> dict[TopicPartition, Offsets]:
    """From where to where each partition of the raw topics is read.

    Args:
        recorded: the episodes that are meant.
        kept: what there is of each partition.
        began: where the source itself began, on topics that it shares with others.
    """
    meant = {}
    for where, at in kept.items():
        begin, end = began.get(where, 0), at.end
        if window.begin is not None:
            needed = recorded.bounds.get(where, Offsets(at.end, at.end)).begin
            begin = max(begin, min(window.begin.get(where, begin), needed))
        if window.end is not None:
            end = max(window.end.get(where, end), recorded.bounds.get(where, Offsets(0, 0)).end)
        begin = max(at.begin, begin)
        meant[where] = Offsets(begin, max(begin, min(at.end, end)))
    return meant
