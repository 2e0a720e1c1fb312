"""Of a run that trains on captured traffic: how many rate, by version, what can train, and how old it is by then.

In: episodes and the markers of closed groups, in any order between the two; training steps for the pace. Out:
`TrafficLine`. People who rate are not all people: a share that differs between versions biases what is compared.
Invariants: pure; bounded, of the newest conversations alone. Failure: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import ClosedMarker, Episode
from tracegrad.schemas.records.training import TrainingStep

__all__ = ["RatedShare", "Traffic", "TrafficLine", "versions_per_s"]

_CONVERSATIONS = 2_000
_PACE_STEPS = 10
_UNSCORED = "unscored"


class RatedShare(msgspec.Struct, frozen=True, kw_only=True):
    """Of the conversations that one version ended."""

    version: int
    num_rated: int
    num_closed: int


class TrafficLine(msgspec.Struct, frozen=True, kw_only=True):
    """What a person should know of the newest conversations."""

    num_rated: int
    num_closed: int
    """Whose time for feedback is over."""
    num_trainable: int
    """Calls that no mask keeps from training."""
    num_calls: int
    by_version: tuple[RatedShare, ...]
    """The newest first."""
    versions_behind: float | None
    """How many versions are made while feedback is awaited; None: no pace yet."""

    @property
    def text(self) -> str:
        """One line."""
        shares = ", ".join(f"v{one.version} {one.num_rated}/{one.num_closed}" for one in self.by_version[:3])
        words = [f"rated {self.num_rated} of {self.num_closed} conversations ({shares})"]
        if self.num_trainable < self.num_calls:
            words.append(f"{self.num_trainable} of {self.num_calls} calls can train")
        if self.versions_behind is not None:
            words.append(f"feedback is awaited for {self.versions_behind:.1f} versions")
        return "; ".join(words)


class Traffic:
    """The fold."""

    def __init__(self, *, remembered: int = _CONVERSATIONS) -> None:
        self._calls: BoundedMap[str, tuple[int | None, int, int]] = BoundedMap(remembered)
        """Conversation -> newest version of its calls, those that can train, all of them."""
        self._closed: BoundedMap[str, bool] = BoundedMap(remembered)
        """Conversation -> whether it was rated."""

    def episode(self, episode: Episode) -> None:
        """Takes an episode."""
        if episode.rollout_id is None and episode.purpose is Purpose.UNKNOWN and episode.calls:
            versions = [span.version for call in episode.calls for span in call.versions]
            num_trainable = sum(bool(call.versions) and not call.masked for call in episode.calls)
            self._calls[episode.episode_id] = (max(versions, default=None), num_trainable, len(episode.calls))

    def closed(self, marker: ClosedMarker) -> bool:
        """Takes a group's marker, and tells whether it is new; of a group of tasks it is passed over when the line is
        made, for no episode has its id."""
        is_new = marker.id not in self._closed
        self._closed[marker.id] = marker.disposition != _UNSCORED
        return is_new

    def line(self, versions_behind: float | None) -> TrafficLine | None:
        """Of what is remembered; None before the first conversation has closed."""
        known = {id_: is_rated for id_, is_rated in self._closed.items() if id_ in self._calls}
        if not known:
            return None
        closed, rated = Counter[int](), Counter[int]()
        for id_, is_rated in known.items():
            version = self._calls[id_][0]
            if version is not None:
                closed[version] += 1
                rated[version] += is_rated
        return TrafficLine(
            num_rated=sum(known.values()),
            num_closed=len(known),
            num_trainable=sum(num for _, num, _ in self._calls.values()),
            num_calls=sum(num for _, _, num in self._calls.values()),
            by_version=tuple(
                RatedShare(version=version, num_rated=rated[version], num_closed=closed[version])
                for version in sorted(closed, reverse=True)
            ),
            versions_behind=versions_behind,
        )


def versions_per_s(steps: Sequence[TrainingStep], *, every: int) -> float | None:
    """The pace of the last steps, of whose updates each `every`-th makes a version; None before there are two."""
    last = [step for step in steps[-_PACE_STEPS:] if step.ended_at_ms]
    if len(last) < 2 or last[-1].ended_at_ms <= last[0].ended_at_ms:
        return None
    num_updates = sum(step.is_updated for step in last[1:])
    return 1000 * num_updates / every / (last[-1].ended_at_ms - last[0].ended_at_ms)
