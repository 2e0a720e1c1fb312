"""Where a run reads from: chosen when it is made, kept in its folder, found again where Kafka forgot.

    begin_run   a new run's TopicStarts, which its folder keeps before anything is committed
    positions   at every start: what to commit where consumer groups have no offset, or one that they cannot go on from

Kafka drops the offsets of a group that nobody has been in for a week (`offsets.retention.minutes`), and retention takes
records of `episode_events` from which open episodes were folded. Both are derived: a stage goes back to where the run
began, and the markers name all that was closed before, so that nothing is emitted twice. In: the log, the run's topics,
what its folder keeps. Out: offsets. Invariant: no record is passed over; a partition without an offset is read from 0.
Failure: LogGapError with the remedy, before any process is started.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from tracegrad.schemas.errors import ConfigurationError, LogGapError
from tracegrad.schemas.log.protocol import Log, Offsets, TopicPartition
from tracegrad.schemas.topics import INPUTS, REGISTRY, Stage, Topic, Topics

logger = logging.getLogger(__name__)

ANOTHER_RUN = "start another run, by another name (--run NAME)"


class TopicStart(msgspec.Struct, frozen=True):
    """A topic as the run found or made it."""

    id: str
    """Kafka's own; a topic made anew under the same name has another. Empty where the cluster gives none."""
    offsets: tuple[int, ...] = ()
    """Of a raw topic: where the run began, in each partition that it had then."""
    ends: tuple[int, ...] = ()
    """Of a topic that a source run was made of (history/foreign.py): where it ends, in each partition."""


class _GroupPosition(NamedTuple):
    """A partition as a group finds it."""

    committed: int | None
    kept: Offsets

    @property
    def is_expired(self) -> bool:
        """Whether retention took records that the group had not done with."""
        return (self.committed or 0) < self.kept.begin


def begin_run(
    log: Log, topics: Topics, *, start: Callable[[str], tuple[int, ...]] | None = None
) -> dict[str, TopicStart]:
    """Where a new run begins, by topic: it takes what comes from now on. Its topics must exist.

    Args:
        start: of a topic of spans or log records the offsets at which the run begins instead.
    Raises:
        ConfigurationError: topics of this name hold another run's records.
    """
    found = {}
    for spec in REGISTRY:
        name = topics.name(spec.topic)
        kept = log.offsets(name)
        offsets: tuple[int, ...] = ()
        if spec.topic in INPUTS[Stage.NORMALIZE]:
            offsets = tuple(kept[number].end for number in sorted(kept))
            if start is not None and spec.topic in (Topic.OTLP_SPANS, Topic.OTLP_LOGS):
                offsets = start(name)
        elif not spec.raw and any(at.end for at in kept.values()):
            raise ConfigurationError(
                f"expected topic {name!r} of a new run empty, got {sum(at.end for at in kept.values())} records: a run "
                f"{topics.run!r} was made from another folder; name that one, or {ANOTHER_RUN}"
            )
        found[name] = TopicStart(log.topic_id(name), offsets)
    return found


def start_offsets(starts: Mapping[str, TopicStart]) -> dict[TopicPartition, int]:
    """Where the run began on raw topics; partitions that were added later are not named, and begin at 0."""
    return {
        TopicPartition(name, partition): offset
        for name, start in starts.items()
        for partition, offset in enumerate(start.offsets)
    }


def end_offsets(starts: Mapping[str, TopicStart]) -> dict[TopicPartition, int]:
    """Where a source of somebody's topics ends; nothing of any other run."""
    return {
        TopicPartition(name, partition): offset
        for name, start in starts.items()
        for partition, offset in enumerate(start.ends)
    }


def positions(
    log: Log, topics: Topics, starts: Mapping[str, TopicStart], *, max_closed_ids: int
) -> dict[Stage, dict[TopicPartition, int]]:
    """The offsets to commit before any process of the run starts, normalize's first; a new run's are its starts.

    Args:
        starts: as `begin_run` found them.
        max_closed_ids: of `[streams]`: how many markers a stage can know.
    Raises:
        LogGapError: some stage can neither go on exactly nor go back.
    """
    seen = {stage: _look(log, topics, stage) for stage in INPUTS}
    began = start_offsets(starts)
    moved = {
        stage: {where: began.get(where, 0) for where, at in found.items() if at.committed is None}
        for stage, found in seen.items()
    }
    if expired := {where: at.kept.end for where, at in seen[Stage.ASSEMBLE].items() if at.is_expired}:
        # What is left of them is passed over: with a proposal to close among it, half an episode would be closed.
        moved[Stage.ASSEMBLE] |= expired
        moved[Stage.NORMALIZE] = {where: began.get(where, 0) for where in seen[Stage.NORMALIZE]}
    for stage, found in seen.items():
        for where, at in found.items():
            _require_kept(topics.group(stage), where, moved[stage].get(where, at.committed or 0), at.kept)
    back = {
        stage
        for stage, found in seen.items()
        for where, to in moved[stage].items()
        # A partition that was added to a raw topic since has nothing that was read before.
        if to < found[where].kept.end and (stage is not Stage.NORMALIZE or where in began)
    }
    if back & {Stage.NORMALIZE, Stage.ASSEMBLE}:
        _require_markers(log, topics.name(Topic.CLOSED_EPISODES), max_closed_ids)
    if Stage.CREDIT in back:
        _require_markers(log, topics.name(Topic.CLOSED_GROUPS), max_closed_ids)
    is_new = not any(at.end for at in log.offsets(topics.name(Topic.CLOSED_EPISODES)).values())
    for stage in sorted(back) if not is_new else ():
        logger.warning("run %s: Kafka keeps no position of %s, which reads from where the run began", topics.run, stage)
    return {
        stage: {where: to for where, to in moved[stage].items() if to != (found[where].committed or 0)}
        for stage, found in seen.items()
    }


def _look(log: Log, topics: Topics, stage: Stage) -> dict[TopicPartition, _GroupPosition]:
    found = {}
    for topic in INPUTS[stage]:
        name = topics.name(topic)
        # Committed first: it only grows, so that an end read later can only be further on.
        committed = log.committed(topics.group(stage), name)
        for partition, kept in log.offsets(name).items():
            found[TopicPartition(name, partition)] = _GroupPosition(committed.get(partition), kept)
    return found


def _require_kept(group: str, where: TopicPartition, offset: int, kept: Offsets) -> None:
    if kept.begin <= offset <= kept.end:
        return
    why = (
        f"records were deleted unread; raise its retention.ms beyond the longest pause, and {ANOTHER_RUN}"
        if offset < kept.begin
        else f"the log has lost its end; restore it, or {ANOTHER_RUN}"
    )
    raise LogGapError(
        f"expected offset {offset}, where group {group!r} goes on, within [{kept.begin}, {kept.end}] of "
        f"{where.topic!r} partition {where.partition}, got it outside: {why}"
    )


def _require_markers(log: Log, name: str, max_closed_ids: int) -> None:
    """Raises LogGapError unless a stage that goes back can know all that it closed."""
    kept = log.offsets(name).values()
    count = sum(at.end - at.begin for at in kept)
    if any(at.begin for at in kept):
        raise LogGapError(
            f"expected all markers on {name!r}, by which a stage that lost its position knows what it closed, got "
            f"the oldest deleted: {ANOTHER_RUN}, and raise retention.bytes of that topic"
        )
    if count > max_closed_ids:
        raise LogGapError(
            f"expected at most [streams] max_closed_ids = {max_closed_ids} markers on {name!r}, of which a stage that "
            f"lost its position must know each, got {count}: set it to {count} and start the run again"
        )
