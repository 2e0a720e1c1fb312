"""Why calls and spans of captured agents do not meet in one episode, told from what arrives.

In: call records and episodes, in any order between the two. Out: one sentence with its remedy, or nothing. A call whose
agent sends no `traceparent`, and whose response no span names, makes an episode of calls alone, and its spans one of
spans alone: nothing is lost, and nothing fits. Invariants: pure; bounded; silent while both kinds do not stand side by
side, since an agent without spans, and one that calls no model, are no fault. Failure: none.
"""

from __future__ import annotations

from collections import Counter

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import Episode

__all__ = ["Joins"]

_IDS = 10_000
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


class Joins:
    """The fold."""

    def __init__(self) -> None:
        self._has_parent: BoundedMap[str, bool] = BoundedMap(_IDS)
        """Captured call -> whether it came with a `traceparent`."""
        self._calls_alone: BoundedMap[str, tuple[str, ...]] = BoundedMap(_IDS)
        """Episode without spans -> its calls."""
        self._spans_alone: BoundedMap[str, tuple[str, ...]] = BoundedMap(_IDS)
        """Episode without calls -> whose spans."""

    def call(self, call: CallRecord) -> None:
        """Takes a call."""
        if call.rollout_id is None:
            self._has_parent[call.call_id] = call.parent_span_id is not None

    def episode(self, episode: Episode) -> None:
        """Takes an episode."""
        if episode.rollout_id is not None or episode.calls_omitted:
            return
        if episode.calls and not episode.num_spans:
            self._calls_alone[episode.episode_id] = tuple(call.call_id for call in episode.calls)
        elif episode.num_spans and not episode.calls:
            self._spans_alone[episode.episode_id] = episode.services

    def diagnosis(self) -> str:
        """Which of the two it is, and what to do; empty while nothing is wrong."""
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
