"""The real assembler on real Kafka: two workers under three SIGKILLs give the episodes of an undisturbed fold."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest

from tests.streams.make import (
    Item,
    Streams,
    agent_span,
    call,
    call_id,
    closed,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    tool_call,
    tool_span,
)
from tests.streams.shell.worker_bench import Bench, bench
from tracegrad.compose.kafka.log import KafkaLog
from tracegrad.schemas.records.episodes import CLOSED, EPISODES
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic, Topics

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(400)]

NUM_EPISODES = 500


def _raw(number: int) -> list[Item]:
    """A two-call episode with agent, LLM and tool spans; every tenth is an attempt that was aborted."""
    rollout_id = rollout(number)
    trace = rollout_id + "a001"
    asked = call(f"a{number}", rollout_id, [1, 2, number], [3, 4], tool_calls=(tool_call(f"t{number}"),), content=None)
    answered = call(
        f"b{number}",
        rollout_id,
        [9],
        [5, 6],
        parent_call_id=call_id(f"a{number}"),
        shared_tokens=5,
    )
    spans = [
        agent_span(trace, 1, "solver"),
        llm_span(trace, 2, f"a{number}", parent=1),
        tool_span(trace, 3, parent=1, gen_ai__tool__call__id=f"call_t{number}"),
        llm_span(trace, 4, f"b{number}", parent=1),
    ]
    state = RolloutState.ABORTED if number % 10 == 0 else RolloutState.SUCCEEDED
    end = [event(rollout_id, RolloutState.STARTED), event(rollout_id, state, spans_exported=len(spans))]
    return [
        end[0],
        asked,
        otlp(spans[2]),
        answered,
        otlp(*spans[:2], spans[3]),
        closed(rollout_id, [asked, answered]),
        reward(rollout_id, number / 7),
        end[1],
    ]


def _material() -> tuple[list[tuple[bytes | None, bytes]], dict[str, bytes]]:
    """Facts of many episodes, interleaved, some of them twice; and the episodes of a fold that nothing disturbs."""
    rng = random.Random(7)
    facts: list[tuple[float, bytes | None, bytes]] = []
    episodes: dict[str, bytes] = {}
    for number in range(NUM_EPISODES):
        streams = Streams()
        streams.feed(*_raw(number))
        for value in streams.values(Topic.EPISODES):
            episodes[EPISODES.decode(value).episode_id] = value
        records = streams.log[Topic.EPISODE_EVENTS]
        for at, record in zip(sorted(number + rng.uniform(0, 60) for _ in records), records, strict=True):
            facts.append((at, record.key, record.value or b""))
            if rng.random() < 0.1:
                facts.append((at + rng.uniform(0, 60), record.key, record.value or b""))
    return [(key, value) for _, key, value in sorted(facts, key=lambda fact: fact[0])], episodes


def _bodies(made: Bench) -> dict[str, set[bytes]]:
    bodies: dict[str, set[bytes]] = defaultdict(set)
    for record in made.records(Topic.EPISODES):
        bodies[EPISODES.decode(record.value).episode_id].add(record.value or b"")
    return bodies


def test_episodes_of_two_workers_under_three_kills_equal_those_of_an_undisturbed_fold(
    kafka_log: KafkaLog, fresh_topics: Topics, tmp_path: Path
) -> None:
    """Killed in the midst of open episodes, with acknowledgements late and out of order; contents, not offsets."""
    facts, episodes = _material()
    assert len(episodes) == NUM_EPISODES
    with bench(kafka_log, fresh_topics, tmp_path) as made:

        def feed() -> None:
            for n, (key, value) in enumerate(facts):
                made.writer.append(fresh_topics.name(Topic.EPISODE_EVENTS), key=key, value=value)
                if n % 50 == 0:
                    time.sleep(0.1)

        workers = {name: made.start(name, max_delay_s=0.2) for name in ("0", "1")}
        feeder = threading.Thread(target=feed)
        feeder.start()
        for victim in ("1", "0", "1"):
            seen = len(made.records(Topic.CLOSED_EPISODES))
            made.wait(lambda n=seen: len(made.records(Topic.CLOSED_EPISODES)) > n + 20, "more closed")  # type: ignore[misc]
            assert made.uncommitted > 0
            workers[victim].kill()
            workers[victim] = made.start(victim, max_delay_s=0.2)
        feeder.join(60)
        made.writer.flush(10)
        made.wait(lambda: set(_bodies(made)) == set(episodes) and not made.uncommitted, "every episode, committed")
        assert _bodies(made) == {id_: {value} for id_, value in episodes.items()}
        assert {CLOSED.decode(record.value).id for record in made.records(Topic.CLOSED_EPISODES)} == set(episodes)
        assert made.records(Topic.DEAD_LETTERS) == []
        assert [worker.terminate() for worker in workers.values()] == [0, 0]
