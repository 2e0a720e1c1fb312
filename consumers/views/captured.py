"""Of agents that people run themselves: who rates, what can train, how old it is by then; and why calls and spans of
one agent do not meet in one episode.

In: call records, episodes, the markers of closed groups, in any order between them; training steps for the pace. Out:
`TrafficLine`; one sentence with its remedy, or nothing. People who rate are not all people: a share that differs
between versions biases what is compared. A call whose agent sends no `traceparent`, and whose response no span names,
makes an episode of calls alone, and its spans one of spans alone: nothing is lost, and nothing fits. Invariants: pure;
bounded, of the newest conversations alone; no word of calls and spans while both kinds of episode do not stand side by
side, since an agent without spans, and one that calls no model, are no fault. Failure: none.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import msgspec

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.records.calls import CallRecord, Purpose
from tracegrad.schemas.records.episodes import ClosedMarker, Episode
from tracegrad.schemas.records.training import TrainingStep

_CONVERSATIONS = 2_000
_IDS = 10_000
_PACE_STEPS = 10
_UNSCORED = "unscored"
_NO_PARENT = (
    "the calls bear no `traceparent`, so the agent's HTTP client is not instrumented or has no propagator. openai >= 3 "
    "uses httpx2: pip install 'opentelemetry-instrumentation-httpx>=0.65b0', whose HTTPX2ClientInstrumentor "
    "`opentelemetry-instrument` loads; openai < 3 and anthropic: the same package's HTTPXClientInstrumentor; other "
    "clients: theirs; and OTEL_PROPAGATORS=tracecontext,baggage, which `tracegrad env` prints"
)
_NO_SPANS = (
    "the calls name traces of which no span arrives: they are made in a second process, or by spans that are sampled "
    "out or sent elsewhere. Give that process the variables of `tracegrad env` and run it too under "
    "`opentelemetry-instrument`, with OTEL_TRACES_SAMPLER=always_on"
)


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


class CapturedTraffic:
    """The fold."""

    def __init__(self) -> None:
        self._calls: BoundedMap[str, tuple[int | None, int, int]] = BoundedMap(_CONVERSATIONS)
        """Conversation -> newest version of its calls, those that can train, all of them."""
        self._closed: BoundedMap[str, bool] = BoundedMap(_CONVERSATIONS)
        """Conversation -> whether it was rated."""
        self._has_parent: BoundedMap[str, bool] = BoundedMap(_IDS)
        """Call -> whether it came with a `traceparent`."""
        self._calls_alone: BoundedMap[str, tuple[str, ...]] = BoundedMap(_IDS)
        """Episode without spans -> its calls."""
        self._spans_alone: BoundedMap[str, tuple[str, ...]] = BoundedMap(_IDS)
        """Episode without calls -> whose spans."""

    def add_call(self, call: CallRecord) -> None:
        """A call of anybody's."""
        if call.rollout_id is None:
            self._has_parent[call.call_id] = call.parent_span_id is not None

    def add_episode(self, episode: Episode) -> None:
        """An episode of anybody's."""
        id_, calls = episode.episode_id, episode.calls
        if episode.rollout_id is not None:
            return
        if calls and episode.purpose is Purpose.UNKNOWN:
            versions = [span.version for call in calls for span in call.versions]
            num_trainable = sum(bool(call.versions) and not call.masked for call in calls)
            self._calls[id_] = (max(versions, default=None), num_trainable, len(calls))
        if episode.calls_omitted:
            return
        if calls and not episode.num_spans:
            self._calls_alone[id_] = tuple(call.call_id for call in calls)
        elif episode.num_spans and not calls:
            self._spans_alone[id_] = episode.services

    def add_marker(self, marker: ClosedMarker) -> bool:
        """A group that has closed; whether it is new. One of tasks is passed over when the line is made, for no
        episode has its id."""
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

    def diagnosis(self) -> str:
        """Why calls and spans do not meet, and what to do; empty while nothing is wrong."""
        if not self._calls_alone or not self._spans_alone:
            return ""
        ids = (call for calls in self._calls_alone.values() for call in calls)
        parents = Counter(self._has_parent[id_] for id_ in ids if id_ in self._has_parent)
        if not parents:
            return ""
        services = sorted({name for names in self._spans_alone.values() for name in names}) or ["?"]
        why = _NO_PARENT if parents[False] >= parents[True] else _NO_SPANS
        return (
            f"calls and spans (of {', '.join(services[:3])}) arrive and do not join, each in episodes of its own: {why}"
        )


def versions_per_s(steps: Sequence[TrainingStep], *, every: int) -> float | None:
    """The pace of the last steps, of whose updates each `every`-th makes a version; None before there are two."""
    last = [step for step in steps[-_PACE_STEPS:] if step.ended_at_ms]
    if len(last) < 2 or last[-1].ended_at_ms <= last[0].ended_at_ms:
        return None
    num_updates = sum(step.is_updated for step in last[1:])
    return 1000 * num_updates / every / (last[-1].ended_at_ms - last[0].ended_at_ms)
