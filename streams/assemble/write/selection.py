"""Which episodes of no runner a run takes, by `[select]`; judged after the join.

In: an OpenEpisode that closes. Out: whether it is taken. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from ...config import SelectConfig
from ..open_episode import OpenEpisode

__all__ = ["is_selected"]


def is_selected(episode: OpenEpisode, select: SelectConfig) -> bool:
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
