"""A pool of long-lived agent hosts: each runs many rollouts of a callable at once.

In: rollouts. Out: an Outcome each. Invariant: a host that died, hangs or is blocked takes no more and is replaced at
once. If it hangs, the others in it finish. If it ends: the rollout that ended it, where the host could see which, has
failed, and the others are `aborted`, so that they run again elsewhere; where it could not, each has failed unless the
gateway says that it was waiting for an answer (`attempt.py`): an end that is nobody's would be everybody's way out.
Failure: ConfigurationError when the agent cannot be imported, or its process dies again and again at start.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import AsyncIterator

from msgspec.structs import replace

from tracegrad.schemas.credentials import Holder, new_host
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import episode_id
from tracegrad.schemas.records.rollouts import RolloutRequest, RolloutState
from tracegrad.schemas.retry import retry_async

from .agent_environment import host_environment
from .children import Child, Launcher
from .outcome import Begin, HostMessage, Outcome, RunAgent, from_host

_MAX_STARTS = 3
_HANG_GRACE_S = 30.0
"""After a time limit, until a host that said nothing is held to be hung."""

logger = logging.getLogger(__name__)


class _Host:
    """One host process and the rollouts in it."""

    def __init__(self, child: Child, holder: Holder, name: str) -> None:
        self._child = child
        self.holder = holder
        self._name = name
        self._pending: dict[str, asyncio.Future[Outcome]] = {}
        self._listening = asyncio.create_task(self._listen())
        self.num_reserved = 0
        self.retired = asyncio.Event()
        """Takes no more rollouts."""

    async def run(self, request: RolloutRequest, attempt: str) -> Outcome:
        """One rollout. Ends at the latest `_HANG_GRACE_S` after its time limit."""
        time_s = request.limits.time_s
        episode = episode_id(request.rollout_id, attempt)
        future = self._pending[episode] = asyncio.get_running_loop().create_future()
        try:
            task = {"id": request.task_id, "input": request.input}
            question = {"rollout": request.rollout_id, "attempt": attempt, "task": task, "time_s": time_s}
            await self._child.send(question)
            return await asyncio.wait_for(future, time_s + _HANG_GRACE_S)
        except ConnectionError:
            return _aborted("its host was gone")
        except TimeoutError:
            logger.warning("%s: no word of a rollout past its time limit; killed", self._name)
            await self._end("was killed: a rollout hung in it")
            return Outcome(
                state=RolloutState.TRUNCATED, error="time limit; its host hung", duration_s=time_s, spans_lost=1
            )
        finally:
            del self._pending[episode]
            if self.retired.is_set() and not self._pending:
                await self._stop("was retired")

    async def _listen(self) -> None:
        culprit = ""
        while (message := await self._child.receive(HostMessage)) is not None:
            if message.op == "ends":
                culprit = message.episode
                continue
            if message.op == "result":
                self._settle(message.episode, from_host(message))
            if message.hung:
                logger.warning("%s: a rollout does not end; it takes no more and will be replaced", self._name)
                self.retired.set()
            if message.blocks or message.op == "blocks":
                await self._end("was killed: a rollout blocks its event loop", message.episode)
        status = await self._child.kill()
        if not self.retired.is_set() or self._pending:
            logger.warning("%s died (exit status %d): %s", self._name, status, self._child.last_words)
        await self._end(f"died (exit status {status})", culprit)

    def _settle(self, episode: str, outcome: Outcome) -> None:
        future = self._pending.get(episode)
        if future is not None and not future.done():
            future.set_result(outcome)

    async def _end(self, why: str, culprit: str = "") -> None:
        """What runs in it has failed if it is the culprit, or if nobody knows which is."""
        for episode in list(self._pending):
            if culprit and episode != culprit:
                self._settle(episode, _aborted(f"its host {why}, by another rollout"))
                continue
            error = f"the agent ends its process: its host {why}" if culprit else f"its host {why}"
            failed = Outcome(state=RolloutState.FAILED, error=error, spans_lost=1, is_host_lost=not culprit)
            self._settle(episode, failed)
        await self._stop(why)

    async def _stop(self, why: str) -> None:
        self.retired.set()
        for episode in list(self._pending):
            self._settle(episode, _aborted(f"its host {why}"))
        await self._child.kill()

    async def close(self) -> None:
        """Kills the host; what runs in it is aborted."""
        await self._stop("was stopped")
        await asyncio.wait([self._listening], timeout=5)


def _aborted(error: str) -> Outcome:
    return Outcome(state=RolloutState.ABORTED, error=error, spans_lost=1)


class HostPool:
    """`count` hosts of `per_host` rollouts each. Use from one event loop."""

    def __init__(self, launcher: Launcher, *, count: int, per_host: int, name: str) -> None:
        self._launcher = launcher
        self._per_host = per_host
        self._names = [f"{name}-{index}" for index in range(count)]
        self._hosts: list[_Host] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._changed = asyncio.Condition()
        self._failure: ConfigurationError | None = None

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[RunAgent]:
        """Waits for a place in some host, held before the attempt is announced, so that `started` means running.

        Raises ConfigurationError when no host can be started.
        """
        if not self._keepers:
            self._keepers = [asyncio.create_task(self._keep(name)) for name in self._names]
        host = await self._reserve()

        async def run(request: RolloutRequest, attempt: str, begin: Begin) -> Outcome:
            nonlocal host
            await begin(host.holder)
            while host.retired.is_set():
                host.num_reserved -= 1
                host = await self._reserve(even_if_full=True)
                await begin(host.holder)
            return replace(await host.run(request, attempt), host=host.holder)

        try:
            yield run
        finally:
            host.num_reserved -= 1
            async with self._changed:
                self._changed.notify()  # one place, one waiter: waking all of them costs a square

    async def _reserve(self, *, even_if_full: bool = False) -> _Host:
        """Takes a place in the usable host with the most room."""
        async with self._changed:
            while (host := self._free(even_if_full)) is None:
                await self._changed.wait()
            host.num_reserved += 1
            return host

    def _free(self, even_if_full: bool) -> _Host | None:
        if self._failure is not None:
            raise self._failure
        usable = [host for host in self._hosts if not host.retired.is_set()]
        best = min(usable, key=lambda host: host.num_reserved, default=None)
        return best if best is not None and (even_if_full or best.num_reserved < self._per_host) else None

    async def _keep(self, name: str) -> None:
        """Keeps one host running for ever."""
        while True:
            try:
                host = await retry_async(
                    lambda: self._start(name), doing=f"starting {name}", on=OSError, first_s=2.0, max_tries=_MAX_STARTS
                )
            except (ConfigurationError, OSError) as error:
                return await self._tell_all(ConfigurationError(f"[agent] callable {error}"))
            self._hosts.append(host)
            await self._tell_all()
            try:
                await host.retired.wait()
            except asyncio.CancelledError:
                await host.close()
                raise
            self._hosts.remove(host)

    async def _start(self, name: str) -> _Host:
        agent, handles = self._launcher.agent, self._launcher.handles
        holder = new_host()
        env, reference = host_environment(agent, handles, os.environ, holder=holder), str(agent.callable)
        child, untraced = await self._launcher.start_host("agent_host.py", reference, env=env, name=name, is_agent=True)
        if untraced:
            logger.warning("%s: its spans will be missing: %s", name, untraced)
        return _Host(child, holder, name)

    async def _tell_all(self, failure: ConfigurationError | None = None) -> None:
        async with self._changed:
            self._failure = self._failure or failure
            self._changed.notify_all()

    async def close(self) -> None:
        """Kills all hosts, bounded in time."""
        for keeper in self._keepers:
            keeper.cancel()
        if self._keepers:
            await asyncio.wait(self._keepers, timeout=10)
