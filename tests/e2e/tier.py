"""What the chaos tier does to a run: kills, frozen processes, a broker that is away, a full disk, in turn.

In: a run of the calculator on the scripted engine. Out: the run at its end, what was killed, and how long everyone
took to work again. Each fault begins when all are back from the one before: a fault of one process must be over
before the next one can show anything.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from tests.e2e.chaos import Killed, Killer
from tests.e2e.chaos_run import ENDLESS
from tests.e2e.evidence import looks
from tests.e2e.faults import SmallDisk, frozen, keep_broker_away, let_pass
from tests.e2e.live_run import LiveRun, Observer
from tests.e2e.returns import Returned, Returns
from tests.serving import is_alive, until

KILLS = 3
_BACK_S = 120.0
"""At most, on a busy machine; how long it took is told, and stands in docs/results/chaos.md."""
_TOGETHER = (
    ("otlp", "llm", "streams-normalize-0", "streams-assemble-0", "streams-credit-0"),
    ("runner", "tasks", "trainer", "weight-sync"),
    ("agent-host", "engine"),
    ("kafka",),
)
"""Who is killed at about the same time, each with work in flight in it."""
PROCESSES = tuple(name for names in _TOGETHER for name in names)
_FROZEN_TOGETHER = (_TOGETHER[0], tuple(name for names in _TOGETHER[1:] for name in names))
"""Each half stands still while the other goes on."""
_ALONE_S = 15.0
"""For so long the broker hears nothing of the others before it stands still too: longer than any session."""
_MORE_STEPS = 10
"""After the last fault at least: admission is ahead of the trainer, and everyone is to work again."""


@dataclass(frozen=True)
class Disturbed:
    """What was done to a run, and what became of it."""

    killed: tuple[Killed, ...]
    returned: tuple[Returned, ...]
    steps: int
    """With which the run ends."""


class _Tier:
    def __init__(self, run: LiveRun, seen: Observer, say: Callable[[str], None], per_host: int) -> None:
        self.run = run
        self.seen = seen
        self.say = say
        self.returns = Returns(run, say)
        self.killer = Killer(run, looks(run, seen, per_host=per_host), say, self.returns)

    def kill_each(self) -> None:
        """Each process, with work in flight in it."""
        for names in _TOGETHER:
            self.killer.strike(*names)
            self.returns.wait(_BACK_S)

    def restart(self, steps: int) -> None:
        """SIGKILLs the supervisor, and with it all that it started; the same command resumes the run."""
        until(lambda: self.seen.open_attempts, 60, what="open attempts")
        self.say(f"{'':9} SIGKILL of the supervisor: {len(self.seen.open_attempts)} attempts open")
        family = self.run.kill()
        until(partial(_are_gone, family), 20, what="the end of all that it started")
        self.run.start("--steps", str(steps))
        for name in PROCESSES:
            if name != "engine":  # which is beside the run
                self.returns.killed(name, None, "SIGKILL of all")
        self.returns.wait(_BACK_S)

    def freeze_halves(self, for_s: float) -> None:
        """SIGSTOP to one half, then to the other."""
        for names in _FROZEN_TOGETHER:
            with frozen(self.run, self.returns, names, f"SIGSTOP {for_s:g} s", self.say):
                let_pass(self.run, for_s)
            self.returns.wait(_BACK_S)

    def freeze_all(self, for_s: float) -> None:
        """SIGSTOP to all but the supervisor, to the broker last; that long at least."""
        others, what = [name for name in PROCESSES if name != "kafka"], f"SIGSTOP {for_s:g} s"
        with frozen(self.run, self.returns, others, what, self.say):
            let_pass(self.run, _ALONE_S)
            with frozen(self.run, self.returns, ["kafka"], what, self.say):
                let_pass(self.run, for_s)
        self.returns.wait(_BACK_S)

    def starve_all(self, disk: SmallDisk | None) -> None:
        """The disk of the broker, the trainer, the streams and all logs is full; then the broker is away."""
        if disk is not None:
            with self.fault_of_all("disk full 20 s"), disk.full():
                let_pass(self.run, 20.0)
        with self.fault_of_all("broker away 60 s"):
            keep_broker_away(self.run, 60.0)

    @contextlib.contextmanager
    def fault_of_all(self, what: str) -> Iterator[None]:
        """After the block all must work again."""
        pids = {name: self.run.pid_of(name) for name in PROCESSES}
        self.say(f"{'':9} {what}")
        yield
        for name, pid in pids.items():
            self.returns.ended(name, what, pid)
        self.returns.wait(_BACK_S)


def disturb(
    run: LiveRun,
    seen: Observer,
    disk: SmallDisk | None,
    say: Callable[[str], None],
    *,
    per_host: int,
    steps: int,
) -> Disturbed:
    """All faults in turn; the run ends by itself afterwards, with that many steps at least."""
    tier = _Tier(run, seen, say, per_host)
    tier.freeze_halves(10.0)
    tier.freeze_all(60.0)
    tier.starve_all(disk)
    for _ in range(KILLS - 1):
        tier.kill_each()
        tier.restart(ENDLESS)
    tier.kill_each()
    steps = max(steps, seen.step + _MORE_STEPS)
    tier.restart(steps)
    return Disturbed(tuple(tier.killer.killed), tuple(tier.returns.done), steps)


def wait_for_end(run: LiveRun, timeout_s: float) -> int:
    """The exit status; AssertionError when the run hangs."""
    until(lambda: run.poll() is not None, timeout_s, what="the end of the run")
    status = run.poll()
    assert status is not None
    return status


def kill_at_random(run: LiveRun, rng: random.Random, say: Callable[[str], None], timeout_s: float) -> int:
    """SIGKILLs a process every 3 to 8 s, whatever it does, until the run's jobs are done; how many there were."""
    num, deadline = 0, time.monotonic() + timeout_s
    while not are_jobs_done(run):
        next_at = time.monotonic() + rng.uniform(3.0, 8.0)
        name = rng.choice(PROCESSES)
        while time.monotonic() < next_at and not are_jobs_done(run):
            assert run.poll() is None, f"the run ended with {run.poll()}:\n{run.tail()}"
            assert time.monotonic() < deadline, f"no end after {num} kills in {timeout_s:g} s:\n{run.tail()}"
            time.sleep(0.1)
        pid = run.pid_of(name)
        if pid is not None and not are_jobs_done(run):
            os.kill(pid, signal.SIGKILL)
            num += 1
            say(f"{'':9} SIGKILL {name}")
    return num


def kill_broker_of_report(run: LiveRun, times: int, say: Callable[[str], None]) -> None:
    """SIGKILLs the broker as soon as the jobs are done, so that the report begins without one; and each later one when
    it has begun to start, before it answers: the report cannot be there earlier, however fast the machine is."""
    killed: set[int | None] = {None}

    def is_there() -> bool:
        return run.poll() is not None or run.pid_of("kafka") not in killed

    for _ in range(times):
        until(is_there, 60, what="a broker")
        pid = run.pid_of("kafka")
        assert pid is not None and run.poll() is None, f"the report was made before:\n{run.tail()}"
        os.kill(pid, signal.SIGKILL)
        killed.add(pid)
        say(f"{'':9} SIGKILL of the report's broker")


def are_jobs_done(run: LiveRun) -> bool:
    """Whether the run stops what is no job, for its report is next."""
    return not {"trainer", "tasks", "runner"} & set(run.children())


def _are_gone(pids: list[int]) -> bool:
    return not any(map(is_alive, pids))
