"""Runs a user's agent callable, many rollouts at once, in a long-lived process of its own.

Loaded by `host_main.py` with the user's Python; imports only the standard library and, when installed, OpenTelemetry.
In: JSON lines: `{"rollout", "attempt", "task": {id, input}, "time_s"}`; their end ends the process. Out: JSON lines:
`result` (its output is JSON text: one that cannot be decoded costs no other rollout); `blocks`, of one that holds the
event loop, so that nobody else can run; `ends`, of one that is about to end this process. Invariant: each rollout runs
in a root context whose trace id is its episode id, and its result comes after its spans were flushed, with the number
exported and lost. Who ends the process in a way that Python sees is named before.
Failure: an agent out of time is `truncated`; `hung`: its thread or task still runs.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
import logging
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

MAX_OUTPUT_BYTES = 1_000_000
CANCEL_GRACE_S, BLOCKED_AFTER_S = 3.0, 2.0
FLUSH_LIMIT_S = 20.0
"""Above the exporter's own time-out, so that only an exporter without one is left behind."""

logger = logging.getLogger("tracegrad.agent_host")
_exit_now = os._exit


def name_who_ends(episode: Callable[[], str], send: Callable[..., None]) -> None:
    """Says, from here on, which rollout calls what ends this process, before it ends; none in another process."""
    pid = os.getpid()
    targets = {0, -1, pid, -pid}

    def telling(end: Callable[..., Any], is_ours: Callable[..., bool]) -> Callable[..., Any]:
        @functools.wraps(end)
        def told(*args: Any, **kwargs: Any) -> Any:
            if os.getpid() == pid and episode() and is_ours(*args):
                send("ends", episode=episode())
            return end(*args, **kwargs)

        return told

    def always(*_: Any) -> bool:
        return True

    def at_us(target: int = 0, sent: int = 0, *_: Any) -> bool:
        return target in targets and sent != 0

    for module, name, is_ours in (
        (os, "_exit", always),
        (os, "abort", always),
        (os, "execv", always),
        (os, "execve", always),
        (os, "kill", at_us),
        (os, "killpg", at_us),
        (signal, "raise_signal", always),
    ):
        setattr(module, name, telling(getattr(module, name), is_ours))


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
    an agent that blocks the loop is still noticed and reported. `ledger`: the SpanLedger of `span_ledger.py`; `raised`:
    of `raised.py`.
    """

    def __init__(
        self, solve: Callable[..., Any], ledger: Any, send: Callable[..., None], raised: Callable[..., str]
    ) -> None:
        self._solve = solve
        self._raised = raised
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
        self._is_blocked = False

    def serve(self, lines: Iterable[bytes]) -> None:
        """Runs rollouts until the lines end; then the process ends at once."""
        for target in (functools.partial(self._read, lines), self._watch, self._report):
            threading.Thread(target=target, daemon=True).start()
        asyncio.set_event_loop(self._loop)
        self._loop.create_task(self._pulse())
        while True:
            # A task of the agent's own that exits, or one that stops the loop, ends its attempt, not the host.
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                logger.warning("a task of an agent raised %s", type(error).__name__)

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
            _exit_now(0)

    def _start_async(self, run: Run) -> None:
        run.task = self._loop.create_task(self._drive_async(run), name=run.episode)

    async def _drive_async(self, run: Run) -> None:
        self._ledger.enter(run.rollout, run.attempt)
        try:
            self._succeed(run, await self._solve(run.input))
        except BaseException as error:  # an agent that exits, and a cancelled one, ends its attempt, not the host
            self._fail(run, error)

    def _drive_sync(self, run: Run) -> None:
        self._ledger.enter(run.rollout, run.attempt)
        try:
            output = self._solve(run.input)
            if inspect.isawaitable(output):
                output = asyncio.run(_resolve(output))
            self._succeed(run, output)
        except BaseException as error:  # as above
            self._fail(run, error)

    def _succeed(self, run: Run, output: Any) -> None:
        text = json.dumps(output, allow_nan=False)  # a TypeError here is the agent's failure
        if len(text) > MAX_OUTPUT_BYTES:
            raise ValueError(f"expected an output of at most {MAX_OUTPUT_BYTES} bytes of JSON, got {len(text)}")
        self._finish(run, "succeeded", output=text)

    def _fail(self, run: Run, error: BaseException) -> None:
        reason = "time limit" if run.is_expired else self._raised("agent", error, 500)
        self._finish(run, "failed", error=reason)

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
        if self._is_async and now - self._beat > BLOCKED_AFTER_S:
            self._tell_blocked()
        elif not run.is_expired and run.task is not None:
            run.is_expired = True
            self._loop.call_soon_threadsafe(run.task.cancel)
        elif not self._is_async or now > run.deadline + CANCEL_GRACE_S:
            self._finish(run, "truncated", error="time limit; it does not end", hung=True)

    def _tell_blocked(self) -> None:
        if self._is_blocked:
            return
        self._is_blocked = True
        holder = asyncio.current_task(self._loop)
        with self._lock:
            run = self._running.get(holder.get_name()) if holder is not None else None
        if run is None:
            self._send("blocks", episode="")
        else:
            run.is_expired = True
            self._finish(run, "truncated", error="time limit; it blocks the event loop", blocks=True)

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
                exported, lost = self._ledger.close_episode(result["episode"])
                self._send("result", **result, spans_exported=exported, spans_lost=lost)


async def _resolve(awaitable: Any) -> Any:
    return await awaitable


def prepare(
    load: Callable[[], Callable[..., Any]],
    load_file: Callable[[str, str], Any],
    send: Callable[..., None],
    raised: Callable[..., str],
) -> tuple[dict[str, Any], Callable[[Iterable[bytes]], None]]:
    """For `host_main.py`: what `ready` says, and what serves the lines."""
    beside = os.path.join(os.path.dirname(os.path.abspath(__file__)), "span_ledger.py")
    ledger = load_file(beside, "tracegrad_span_ledger").SpanLedger(os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", ""))
    untraced = ledger.install()  # before the agent's modules, which it instruments
    name_who_ends(ledger.current, send)
    return {"untraced": untraced}, Host(load(), ledger, send, raised).serve
