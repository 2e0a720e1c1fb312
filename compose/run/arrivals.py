"""`up`: the variables that an agent needs, and then what arrives from it, in the order in which a person wonders.

In: a run's endpoints; records of `otlp_spans`, `llm_calls` and `episodes` from now on. Out: the first span, the first
call, the first episode, and, after a while, what is missing and where to look. Invariant: read-only; says each thing
once.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tracegrad.consumers.views.otlp_request import spans_by_service
from tracegrad.consumers.views.watch import Event, Watcher
from tracegrad.producers.runner.agent_environment import agent_environment
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import CALLS, CallRecord
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.records.tokens import ids_from_bytes
from tracegrad.schemas.topics import Topic, Topics

from .show import Show
from .wiring import Wiring

__all__ = ["Arrivals", "print_variables", "variables", "watch_arrivals"]

_PATIENCE_S = 20.0
"""After a first sign of the agent, how long the other signs may take before their absence is said."""
_EVERY = 100


def variables(wiring: Wiring) -> dict[str, str]:
    """What an agent that we do not start is given."""
    agent = wiring.settings.agent
    return agent_environment(
        llm_url=wiring.endpoints.llm_url,
        llm_token=wiring.settings.llm.token,
        otlp_endpoint=wiring.endpoints.otlp_endpoint,
        otlp_token=wiring.settings.otlp.token,
        service=agent.service if agent else "agent",
    )


def print_variables(wiring: Wiring, show: Show) -> None:
    """Tells how to point an agent at this run."""
    found = variables(wiring)
    lines = [f"  {name}={value}" for name, value in found.items()]
    fields = {"variables": found, "model": wiring.settings.policy.name}
    show.result(
        "env",
        fields,
        [
            'give your agent these variables (or: eval "$(tracegrad env --shell)"):',
            *lines,
            f"  and the model name {wiring.settings.policy.name!r}; run it under `opentelemetry-instrument`",
            "waiting for its first span",
        ],
    )


def watch_arrivals(wiring: Wiring, show: Show) -> Watcher:
    """The live view of `up`."""
    view = Arrivals(wiring.topics)
    ends = dict.fromkeys(view.topics, "end")
    return Watcher(wiring.log(), view.topics, view.fold, show.event, tick=view.tick, starts=ends)


class Arrivals:
    """The fold. One thread at a time."""

    def __init__(self, topics: Topics, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._folds = {
            topics.name(Topic.OTLP_SPANS): self._spans,
            topics.name(Topic.LLM_CALLS): self._call,
            topics.name(Topic.EPISODES): self._episode,
        }
        self.topics = tuple(self._folds)
        self._clock = clock
        self.num_spans = 0
        self.num_calls = 0
        self.num_episodes = 0
        self._first_sign: float | None = None
        self._said: set[str] = set()

    def fold(self, record: Record) -> list[Event]:
        """Takes one record."""
        try:
            return self._folds[record.topic](record)
        except (RecordError, DecodeError):
            return []

    def tick(self) -> list[Event]:
        """What is missing, once each."""
        if self._first_sign is None or self._clock() - self._first_sign < _PATIENCE_S:
            return []
        missing = {
            "calls": (
                self.num_spans and not self.num_calls,
                "spans arrive but no model calls: does the agent's client use OPENAI_BASE_URL?",
            ),
            "spans": (
                self.num_calls and not self.num_spans,
                "calls arrive but no spans: is the agent run under `opentelemetry-instrument`, with an OTLP exporter "
                "for http/protobuf? Episodes are recorded all the same, without agent names and tools",
            ),
            "episodes": (
                self.num_calls and self.num_spans and not self.num_episodes,
                "spans and calls arrive but no episode closed yet: a captured episode closes when it falls silent "
                "([streams] idle_s)",
            ),
        }
        said = [
            Event(kind="missing", text=text)
            for name, (holds, text) in missing.items()
            if holds and name not in self._said
        ]
        self._said.update(name for name, (holds, _) in missing.items() if holds)
        return said

    def _sign(self) -> None:
        if self._first_sign is None:
            self._first_sign = self._clock()

    def _spans(self, record: Record) -> list[Event]:
        request = ExportTraceServiceRequest.FromString(record.value or b"")
        events: list[Event] = []
        for service, spans in spans_by_service(request):
            if not spans:
                continue
            if self.num_spans == 0:
                self._sign()
                text = f"first span: {spans[0].name!r} of service {service or '?'}"
                events.append(Event(kind="first_span", text=text))
            self.num_spans += len(spans)
        return events

    def _call(self, record: Record) -> list[Event]:
        call = CALLS.decode(record.value)
        if not isinstance(call, CallRecord):
            return []
        self.num_calls += 1
        if self.num_calls > 1:
            return []
        self._sign()
        text = f"first call: {len(ids_from_bytes(call.sampled_ids))} tokens of {call.policy}, {call.finish_reason}"
        return [Event(kind="first_call", text=text)]

    def _episode(self, record: Record) -> list[Event]:
        episode = EPISODES.decode(record.value)
        self.num_episodes += 1
        if self.num_episodes > 1 and self.num_episodes % _EVERY:
            return []
        which = "first episode" if self.num_episodes == 1 else f"episode {self.num_episodes}"
        return [Event(kind="episode", text=f"{which}: {_summary(episode)}")]


def _summary(episode: Episode) -> str:
    reward = f"reward {episode.reward:g}" if episode.reward is not None else f"no reward ({episode.unscored or 'none'})"
    return f"{len(episode.calls)} calls, {episode.num_tools} tools, {reward}"
