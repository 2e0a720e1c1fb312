"""Counts an agent host's spans per episode, and marks in the export those that it counts.

Loaded by path beside `agent_host.py`, with the user's Python; imports only the standard library and OpenTelemetry.
In: whatever tracer providers of this process export. Out: (exported, lost) of an episode, once. Invariant: a span
that is counted is sent with the mark COUNTED_SPAN on its resource, and no other is: not one that ends after the count
was taken, nor one of a child process, also a forked one, though it bears the same trace id. So who waits for as many
marked spans waits for these. Failure: without the OpenTelemetry SDK nothing is exported and every count is 0.
"""

from __future__ import annotations

import collections
import contextlib
import contextvars
import functools
import logging
import os
import threading
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

logger = logging.getLogger("tracegrad.agent_host")

ROLLOUT_ID, ATTEMPT_ID, COUNTED_SPAN = "rollout.id", "attempt.id", "tracegrad.counted"  # as in schemas/attributes.py
_CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("tracegrad_episode", default="")


class SpanLedger:
    """Which spans of which episode reached our OTLP endpoint, counted at the exporter. Thread-safe."""

    MAX_EPISODES = 4096

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._spans: collections.OrderedDict[str, dict[int, bool]] = collections.OrderedDict()
        """Episode -> span -> whether it was exported."""
        self._taken: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.providers: weakref.WeakSet[Any] = weakref.WeakSet()

    def enter(self, rollout: str, attempt: str) -> None:
        """Makes the current context a root whose remote parent lies in the episode's trace."""
        _CURRENT.set(rollout + attempt)
        try:
            from opentelemetry import context
            from opentelemetry.baggage.propagation import W3CBaggagePropagator
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError:
            return
        identity = f"{ROLLOUT_ID}={rollout},{ATTEMPT_ID}={attempt}"
        told = {"traceparent": f"00-{rollout}{attempt}-{os.urandom(8).hex()}-01", "baggage": identity}
        root = TraceContextTextMapPropagator().extract(told, context.Context())
        context.attach(W3CBaggagePropagator().extract(told, root))

    def current(self) -> str:
        """The episode in whose context this is called; empty outside of all."""
        return _CURRENT.get()

    def note(self, spans: Iterable[Any], *, is_exported: bool) -> None:
        """Takes spans that were handed in for export, or that were exported with success."""
        if os.getpid() != self._pid:
            return  # A forked child: its lock may be held for good.
        with self._lock:
            for span in spans:
                episode = episode_of(span)
                if episode in self._taken:
                    continue
                known, number = self._spans.setdefault(episode, {}), span.context.span_id
                known[number] = is_exported or known.get(number, False)
            while len(self._spans) > self.MAX_EPISODES:
                self._spans.popitem(last=False)

    def mark(self, spans: Sequence[Any], mark: Any) -> Sequence[Any]:
        """The spans to export; the resource `mark` is merged into that of each span which is counted."""
        if os.getpid() != self._pid:
            return spans
        with self._lock:
            is_counted = [episode_of(span) not in self._taken for span in spans]
        pairs = zip(spans, is_counted, strict=True)
        return [MarkedSpan(span, span.resource.merge(mark)) if counted else span for span, counted in pairs]

    def close_episode(self, episode: str) -> tuple[int, int]:
        """(exported, lost) of an episode, which is then over: no later span of it is counted."""
        with self._lock:
            exported = self._spans.pop(episode, {}).values()
            self._taken[episode] = None
            if len(self._taken) > self.MAX_EPISODES:
                self._taken.popitem(last=False)
        return sum(exported), len(exported) - sum(exported)

    def is_ours(self, exporter: Any) -> bool:
        """Whether an OTLP exporter sends to our gateway, rather than to one of the agent's choice."""
        endpoint = getattr(exporter, "_endpoint", None)
        return endpoint is None or f"{endpoint}/".startswith(f"{self._endpoint}/")

    def flush(self) -> None:
        """Exports what every tracer provider of this process holds."""
        for provider in list(self.providers):
            with contextlib.suppress(Exception):
                provider.force_flush()

    def install(self) -> str:
        """Counts from here on, then loads the instrumentations as `opentelemetry-instrument` does.

        Returns:
            Why no span will be exported; empty when they will.
        """
        try:
            from opentelemetry import trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
        except ImportError as error:
            return f"the OpenTelemetry SDK is not installed ({error.name})"
        mark = Resource({COUNTED_SPAN: True})
        self._count_exports(OTLPSpanExporter, BatchSpanProcessor, SpanExportResult.SUCCESS, mark)
        self._adopt_providers(TracerProvider, SpanProcessor)
        try:
            from opentelemetry.instrumentation.auto_instrumentation import initialize

            initialize()
        except ImportError:
            logger.info("opentelemetry-instrumentation is not installed: only the agent's own spans will be seen")
        if not isinstance(trace.get_tracer_provider(), TracerProvider):
            provider = TracerProvider()
            provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
            trace.set_tracer_provider(provider)
        return ""

    def _count_exports(self, exporter: Any, processor: Any, success: Any, mark: Any) -> None:
        export, on_end = exporter.export, processor.on_end

        @functools.wraps(export)
        def counted_export(this: Any, spans: Any, *args: Any, **kwargs: Any) -> Any:
            if not self.is_ours(this):
                return export(this, spans, *args, **kwargs)
            self.note(spans, is_exported=False)  # one still on its way when the count is taken counts as lost
            result = export(this, self.mark(spans, mark), *args, **kwargs)
            if result is success:
                self.note(spans, is_exported=True)
            return result

        @functools.wraps(on_end)
        def counted_on_end(this: Any, span: Any) -> None:
            # Spans dropped by a full queue never reach the exporter; this is where they are known.
            target = getattr(this, "span_exporter", None)
            is_sampled = span.context is not None and span.context.trace_flags.sampled
            if is_sampled and isinstance(target, exporter) and self.is_ours(target):
                self.note([span], is_exported=False)
            on_end(this, span)

        exporter.export, processor.on_end = counted_export, counted_on_end

    def _adopt_providers(self, provider: Any, base: Any) -> None:
        class Stamp(base):  # type: ignore[misc]
            """Names the episode on spans that a framework puts in a trace of their own."""

            def on_start(self, span: Any, parent_context: Any = None) -> None:
                episode = _CURRENT.get()
                if episode and format(span.context.trace_id, "032x") != episode:
                    span.set_attributes({ROLLOUT_ID: episode[:28], ATTEMPT_ID: episode[28:]})

        init = provider.__init__

        @functools.wraps(init)
        def adopted_init(this: Any, *args: Any, **kwargs: Any) -> None:
            init(this, *args, **kwargs)
            this.add_span_processor(Stamp())
            self.providers.add(this)

        provider.__init__ = adopted_init


class MarkedSpan:
    """A finished span as the exporter sends it: with another resource."""

    def __init__(self, span: Any, resource: Any) -> None:
        self._span = span
        self.resource = resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span, name)


def episode_of(span: Any) -> str:
    """What a span says of itself, else its trace id."""
    said = span.attributes or {}
    return f"{said.get(ROLLOUT_ID, '')}{said.get(ATTEMPT_ID, '')}" or f"{span.context.trace_id:032x}"
