"""What becomes of an episode that closes: its record on `episodes`, unless the run does not want it. Pure.

In: the episode, why it closed. Out: records. Which episodes of no runner are wanted says `[select]`, judged after the
join. Invariant: an episode that is too large for a message goes out without its
calls, for its group must still close; a dead letter says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase

import msgspec

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.fold import Output
from tracegrad.schemas.keys import group_key
from tracegrad.schemas.log.made_of import MadeOf, made_of_header
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import CALLS_JOINED_BY, CALLS_NAMED_BY, TOOLS_WITHOUT_ID, Metrics
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Stage, Topic, Topics

from ...config import SelectConfig, StreamRules
from ...stage_fold import dead_letter
from ..open_episode import OpenEpisode
from .write_episode import has_structure, write_episode


def disposition_of(episode: OpenEpisode, rules: StreamRules) -> str:
    """As ClosedMarker.disposition."""
    if episode.event is None and not has_structure(episode):
        return "unattributed"
    if episode.attempt or _is_selected(episode, rules.select):
        return "emitted"
    return "not_selected"


def emit(
    episode: OpenEpisode,
    record: Record,
    closed_by: str,
    *,
    rules: StreamRules,
    topics: Topics,
    metrics: Metrics,
    reward: Callable[[Episode], Episode],
) -> tuple[Output, ...]:
    """The records of an episode; `record` is the input by which it closes, `reward` what AIR makes of it."""
    written = reward(
        write_episode(
            episode,
            closed_by=closed_by,
            reward_sources=rules.reward_sources,
            trains_truncated=rules.select.truncated == "train",
        )
    )
    if num_without := sum(not tool.has_id for made in written.calls for tool in made.tools):
        metrics.add(TOOLS_WITHOUT_ID, num=num_without)
    for metric, rungs in ((CALLS_JOINED_BY, written.num_joined_by), (CALLS_NAMED_BY, written.num_named_by)):
        for rung, num in rungs.items():
            metrics.add(metric, rung, num=num)
    value = EPISODES.encode(written)
    letters: tuple[Output, ...] = ()
    try:
        topics.check_size(Topic.EPISODES, value)
    except RecordError as error:
        # Its group must still close, so the record goes out without what made it too large.
        without = msgspec.structs.replace(written, calls=(), calls_omitted=error.reason, error=str(error))
        value = EPISODES.encode(without)
        letters = (dead_letter(record, error, stage=Stage.ASSEMBLE, value=b""),)
    key = group_key(written.group.id if written.group else None, written.conversation or written.episode_id)
    made = MadeOf(
        id=episode.episode_id,
        key=episode.episode_id if episode.attempt else episode.key,
        group=key.decode(),
        closed_by=closed_by,
        parts=episode.origins.parts(),
    )
    return (Output(topic=Topic.EPISODES, key=key, value=value, headers=made_of_header(made)), *letters)


def _is_selected(episode: OpenEpisode, select: SelectConfig) -> bool:
    """Whether an episode without a rollout is taken (rollouts of other runs are dropped before they get here)."""
    if not select.capture_all and not select.services and not select.agents:
        return False
    if not _is_in_time(episode, select):
        return False
    if select.capture_all:
        return True
    spans = episode.spans
    services = (span.service for span in spans)
    agents = (span.agent_name for span in spans if span.agent_name)
    return _matches(services, select.services) and _matches(agents, select.agents)


def _is_in_time(episode: OpenEpisode, select: SelectConfig) -> bool:
    starts = [span.start_ns for span in episode.spans]
    starts += [fact.call.started_at_ns for fact in episode.calls.values()]
    starts += [fact.call.started_at_ns for fact in episode.context.values()]
    began_ns = min(starts, default=0)
    return (select.from_ns is None or began_ns >= select.from_ns) and (
        select.until_ns is None or began_ns < select.until_ns
    )


def _matches(names: Iterable[str], globs: tuple[str, ...]) -> bool:
    """Whether any name matches any glob; no globs match everything."""
    return not globs or any(fnmatchcase(name, glob) for name in names for glob in globs)
