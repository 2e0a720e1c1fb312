"""Runs a user's agent callable, many rollouts at once, in a long-lived process of its own.

Started by path with the user's Python; imports only the standard library and, when installed, OpenTelemetry.
In: JSON lines on stdin: `{"op": "run", "rollout", "attempt", "task": {id, input}, "time_s"}`. End of file ends it.
Out: JSON lines on stdout: `ready`, `unusable` (not importable), `result` (its output is JSON text: one that cannot be
decoded costs no other rollout). What the agent prints goes to stderr. Invariant: each rollout runs in a root context
whose trace id is its episode id, and its result comes after its spans were flushed, with the number exported and lost.
Failure: an agent out of time is `truncated`; `hung`: its thread or task still runs, `blocked`: nobody else can run.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import contextvars
import functools
import importlib.util
import inspect
import json
import logging
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

__all__ = ["Host", "SpanLedger", "load_callable", "main"]

logger = logging.getLogger("tracegrad.agent_host")

ROLLOUT_ID, ATTEMPT_ID, COUNTED_SPAN = "rollout.id", "attempt.id", "tracegrad.counted"  # as in schemas/attributes.py
MAX_OUTPUT_BYTES = 1_000_000
CANCEL_GRACE_S, BLOCKED_AFTER_S = 3.0, 2.0
FLUSH_LIMIT_S = 20.0
"""Above the exporter's own time-out, so that only an exporter without one is left behind."""
_CURRENT: contextvars.ContextVar[str] = contextvars.ContextVar("tracegrad_episode", default="")


def load_callable(reference: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; its folder becomes importable."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py") or not os.path.exists(place):
        raise FileNotFoundError(f"expected FILE.py:NAME of a file that exists, got {reference!r}")
    path = os.path.abspath(place)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise AttributeError(f"{place} has no callable {name!r}")
    return found  # type: ignore[no-any-return]


def describe(error: BaseException) -> str:
    """Type and message, short enough for a record."""
    return f"{type(error).__name__}: {error}"[:500]


def http_errors(error: BaseException) -> list[dict[str, Any]]:
    """Status and URL of each HTTP client error (openai, httpx, requests, urllib, aiohttp) in a chain of causes.

    The runner judges by them whether the gateway is to blame. A status of None means that no answer came.
    """
    found: list[dict[str, Any]] = []
    current: BaseException | None = error
    for _ in range(20):  # a chain of causes may be a ring
        if current is None:
            break
        with contextlib.suppress(RuntimeError, AttributeError):  # httpx raises when an error has no request
            response = getattr(current, "response", None)
            request = getattr(current, "request", None) or getattr(current, "request_info", None) or response
            url = getattr(request, "url", None) or getattr(current, "url", None)
            if not url and getattr(current, "port", None):  # aiohttp, when nobody listens
                url = f"http://{current.host}:{current.port}"  # type: ignore[attr-defined]
            status = getattr(current, "status_code", getattr(current, "status", None))
            status = status or getattr(response, "status_code", None)
            if url:
                found.append({"status": status if isinstance(status, int) else None, "url": str(url)[:2000]})
        current = current.__cause__ or current.__context__
    return found


class MarkedSpan:
    """A finished span as the exporter sends it: with another resource."""

    def __init__(self, span: Any, resource: Any) -> None:
        self._span = span
        self.resource = resource

    def __getattr__(self, name: str) -> Any:
        return getattr(self._span, name)


class SpanLedger:
    """Which spans of which episode reached our OTLP endpoint, counted at the exporter. Thread-safe.

    A span that is counted is sent with the mark COUNTED_SPAN, and no other is: not one that ends after the count was
    taken, nor one of a child process, also a forked one, though it bears the same trace id. So who waits for as many
    marked spans waits for these. Without the OpenTelemetry SDK nothing is exported and every count is 0.
    """

    MAX_EPISODES = 4096

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint.rstrip("/")
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._exported: collections.OrderedDict[str, tuple[set[int], set[int]]] = collections.OrderedDict()
        self._taken: collections.OrderedDict[str, None] = collections.OrderedDict()
        self.providers: weakref.WeakSet[Any] = weakref.WeakSet()

    def note(self, spans: Iterable[Any], *, is_exported: bool) -> None:
        """Takes spans that were handed in for export, or that were exported with success."""
        with self._lock:
            for span in spans:
                episode = episode_of(span)
                if episode in self._taken:
                    continue
                submitted, exported = self._exported.setdefault(episode, (set(), set()))
                submitted.add(span.context.span_id)
                if is_exported:
                    exported.add(span.context.span_id)
            while len(self._exported) > self.MAX_EPISODES:
                self._exported.popitem(last=False)

    def mark(self, spans: Sequence[Any], mark: Any) -> Sequence[Any]:
        """The spans to export; the resource `mark` is merged into that of each span which is counted."""
        if os.getpid() != self._pid:
            return spans
        with self._lock:
            is_counted = [episode_of(span) not in self._taken for span in spans]
        pairs = zip(spans, is_counted, strict=True)
        return [MarkedSpan(span, span.resource.merge(mark)) if counted else span for span, counted in pairs]

    def take(self, episode: str) -> tuple[int, int]:
        """(exported, lost) of an episode, which is then over: no later span of it is counted."""
        with self._lock:
            submitted, exported = self._exported.pop(episode, (set(), set()))
            self._taken[episode] = None
            if len(self._taken) > self.MAX_EPISODES:
                self._taken.popitem(last=False)
        return len(exported), len(submitted - exported)

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


def episode_of(span: Any) -> str:
    """What a span says of itself, else its trace id."""
    said = span.attributes or {}
    return f"{said.get(ROLLOUT_ID, '')}{said.get(ATTEMPT_ID, '')}" or f"{span.context.trace_id:032x}"


def enter_episode(rollout: str, attempt: str) -> None:
    """Makes the current context a root whose remote parent lies in the episode's trace."""
    _CURRENT.set(rollout + attempt)
    try:
        from opentelemetry import baggage, context, trace
    except ImportError:
        return
    parent = trace.SpanContext(
        trace_id=int(rollout + attempt, 16),
        span_id=int.from_bytes(os.urandom(8), "big") or 1,
        is_remote=True,
        trace_flags=trace.TraceFlags(trace.TraceFlags.SAMPLED),
    )
    root = trace.set_span_in_context(trace.NonRecordingSpan(parent), context.Context())
    root = baggage.set_baggage(ROLLOUT_ID, rollout, root)
    context.attach(baggage.set_baggage(ATTEMPT_ID, attempt, root))


class Run:
    """One rollout that runs here."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.rollout: str = message["rollout"]
        self.attempt: str = message["attempt"]
        self.episode = self.rollout + self.attempt
        self.input: Any = message["task"]
        self.started = time.monotonic()
        self.deadline = self.started + float(message["time_s"])
        self.task: asyncio.Task[None] | None = None
        self.is_expired = False


class Host:
    """The agent, its rollouts and the threads that watch them.

    The agent's event loop has the main thread; reading, watching and flushing have threads of their own, so that
    an agent that blocks the loop is still noticed and reported.
    """

    def __init__(self, solve: Callable[..., Any], ledger: SpanLedger, send: Callable[..., None]) -> None:
        self._solve = solve
        self._is_async = inspect.iscoroutinefunction(solve) or inspect.iscoroutinefunction(
            getattr(solve, "__call__", None)  # noqa: B004 - the question is whether it is async, not callable
        )
        self._ledger = ledger
        self._send = send
        self._lock = threading.Lock()
        self._running: dict[str, Run] = {}
        self._finished: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._loop = asyncio.new_event_loop()
        self._beat = time.monotonic()

    def serve(self, lines: Iterable[bytes]) -> None:
        """Runs rollouts until the lines end; then the process ends at once."""
        for target in (functools.partial(self._read, lines), self._watch, self._report):
            threading.Thread(target=target, daemon=True).start()
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._pulse())
        self._loop.run_forever()

    async def _pulse(self) -> None:
        while True:
            self._beat = time.monotonic()
            await asyncio.sleep(BLOCKED_AFTER_S / 8)

    def _read(self, lines: Iterable[bytes]) -> None:
        try:
            for line in lines:
                run = Run(json.loads(line))
                with self._lock:
                    self._running[run.episode] = run
                if self._is_async:
                    self._loop.call_soon_threadsafe(self._start_async, run)
                else:
                    threading.Thread(target=self._drive_sync, args=(run,), daemon=True).start()
        finally:
            os._exit(0)

    def _start_async(self, run: Run) -> None:
        run.task = self._loop.create_task(self._drive_async(run), name=run.episode)

    async def _drive_async(self, run: Run) -> None:
        enter_episode(run.rollout, run.attempt)
        try:
            self._succeed(run, await self._solve(run.input))
        except BaseException as error:
            self._fail(run, error)

    def _drive_sync(self, run: Run) -> None:
        enter_episode(run.rollout, run.attempt)
        try:
            output = self._solve(run.input)
            if inspect.isawaitable(output):
                output = asyncio.run(_resolve(output))
            self._succeed(run, output)
        except BaseException as error:
            self._fail(run, error)

    def _succeed(self, run: Run, output: Any) -> None:
        text = json.dumps(output, allow_nan=False)  # a TypeError here is the agent's failure
        if len(text) > MAX_OUTPUT_BYTES:
            raise ValueError(f"expected an output of at most {MAX_OUTPUT_BYTES} bytes of JSON, got {len(text)}")
        self._finish(run, "succeeded", output=text)

    def _fail(self, run: Run, error: BaseException) -> None:
        reason = "time limit" if run.is_expired else describe(error)
        self._finish(run, "failed", error=reason, http_errors=http_errors(error))

    def _finish(self, run: Run, state: str, **more: Any) -> None:
        with self._lock:
            if self._running.pop(run.episode, None) is None:
                return
        more["duration_s"] = time.monotonic() - run.started
        self._finished.put({"episode": run.episode, "state": "truncated" if run.is_expired else state, **more})

    def _watch(self) -> None:
        """Enforces time limits: cancels, then reports what would not end."""
        while True:
            time.sleep(0.1)
            now = time.monotonic()
            with self._lock:
                expired = [run for run in self._running.values() if now > run.deadline]
            for run in expired:
                self._expire(run, now)

    def _expire(self, run: Run, now: float) -> None:
        is_blocked = self._is_async and now - self._beat > BLOCKED_AFTER_S
        if is_blocked:
            holder = asyncio.current_task(self._loop)
            if holder is not None and holder.get_name() == run.episode:
                self._finish(run, "truncated", error="time limit; it blocks the event loop", hung=True, blocked=True)
            else:
                self._finish(run, "aborted", error="another rollout blocks the event loop", hung=True, blocked=True)
        elif not run.is_expired and run.task is not None:
            run.is_expired = True
            self._loop.call_soon_threadsafe(run.task.cancel)
        elif not self._is_async or now > run.deadline + CANCEL_GRACE_S:
            self._finish(run, "truncated", error="time limit; it does not end", hung=True)

    def _report(self) -> None:
        """Flushes once for all results that wait, then sends them."""
        while True:
            results = [self._finished.get()]
            while not self._finished.empty():
                results.append(self._finished.get())
            flusher = threading.Thread(target=self._ledger.flush, daemon=True)
            flusher.start()
            flusher.join(FLUSH_LIMIT_S)
            for result in results:
                exported, lost = self._ledger.take(result["episode"])
                self._send("result", **result, spans_exported=exported, spans_lost=lost)


async def _resolve(awaitable: Any) -> Any:
    return await awaitable


def _take_streams() -> tuple[Iterable[bytes], Callable[..., None]]:
    """Keeps stdin and stdout for the protocol; the agent gets an empty stdin and stderr for its prints."""
    lines = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout = sys.stderr
    lock = threading.Lock()

    def send(op: str, **fields: Any) -> None:
        data = json.dumps({"op": op, **fields}).encode() + b"\n"
        with lock:
            while data:
                data = data[out.write(data) :]

    return lines, send


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--callable", required=True, help="FILE.py:NAME")
    arguments = parser.parse_args()
    lines, send = _take_streams()
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(name)s: %(message)s")
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # it must not shadow the agent's modules
    ledger = SpanLedger(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    try:
        untraced = ledger.install()
        solve = load_callable(arguments.callable)
    except BaseException as error:
        send("unusable", error=describe(error))
        raise
    send("ready", pid=os.getpid(), untraced=untraced)
    Host(solve, ledger, send).serve(lines)


if __name__ == "__main__":
    main()
