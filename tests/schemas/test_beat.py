"""Beats: from the thread that works alone, each with what it promises."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest

from tests.house import ROOT, tree_of
from tests.memory_log import MemoryLog
from tracegrad.compose.run.serve import NAMES
from tracegrad.producers.asgi import serve
from tracegrad.schemas import beat as beats
from tracegrad.schemas.beat import FIRST_S, START_S, WITHIN_S, Beat, acknowledged, beat, busy, kept, units, waiting
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.log.follow import follow
from tracegrad.schemas.log.protocol import Offsets


class Clock:
    """Stands still unless it is told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Of the beats."""
    return Clock()


@pytest.fixture
def told(clock: Clock) -> Iterator[list[Beat]]:
    """All beats of this thread."""
    found: list[Beat] = []
    with kept(found.append, clock=clock):
        yield found


def test_a_process_that_starts_has_time_until_its_loop_turns(told: list[Beat], clock: Clock) -> None:
    """Whatever it waits for meanwhile; from then on each beat promises the next."""
    clock.now += 100.0
    waiting("Kafka")
    beat()
    assert told == [Beat(0, START_S, "starting"), Beat(0, START_S - 100.0, "Kafka"), Beat(1, WITHIN_S, "")]


def test_what_loads_in_pieces_gives_a_beat_for_each(told: list[Beat], clock: Clock) -> None:
    """However long all of them take; a process that is frozen meanwhile is seen within START_S, not after an hour."""
    for _ in units("loading", range(3)):
        clock.now += 200.0
    assert [(one.doing, one.within_s) for one in told[1:]] == [("loading", START_S)] * 4
    clock.now += 20.0
    waiting("Kafka")
    assert told[-1] == Beat(0, WITHIN_S, "Kafka")


def test_a_thread_beside_the_work_says_nothing(told: list[Beat]) -> None:
    """It would live on beside a loop that hangs."""
    thread = threading.Thread(target=beat)
    thread.start()
    thread.join(5)
    assert len(told) == 1


def test_work_of_a_thread_beside_promises_nothing(told: list[Beat]) -> None:
    """Nor does it make the loop's own silence longer."""

    def work() -> None:
        with busy("beside"):
            pass

    beat()
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(5)
    waiting("Kafka")
    assert told[-2:] == [Beat(1, WITHIN_S, ""), Beat(1, WITHIN_S, "Kafka")]


def test_who_waits_for_another_thread_counts_from_its_beginning(told: list[Beat], clock: Clock) -> None:
    """It had taken 50 s by then, and 10 s more: ten times a minute from then on, or what it has taken already."""
    beat()
    with busy("storing", under_way_s=50.0):
        clock.now += 10.0
    for under_way_s in (100.0, 2000.0):
        with busy("storing", under_way_s=under_way_s):
            pass
    begun = [one.within_s for one in told if one.doing == "storing"][::2]
    assert begun == [FIRST_S - 50.0, WITHIN_S + 10 * 60.0 - 100.0, WITHIN_S]


def test_work_may_take_ten_times_its_longest(told: list[Beat], clock: Clock) -> None:
    """Per unit of its size, so that a large piece after a small one is not taken for a hang; waits within it take
    nothing of that away."""
    beat()
    for size, took_s in ((10, 2.0), (1000, 300.0)):
        with busy("step", size):
            waiting("inside")
            clock.now += took_s
    with busy("step", 10):
        pass
    assert [one.within_s for one in told[2:]] == [
        *(FIRST_S, FIRST_S, WITHIN_S),
        *(WITHIN_S + 10 * 0.2 * 1000, WITHIN_S + 10 * 0.2 * 1000, WITHIN_S),
        *(WITHIN_S + 10 * 0.3 * 10, WITHIN_S),
    ]


def test_waiting_for_an_acknowledgement_gives_beats(told: list[Beat], monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to its time; what the future raises is raised."""
    monkeypatch.setattr(beats, "_SLICE_S", 0.01)
    with pytest.raises(UnavailableError, match=r"append within 0\.05 s"):
        acknowledged(Future(), 0.05, "append")
    assert len(told) >= 3
    failed: Future[int] = Future()
    failed.set_exception(TimeoutError("its own"))
    with pytest.raises(TimeoutError, match="its own"):
        acknowledged(failed, 5.0, "append")
    done: Future[int] = Future()
    done.set_result(7)
    assert acknowledged(done, 5.0, "append") == 7


def test_a_log_that_is_away_is_waited_for_with_beats(told: list[Beat], monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker's outage is no frozen process."""
    log = MemoryLog()
    log.create_topic("t")

    def away(topic: str) -> dict[int, Offsets]:
        raise UnavailableError("away")

    monkeypatch.setattr(log, "offsets", away)
    beat()
    with pytest.raises(UnavailableError):
        next(follow(log, ["t"], patience_s=1.0))
    assert len(told) >= 5
    assert all(one.within_s == WITHIN_S for one in told[2:])


LOOPS = {
    "rewards": "producers/asgi.py",
    "otlp": "producers/asgi.py",
    "llm": "producers/asgi.py",
    "streams": "streams/shell/worker.py",
    "tasks": "producers/tasks/admission.py",
    "runner": "producers/runner/runner.py",
    "trainer": "trainer/loop.py",
    "weight-sync": "consumers/engine/weight_sync.py",
    "kafka": "compose/local_kafka/broker.py",
}
"""The file of each process's own work loop."""


def test_every_process_but_the_engine_gives_beats_in_its_own_loop() -> None:
    """The engine is another program, which its supervisor asks."""
    assert {*LOOPS} == {*NAMES, "kafka"} - {"engine"}
    for name, file in LOOPS.items():
        loops = [node for node in ast.walk(tree_of(ROOT / file)) if isinstance(node, ast.While | ast.For)]
        calls = {ast.unparse(node) for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call)}
        assert "beat()" in calls, (name, file)


def test_a_gateway_gives_beats_while_it_serves() -> None:
    """By the event loop that answers requests."""
    told: list[Beat] = []
    stop = threading.Event()

    async def application(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})

    def keep(one: Beat) -> None:
        told.append(one)
        if one.num_turns >= 3:
            stop.set()

    with kept(keep):
        serve(application, host="127.0.0.1", port=0, stop=stop, name="test")
    assert [one.num_turns for one in told] == [0, 1, 2, 3]
