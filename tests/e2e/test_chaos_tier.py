"""A run of thousands of transitions in which every process dies, stands still, and loses its broker and its disk.

All parts are real but the engine, which answers by script, so that the loop is fast and needs no vLLM. The count at
the end is the test's. `TRACEGRAD_TEST_TRANSITIONS=100000` makes it long; `TRACEGRAD_TEST_ENGINE=vllm` lets random
kills meet vLLM.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.chaos_run import ENDLESS, ChaosRun, ended, light_policy, make_run
from tests.e2e.checks import check_end
from tests.e2e.engine_beside import EngineBeside
from tests.e2e.faults import SmallDisk
from tests.e2e.live_run import LiveRun, Observer
from tests.e2e.returns import table
from tests.e2e.tier import KILLS, PROCESSES, disturb, kill_at_random, kill_broker_of_report, wait_for_end
from tests.serving import until

pytestmark = [pytest.mark.e2e, pytest.mark.kafka, pytest.mark.torch]
NUM_TRANSITIONS = int(os.environ.get("TRACEGRAD_TEST_TRANSITIONS", "5000"))
GROUPS, MEMBERS, CONCURRENCY = 8, 8, 32
PER_STEP = GROUPS * MEMBERS * 2 * 0.95
"""Transitions of a step: the scripted policy calls its tool and answers; a few rollouts end before."""
STEPS_NEEDED = math.ceil(NUM_TRANSITIONS / PER_STEP)
END_S = 300 + NUM_TRANSITIONS / 10
"""For what is left when all faults are over; two cores made 40 transitions a second."""
SETTINGS = {
    "trainer.groups_per_step": GROUPS,
    "tasks.group_size": MEMBERS,
    "agent.concurrency": CONCURRENCY,
    "streams.workers": 1,
    # The engine's logprobs are no model's: what the trainer makes of them must only stay finite.
    "trainer.lr": 1e-6,
}
SMALL = {"trainer.groups_per_step": 4, "tasks.group_size": 4}
STEPS, SEED, REPORT_KILLS = 60, 9, 2
HAS_VLLM = os.environ.get("TRACEGRAD_TEST_ENGINE") == "vllm"
LIMIT_S = 2400 if HAS_VLLM else 600
"""Of the run under random kills."""


@pytest.mark.timeout(1200 + END_S)
def test_nothing_is_lost_or_doubled_whatever_fails(tmp_path: Path) -> None:
    """SIGKILL three times each, SIGSTOP for 10 s and 60 s, disk full for 20 s, broker away for 60 s."""
    with SmallDisk.mounted(tmp_path / "disk") as disk, EngineBeside(tmp_path / "engine.log") as engine:
        run = make_run(tmp_path / "disk", engine=engine, model=light_policy(tmp_path / "policy"), settings=SETTINGS)
        with ended(run), started(run, ENDLESS) as seen:
            per_host = CONCURRENCY // 2
            done = disturb(run, seen, disk, print, per_host=per_host, steps=STEPS_NEEDED)
            assert wait_for_end(run, END_S) == 0, run.tail()
        print("\n".join(table(done.returned)))
        said = run.output.read_text(errors="replace").splitlines()
        why = "\n".join(line for line in said if "died, restarting" in line or "killing it" in line)
        print(why)
        snapshot = check_end(ChaosRun(run, done.killed), min_steps=done.steps)
        print(f"{snapshot.num_transitions} transitions in {snapshot.step} steps, {len(done.killed)} kills")
    killed = Counter(known.name for known in done.killed)
    assert killed == dict.fromkeys(PROCESSES, KILLS)
    frozen = {back.name: back.is_restarted for back in done.returned if back.fault == "SIGSTOP 10 s"}
    assert frozen == dict.fromkeys(PROCESSES, False), f"expected all to survive 10 s\n{why}"
    gave_up = [back.name for back in done.returned if back.fault == "broker away 60 s" and back.is_restarted]
    assert set(gave_up) <= {"kafka"}, f"expected all to wait for the broker\n{why}"
    assert snapshot.num_transitions >= NUM_TRANSITIONS
    if disk is None:
        pytest.skip("all held, but no disk was full: only root may mount a small one")


@pytest.mark.timeout(LIMIT_S + 400)
def test_a_run_ends_well_under_random_kills(tmp_path: Path) -> None:
    """A SIGKILL every 3 to 8 s, and the broker's twice while the report is made."""
    with EngineBeside(tmp_path / "engine.log") if not HAS_VLLM else contextlib.nullcontext() as engine:
        model = light_policy(tmp_path / "policy") if engine is not None else None
        run = make_run(tmp_path, engine=engine, model=model, settings={**SETTINGS, **SMALL})
        with ended(run):
            with started(run, STEPS) as seen:
                num = kill_at_random(run, random.Random(SEED), print, LIMIT_S)
                kill_broker_of_report(run, REPORT_KILLS, print)
                assert wait_for_end(run, 120) == 0, run.tail()
            print(f"{num} kills, {REPORT_KILLS} more of the report's broker, {seen.step} steps")
        check_end(ChaosRun(run, ()), min_steps=STEPS)


@contextlib.contextmanager
def started(run: LiveRun, steps: int) -> Iterator[Observer]:
    """The run from its first step on."""
    run.start("--steps", str(steps))
    until(lambda: run.poll() is not None or (run.path / "endpoints.json").is_file(), 240, what="addresses")
    with Observer(run) as seen:
        until(lambda: run.poll() is not None or seen.step >= 1, 400, what="the first step")
        assert run.poll() is None, run.tail()
        yield seen
