"""What of a history is meant: episodes by the time at which their groups began, or by what stands on them, and all that
these are made of.

In: what the source recorded, a window, the terms of `--where` (schemas/log/where.py) and bodies on `episodes`. Out: the
episodes that are meant, and from where to where each partition is read. Invariants: a group is chosen whole, by its
first record, and by any of its episodes that fits; as much is read before the window's begin and behind its end as its
episodes need; of an episode the record of the greatest revision counts, then the first, as for all that is made again.
Failure: a record that cannot be read fits nothing; ConfigurationError for terms that a mode may not choose by.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

import msgspec

from tracegrad.schemas.errors import ConfigurationError, RecordError
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.made_of import MadeOf, made_of
from tracegrad.schemas.log.protocol import Log, Offsets, TopicPartition
from tracegrad.schemas.log.where import Term, matches, parse
from tracegrad.schemas.topics import Topic, Topics

from ..episode_facts import BEFORE, KINDS, SETTLED, EpisodeFacts, read_facts
from .recorded import RecordedEpisode, RecordedEpisodes

logger = logging.getLogger(__name__)


def terms_of(text: str, *, may_see_outcome: bool) -> tuple[Term, ...]:
    """What `--where` says. Raises ConfigurationError.

    Args:
        may_see_outcome: what is chosen is trained on by its likelihood, and not compared with what was left out.
    """
    terms = parse(text, KINDS)
    if settled := sorted({term.field for term in terms}.intersection(SETTLED)):
        raise ConfigurationError(
            f"--where: expected facts that stand on an episode's own record, got {', '.join(settled)}, which only the "
            "whole log tells (`tracegrad episodes --where`)"
        )
    seen = sorted({term.field for term in terms if term.field not in BEFORE})
    if seen and not may_see_outcome:
        raise ConfigurationError(
            f"--where: expected facts known before the outcome ({', '.join(BEFORE)}), got {', '.join(seen)}: episodes "
            "chosen by what came of them make good luck look like a good policy, since a gradient of returns compares "
            "them with those left out; only --mode filter, which learns to repeat what was good, may choose by it"
        )
    return terms


def fitting(log: Log, topics: Topics, terms: Sequence[Term], policy: str) -> frozenset[str]:
    """Ids of the episodes for which all terms hold. Blocks. Raises UnavailableError."""
    found: dict[str, tuple[int, bool]] = {}
    num_unread = 0
    for record in read_to_end(log, topics.name(Topic.EPISODES)):
        made = made_of(record.headers, MadeOf)
        if made is None or (made.id in found and found[made.id][0] >= made.revision):
            continue
        try:
            found[made.id] = made.revision, fits(read_facts(record, policy), terms)
        except RecordError:
            num_unread += 1
    if num_unread:
        logger.warning("--where: %d records of episodes cannot be read, and fit nothing", num_unread)
    return frozenset(id_ for id_, (_, is_meant) in found.items() if is_meant)


def fits(facts: EpisodeFacts, terms: Sequence[Term]) -> bool:
    """Whether all terms hold of an episode."""
    return all(matches(term, *facts.values_of(term.field)) for term in terms)


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets between which a history is meant: where a time lies in each partition. None: no bound."""

    begin: Mapping[TopicPartition, int] | None = None
    end: Mapping[TopicPartition, int] | None = None


def chosen(recorded: RecordedEpisodes, window: Window, fitting: Collection[str] | None = None) -> RecordedEpisodes:
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
    return RecordedEpisodes(kept, (id_ for id_ in recorded.order if id_ in ids))


def _begins_within(episodes: list[RecordedEpisode], window: Window) -> bool:
    parts = [part for episode in episodes for part in episode.parts]
    begin, end = window.begin or {}, window.end
    is_early = any(part.begin < begin.get(part.where, 0) for part in parts)
    is_late = end is not None and all(part.begin >= end.get(part.where, part.end) for part in parts)
    return not is_early and not is_late


def bounds_of(
    recorded: RecordedEpisodes,
    window: Window,
    kept: Mapping[TopicPartition, Offsets],
    began: Mapping[TopicPartition, int],
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
