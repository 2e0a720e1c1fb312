"""When the clock may propose to close an episode; it only proposes, the fold acts on the record.

In: open episodes and the time now. Out: those that are due, with the reason. The clock lives in memory and starts
when a worker first looks at an episode, so a restart only makes proposals later.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator

from ..config import StreamsConfig
from ..stage_fold import CROWDED, REPEAT_S
from .open_episode import OpenEpisode, WaitState

_FORWARD_SHARE = 4
"""Of `idle_s`, a trace waits for a second key before it is forwarded."""


def due(episodes: Collection[OpenEpisode], now_s: float, config: StreamsConfig) -> Iterator[tuple[OpenEpisode, str]]:
    """(episode, reason): `deadline` after an end, or of a captured episode that does not end; `idle` without any
    runner; `bound` when too many are open."""
    reasons: dict[str, str] = {}
    for episode in episodes:
        if episode.silent_since_s is None:
            episode.silent_since_s = now_s
        if episode.first_seen_s is None:
            episode.first_seen_s = now_s
        if episode.end is not None and episode.ended_at_s is None:
            episode.ended_at_s = now_s
        reasons[episode.episode_id] = _reason(episode, now_s, config)
    num_over = len(episodes) - int(CROWDED * config.max_open_episodes)
    strays = [episode for episode in episodes if not episode.attempt]
    for episode in heapq.nsmallest(num_over, strays, key=lambda stray: (stray.silent_since_s or 0.0, stray.episode_id)):
        reasons[episode.episode_id] = reasons[episode.episode_id] or "bound"
    for episode in episodes:
        reason = reasons[episode.episode_id]
        if reason and now_s >= episode.next_proposal_s:
            episode.next_proposal_s = now_s + REPEAT_S
            yield episode, reason


def _reason(episode: OpenEpisode, now_s: float, config: StreamsConfig) -> str:
    waiting = episode.waiting()
    if waiting is WaitState.SILENCE:
        return _of_silence(episode, now_s, config)
    patience_s = config.deadline_s if waiting is WaitState.UNCOUNTED else config.incomplete_s
    return "deadline" if _is_over(episode.ended_at_s, patience_s, now_s) else ""


def _of_silence(episode: OpenEpisode, now_s: float, config: StreamsConfig) -> str:
    """Of an episode of which no runner has spoken."""
    if episode.attempt is not None:
        return "idle" if _is_over(episode.silent_since_s, config.orphan_s, now_s) else ""
    idle_s, deadline_s = _patience(episode, config)
    to = episode.target()[0] if episode.links and episode.num_spans else None
    if to is not None and (episode.links.are_sure_of(to) or (episode.is_whole() and not episode.is_at_work)):
        # It only goes elsewhere, and has to be there before that conversation falls silent too.
        return "idle" if _is_over(episode.silent_since_s, idle_s / _FORWARD_SHARE, now_s) else ""
    if _is_over(episode.first_seen_s, deadline_s, now_s):
        return "deadline"
    return "idle" if not episode.is_at_work and _is_over(episode.silent_since_s, idle_s, now_s) else ""


def _patience(episode: OpenEpisode, config: StreamsConfig) -> tuple[float, float]:
    """(`idle_s`, `deadline_s`) of a captured episode: the longest that one of its services asks for."""
    own = [config.services[name] for name in episode.services if name in config.services]
    idle_s = max((one.idle_s for one in own if one.idle_s is not None), default=config.idle_s)
    deadline_s = max((one.deadline_s for one in own if one.deadline_s is not None), default=config.captured_deadline_s)
    return idle_s, deadline_s


def _is_over(since_s: float | None, patience_s: float, now_s: float) -> bool:
    return since_s is not None and now_s - since_s >= patience_s
