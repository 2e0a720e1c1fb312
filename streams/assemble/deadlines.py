"""When the clock may propose to close an episode; it only proposes, the fold acts on the record.

In: open episodes and the time now. Out: those that are due, with the reason. The clock lives in memory and starts
when a worker first looks at an episode, so a restart only makes proposals later.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ..config import StreamsConfig
from .open_episode import OpenEpisode, Waiting

__all__ = ["Deadlines"]

_CROWDED = 0.9
"""Share of max_open_episodes above which the longest-silent episodes without rollout are proposed."""
_REPEAT_S = 30.0
"""A proposal that led to nothing by then was lost with a worker; it is made again."""


class Deadlines:
    """The deadlines of one configuration."""

    def __init__(self, config: StreamsConfig) -> None:
        self._config = config

    def due(self, episodes: Iterable[OpenEpisode], now_s: float) -> Iterator[tuple[OpenEpisode, str]]:
        """(episode, reason): `deadline` after an end, `idle` without any runner, `bound` when too many are open."""
        looked = list(episodes)
        due: dict[str, tuple[OpenEpisode, str]] = {}
        for episode in looked:
            self._look(episode, now_s)
            reason = self._reason(episode, now_s)
            if reason:
                due[episode.episode_id] = (episode, reason)
        for episode in self._crowd(looked):
            due.setdefault(episode.episode_id, (episode, "bound"))
        for episode, reason in due.values():
            if now_s >= episode.next_proposal_s:
                episode.next_proposal_s = now_s + _REPEAT_S
                yield episode, reason

    def _look(self, episode: OpenEpisode, now_s: float) -> None:
        if episode.is_touched or episode.silent_since_s is None:
            episode.is_touched = False
            episode.silent_since_s = now_s
        if episode.end is not None and episode.ended_at_s is None:
            episode.ended_at_s = now_s

    def _reason(self, episode: OpenEpisode, now_s: float) -> str:
        waiting = episode.waiting()
        if waiting is Waiting.SILENCE:
            patience_s = self._config.orphan_s if episode.attempt else self._config.idle_s
            return "idle" if now_s - (episode.silent_since_s or 0.0) >= patience_s else ""
        if episode.ended_at_s is None:
            return ""
        patience_s = self._config.deadline_s if waiting is Waiting.UNCOUNTED else self._config.incomplete_s
        return "deadline" if now_s - episode.ended_at_s >= patience_s else ""

    def _crowd(self, episodes: list[OpenEpisode]) -> list[OpenEpisode]:
        num_over = len(episodes) - int(_CROWDED * self._config.max_open_episodes)
        if num_over <= 0:
            return []
        strays = [episode for episode in episodes if not episode.attempt]
        strays.sort(key=lambda episode: (episode.silent_since_s or 0.0, episode.episode_id))
        return strays[:num_over]
