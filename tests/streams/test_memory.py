"""What `max_open_bytes` bounds is memory: what is open takes at most three times the bytes of its records, whatever it
is made of, and a few kilobytes for each episode or group.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

from tests.streams.credit.test_credit import member, record
from tests.streams.credit.test_segments import call as episode_call
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    Raw,
    call,
    config,
    event,
    otlp,
    raw,
    reward,
    rollout,
    signed_by,
    tool_span,
)
from tracegrad.schemas.fold import Emission, Fold
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.folds import build_fold

_MAX_BYTES = 1024 * 1024
_FACTOR = 3
"""Python's objects for the bytes that they were; 2.8 is the worst that was seen, of rewards."""
_EACH_BYTES = 3_000
"""Of an open episode or group by itself; 2.2 kB were seen."""


def spans(own: str) -> Iterator[Raw]:
    """Of tools, 250 a record."""
    for start in range(1, 1_000, 250):
        tools = [tool_span(own + "a001", number) for number in range(start, start + 250)]
        yield raw(otlp(*tools))


def short_calls(own: str) -> Iterator[Raw]:
    """Of few tokens, so that what is around them counts most."""
    for number in range(100):
        yield raw(call(f"{own[-4:]}{number}", own, range(5), range(5)))


def long_calls(own: str) -> Iterator[Raw]:
    """Of many tokens."""
    for number in range(20):
        yield raw(call(f"{own[-4:]}{number}", own, range(2_000), range(500)))


def rewards(own: str) -> Iterator[Raw]:
    """That nobody listens to."""
    for number in range(50):
        yield raw(reward(own, name=f"r{number}", source="anonymous"))


def nothing(own: str) -> Iterator[Raw]:
    """Beside the event that opens it."""
    return iter(())


class Held:
    """What was allocated and is kept since it was made."""

    def __init__(self) -> None:
        gc.collect()
        tracemalloc.start()
        self._before = tracemalloc.get_traced_memory()[0]

    def num_bytes(self) -> int:
        """By now; ends the measurement."""
        gc.collect()
        num_bytes = tracemalloc.get_traced_memory()[0] - self._before
        tracemalloc.stop()
        return num_bytes


@pytest.mark.slow
@pytest.mark.parametrize("kind", [spans, short_calls, long_calls, rewards, nothing], ids=lambda kind: kind.__name__)
def test_memory_of_open_episodes_is_bounded(kind) -> None:  # type: ignore[no-untyped-def]
    """Until records are refused, or there are 2,000 episodes."""
    rules = config(max_open_bytes=_MAX_BYTES)
    normalize, assemble = (build_fold(stage, rules, TOPICS) for stage in (Stage.NORMALIZE, Stage.ASSEMBLE))
    held, offset = Held(), 0
    for number in range(2_000):
        own = rollout(number)
        is_full = False
        for topic, value in (raw(event(own, RolloutState.STARTED)), *kind(own)):
            for output in normalize.fold(_record(topic, value, offset)).outputs:
                offset += 1
                is_full |= _is_refused(assemble, _record(Topic.EPISODE_EVENTS, output.value, offset))
        if is_full:
            break
    num_bytes = held.num_bytes()
    assert is_full or kind is nothing
    assert num_bytes < _FACTOR * _MAX_BYTES + assemble.num_open * _EACH_BYTES


@pytest.mark.slow
@pytest.mark.parametrize(("num_calls", "num_tokens"), [(2, 5), (50, 5), (2, 2_000)], ids=["few", "short", "long"])
def test_memory_of_open_groups_is_bounded(num_calls: int, num_tokens: int) -> None:
    """Beyond the bound, episodes join without their calls."""
    credit = build_fold(Stage.CREDIT, config(max_open_bytes=_MAX_BYTES), TOPICS)
    calls = tuple(episode_call(f"c{number}", [1] * num_tokens, [2] * num_tokens) for number in range(num_calls))
    size = len(EPISODES.encode(member(0, calls=calls)))
    held = Held()
    for number in range(4 * _MAX_BYTES // size):
        group = GroupRef(id=f"{RUN_HASH}{number:016x}", size=2, member=0, index=number)
        credit.fold(record(member(0, group=group, rollout_id=rollout(number), calls=calls), number))
    num_bytes = held.num_bytes()
    assert credit.num_open == 4 * _MAX_BYTES // size
    assert num_bytes < _FACTOR * _MAX_BYTES + credit.num_open * _EACH_BYTES


def _record(topic: Topic, value: bytes, offset: int) -> Record:
    headers = signed_by(RUN_HASH)
    return Record(topic=TOPICS.name(topic), partition=0, offset=offset, key=None, value=value, headers=headers)


def _is_refused(fold: Fold, taken: Record) -> bool:
    emission: Emission = fold.fold(taken)
    return any(output.topic is Topic.DEAD_LETTERS for output in emission.outputs)
