"""Which part of a source's log a replay reads, and how much that is.

In: the request, the source's log. Out: a History: which episodes, and from where to where each partition is read.
Invariant: fixed when it is asked, whatever is appended meanwhile. Failure: ConfigurationError where nothing
is meant, or nothing of it is left.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from typing import Any

from tracegrad.consumers.history.read_recorded import read_recorded
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.replay import History
from tracegrad.consumers.history.selection import Window, bounds_of, chosen, fitting
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.log.protocol import Offsets, TopicPartition
from tracegrad.schemas.topics import INPUTS, Stage

from ..run.wiring import Wiring
from .request import ReplayRequest

logger = logging.getLogger(__name__)


def select_history(request: ReplayRequest, source: Wiring) -> History:
    """What is to be read of the source. Blocks."""
    log, topics = source.log(is_history=True), source.topics
    # First: of a live source, what episodes were made of lies there before them.
    found = RecordedEpisodes() if request.reclose else read_recorded(log, topics, source.keys)
    window, kept = window_of(source, request.begin_ms, request.end_ms)
    if request.where and not found.episodes:
        raise ConfigurationError(
            f"--where: expected episodes of run {source.record.name} to choose by what stands on them, got none"
        )
    if request.grader and not request.reclose and not found.episodes:
        raise ConfigurationError(
            f"--grader: expected episodes of run {source.record.name}, whose outputs could be graded, got none"
        )
    _tell_cut(found, kept)
    recorded = chosen(
        found, window, fitting(log, topics, request.where, source.settings.policy.name) if request.where else None
    )
    gone = _gone(kept, source.run_dir.starts)
    if found.episodes and not recorded.episodes:
        raise ConfigurationError(
            f"{request.asked}: expected groups that are meant so, got none of {len(found.episodes)} episodes{gone}"
        )
    names = sorted({where.topic for where in kept})
    bounds = bounds_of(recorded, window, kept, source.run_dir.starts)
    if not any(at.end > at.begin for at in bounds.values()):
        raise ConfigurationError(
            f"{request.asked}: expected records of run {source.record.name} on {', '.join(names)}, got none{gone}"
        )
    return History(bounds=bounds, recorded=recorded)


def window_of(source: Wiring, begin_ms: int | None, end_ms: int | None) -> tuple[Window, dict[TopicPartition, Offsets]]:
    """What of the raw topics was written from one time to another, and all that there is of them now."""
    log = source.log(is_history=True)
    run_dir = source.run_dir
    raw = [name for topic in INPUTS[Stage.NORMALIZE] if run_dir.has_topic(name := source.topics.name(topic))]
    kept = {TopicPartition(name, number): at for name in raw for number, at in log.offsets(name).items()}
    kept |= {where: Offsets(kept[where].begin, min(kept[where].end, end)) for where, end in run_dir.ends.items()}
    begin, end = (
        source.kafka().admin.offsets_at(kept, at_ms) if at_ms is not None else None for at_ms in (begin_ms, end_ms)
    )
    return Window(begin=begin, end=end), kept


def _gone(kept: Mapping[TopicPartition, Offsets], began: Mapping[TopicPartition, int]) -> str:
    """What retention has taken, in words; nothing where nothing is missing."""
    lost = [
        f"{at.begin - began.get(where, 0)} records before offset {at.begin} of {where.topic},{where.partition}"
        for where, at in sorted(kept.items())
        if at.begin > began.get(where, 0)
    ]
    return f"; retention has taken {', '.join(lost)}, which nothing brings back" if lost else ""


def _tell_cut(recorded: RecordedEpisodes, kept: Mapping[TopicPartition, Offsets]) -> None:
    """A log that ends before what was made of it was cut, by hand or by a disk: nothing else says so."""
    for where, at in sorted(recorded.bounds.items()):
        end = kept.get(where, Offsets(0, 0)).end
        if at.end > end:
            logger.warning(
                "expected %s,%d up to offset %d, of which episodes were made, got its end at %d: the log was cut; put "
                "its segments back from a copy, else these episodes are made of the rest",
                where.topic,
                where.partition,
                at.end,
                end,
            )


def told_size(history: History, source: Wiring) -> tuple[dict[str, Any], list[str]]:
    """How much there is to read: for machines, and for people."""
    records: Counter[str] = Counter()
    for where, at in history.bounds.items():
        records[where.topic] += at.end - at.begin
    recorded = history.recorded
    fields = {"records": dict(records), "episodes": len(recorded.episodes), "groups": len(recorded.order)}
    lines = [
        f"run {source.record.name}: {records.total()} records to read",
        *(f"  {topic}: {number}" for topic, number in sorted(records.items())),
        f"  of which {len(recorded.episodes)} episodes and {len(recorded.order)} groups were made",
        "nothing was folded or written; --dry-run=full folds",
    ]
    return fields, lines
