"""The attempts that were open when another process of this gateway ended: awaited, read and gone on with.

    /begin -> {gateway, since}    the runner keeps it. It sees by /health that another process answers, and tells again:
    /begin {.., since} -> here: one pass over `llm_calls` for all that are told at about the same time -> rebuild.py

In: what a runner tells again of an attempt, `since` of its first `/begin` in it; calls of attempts that are not known
yet. Out: sessions, in the registry. Invariants: reading and decoding is done in a thread, within bounds of time; it
begins at the earliest `since`, and holds nothing but what the attempts' histories will. Calls wait for their attempt
only for a while after this process has started, and for what is read then. Failure: SessionError (409) for an attempt
that cannot be gone on with, with its reason counted; UnavailableError while the log is away: the runner asks again.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
import time
from collections.abc import Mapping, Sequence

from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.errors import ConfigurationError, LogGapError, OverloadedError, UnavailableError
from tracegrad.schemas.ids import AttemptId, EpisodeId, RolloutId, RunHash, episode_id, run_hash_of, split_episode_id
from tracegrad.schemas.keys import episode_key
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Log, TopicPartition
from tracegrad.schemas.metrics import ATTEMPTS_NOT_REBUILT, ATTEMPTS_REBUILT, Metrics
from tracegrad.schemas.records.calls import Purpose

from ..config import LlmConfig
from ..identity import Caller
from ..sessions import Sessions
from ..splice import EndOfMessage
from .rebuild import Rebuild

__all__ = ["Returns"]

_NOTE_S = 10.0
"""How often the ends of `llm_calls` are looked up: so much more than its own calls may be read for an attempt."""
_FIRST_S = 2.0
"""How long the first `/begin` waits for them; one that is answered without is made again if this process ends."""
_GATHER_S = 0.1
"""A runner tells of all its attempts at once: one pass serves them."""
_READ_S = 60.0
"""For one pass; half of what the runner waits for `/begin`."""
_AWAY_S = 10.0
_MAX_RECORDS = 2_000


class Returns:
    """Of one gateway process; in its event loop, but for the reading."""

    def __init__(
        self,
        config: LlmConfig,
        *,
        run_hash: RunHash,
        sessions: Sessions,
        ends: EndOfMessage,
        log: Log,
        topic: str,
        metrics: Metrics,
    ) -> None:
        self.gateway = secrets.token_hex(8)
        """Drawn for this process: by it a runner sees that another one answers."""
        self._config = config
        self._run_hash = run_hash
        self._sessions = sessions
        self._ends = ends
        self._log = log
        self._topic = topic
        self._metrics = metrics
        self._awaits_until_s = time.monotonic() + config.begin_again_s
        self.num_waiting = 0
        """Calls."""
        self._offsets: dict[int, int] | None = None
        self._has_offsets = asyncio.Event()
        self._coming: dict[EpisodeId, tuple[Rebuild, asyncio.Future[None]]] = {}
        """Told again, not read yet or being read."""
        self._has_more = asyncio.Event()
        self._changed = asyncio.Event()
        """Replaced whenever an attempt has come, or cannot."""
        self._stop = threading.Event()

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._note_offsets())
            group.create_task(self._read_on())

    def stop(self) -> None:
        """What is read ends soon, unfinished."""
        self._stop.set()

    async def since(self) -> dict[int, int] | None:
        """Below which no record of an attempt lies that begins now; None: that is not known."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FIRST_S):
                await self._has_offsets.wait()
        return self._offsets

    @property
    def knows_offsets(self) -> bool:
        """Whether `since` has an answer."""
        return self._has_offsets.is_set()

    async def begin_again(
        self,
        rollout: RolloutId,
        attempt: AttemptId,
        purpose: Purpose,
        host: Holder | None,
        since: Mapping[int, int],
    ) -> None:
        """Goes on with an attempt that is not known here. Raises SessionError (409), UnavailableError."""
        episode = episode_id(rollout, attempt)
        if self._sessions.has(rollout, attempt):
            return
        if episode not in self._coming:
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._coming[episode] = Rebuild(episode, purpose, host, since), done
            self._has_more.set()
        await asyncio.shield(self._coming[episode][1])

    async def awaited(self, caller: Caller) -> None:
        """Waits for the attempt of a caller, which the runner may not have told of again yet.

        Raises OverloadedError when too many wait.
        """
        rollout = caller.rollout_id
        if rollout is None or run_hash_of(rollout) != self._run_hash:
            return
        while not self._sessions.has(rollout, caller.attempt_id):
            is_coming = any(split_episode_id(episode)[0] == rollout for episode in self._coming)
            wait_s = _READ_S if is_coming else self._awaits_until_s - time.monotonic()
            if wait_s <= 0:
                return
            if self.num_waiting >= self._config.max_inflight:
                raise OverloadedError(f"{self.num_waiting} calls wait for their attempts; try again")
            changed = self._changed
            self.num_waiting += 1
            try:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(wait_s):
                        await changed.wait()
            finally:
                self.num_waiting -= 1

    def notice(self) -> None:
        """An attempt has come, or cannot: those who wait look again."""
        self._changed.set()
        self._changed = asyncio.Event()

    async def _note_offsets(self) -> None:
        while True:
            with contextlib.suppress(UnavailableError, ConfigurationError, LogGapError):
                kept = await asyncio.to_thread(self._log.offsets, self._topic)
                self._offsets = {partition: offsets.end for partition, offsets in kept.items()}
                self._has_offsets.set()
            await asyncio.sleep(_NOTE_S if self._has_offsets.is_set() else _GATHER_S)

    async def _read_on(self) -> None:
        while True:
            await self._has_more.wait()
            await asyncio.sleep(_GATHER_S)
            self._has_more.clear()
            batch = list(self._coming.items())
            error: UnavailableError | None = None
            try:
                await asyncio.to_thread(self._read, [rebuild for _, (rebuild, _) in batch])
            except (UnavailableError, ConfigurationError) as failure:
                # A broker that has just come up may not know the topic yet.
                error = UnavailableError(str(failure))
            except LogGapError:
                for _, (rebuild, _) in batch:
                    rebuild.refuse("retention")
            for episode, (rebuild, done) in batch:
                del self._coming[episode]
                if error is None and rebuild.refusal is None and not self._sessions.adopt(rebuild.session):
                    rebuild.refuse("memory")
                self._settle(rebuild, done, error)
            self.notice()

    def _settle(self, rebuild: Rebuild, done: asyncio.Future[None], error: UnavailableError | None) -> None:
        failure = error or rebuild.refusal
        if failure is None:
            for token in rebuild.terminals:
                self._ends.saw(token)
            self._metrics.add(ATTEMPTS_REBUILT)
        elif rebuild.refusal is not None:
            self._metrics.add(ATTEMPTS_NOT_REBUILT, rebuild.refusal.code or "")
        if done.done():
            return
        if failure is None:
            done.set_result(None)
        else:
            done.set_exception(failure)
            done.exception()  # whoever asked may have gone; then nobody else looks at it

    def _read(self, rebuilds: Sequence[Rebuild]) -> None:
        """One pass, in a thread. Raises UnavailableError, LogGapError."""
        kept = self._log.offsets(self._topic)
        for rebuild in rebuilds:
            rebuild.check_kept(kept)
        wanted = [rebuild for rebuild in rebuilds if rebuild.refusal is None]
        by_key: dict[bytes | None, list[Rebuild]] = {}
        for rebuild in wanted:
            by_key.setdefault(episode_key(split_episode_id(rebuild.session.key)[0], None), []).append(rebuild)
        starts = {
            TopicPartition(self._topic, number): min(rebuild.since.get(number, 0) for rebuild in wanted)
            for number in kept
            if wanted
        }
        if wanted:
            self._take(wanted, by_key, starts)

    def _take(
        self,
        wanted: Sequence[Rebuild],
        by_key: Mapping[bytes | None, Sequence[Rebuild]],
        starts: Mapping[TopicPartition, int],
    ) -> None:
        reason, deadline = "", time.monotonic() + _READ_S
        steps = follow(
            self._log,
            [self._topic],
            starts=starts,
            poll_s=0.2,
            max_records=_MAX_RECORDS,
            stop=self._stop,
            patience_s=_AWAY_S,
        )
        with contextlib.closing(steps):
            for chunk in steps:
                for record in chunk.records:
                    for rebuild in by_key.get(record.key, ()):
                        rebuild.take(record)
                if chunk.is_caught_up:
                    break
                if time.monotonic() > deadline:
                    reason = "slow"
                    break
            else:
                raise UnavailableError("the gateway stops")
        for rebuild in wanted:
            if reason:
                rebuild.refuse(reason)
            else:
                rebuild.finish()
