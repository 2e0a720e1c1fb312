"""A run's past folded again: equal records in, whatever the order in which they are read; equal records out."""

from __future__ import annotations

from functools import partial
from random import Random
from typing import Any

import pytest

from tests.consumers.history.source_run import SourceRun, interleaved, raw_of
from tests.seeds import any_seed
from tests.streams.assemble.test_feedback import said
from tests.streams.assemble.test_interleavings import NAMES
from tests.streams.assemble.test_interleavings import conversation as two_requests
from tests.streams.assemble.test_links import ALL
from tests.streams.credit.strategies.test_conversations import conversation
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    Item,
    Streams,
    call,
    call_id,
    closed,
    config,
    event,
    reward,
    rollout,
)
from tests.streams.test_end_to_end import CONFIG, broken, solved
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import STREAMS, Topic
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.write.again import make_again
from tracegrad.streams.config import SelectConfig, StreamRules
from tracegrad.streams.folds import build_fold
from tracegrad.streams.ratings import rate_again

WAIT_S = 60.0


def refolded(
    records: list[Record], rules: StreamRules, recorded: RecordedEpisodes | None = None
) -> dict[Topic, list[bytes]]:
    """What a refold of these makes, by topic."""
    folds = {stage: build_fold(stage, rules, TOPICS) for stage in STREAMS}
    again = partial(make_again, rules=rules, topics=TOPICS, metrics=Metrics(), reward=Rewarder(rules.air, Metrics()))
    refold = Refold(folds, again, rate_again, TOPICS, recorded or RecordedEpisodes())
    made: dict[Topic, list[bytes]] = {}
    outputs: list[Output] = []
    for record in records:
        outputs += refold.fold(record)
    outputs += refold.finish()
    for output in outputs:
        made.setdefault(output.topic, []).append(output.value)
    return made


@any_seed
def test_what_nobody_recorded_closes_by_counts_as_it_would_have(seed: int) -> None:
    """Of attempts of a runner, in any order across topics."""
    streams = Streams(CONFIG)
    items = [*solved(), *broken()]
    Random(seed).shuffle(items)
    streams.feed(*items)
    made = refolded(interleaved(raw_of(streams), Random(seed)), CONFIG)
    assert sorted(made[Topic.EPISODES]) == sorted(streams.values(Topic.EPISODES))
    assert made[Topic.TRANSITIONS] == streams.values(Topic.TRANSITIONS)


@pytest.mark.parametrize("name", NAMES)
@any_seed
def test_a_conversation_closes_again_with_what_it_closed_with(name: str, seed: int) -> None:
    """Two requests in two traces, which come in any order and between which an agent falls silent at any time: however
    many episodes the source made of them, the same come again, byte for byte, without a clock."""
    random = Random(seed)
    source = SourceRun(config(select=ALL, idle_s=10.0))
    items = two_requests(name)
    random.shuffle(items)
    source.live(items, random, pause_s=30.0)
    made = refolded(interleaved(raw_of(source), random), source.config, source.recorded())
    assert sorted(made[Topic.EPISODES]) == sorted(source.values(Topic.EPISODES))


@any_seed
def test_feedback_counts_again_as_it_counted(seed: int) -> None:
    """In time, late, revised, before and behind the close of an episode: the same transitions in the same order."""
    random = Random(seed)
    select = SelectConfig(capture_all=True, train=True)
    rules = config(reward_sources=("feedback",), select=select, feedback_wait_s=WAIT_S, idle_s=10.0)
    source = SourceRun(rules)
    items: list[Any] = []
    for number in range(4):
        key = f"{number:x}e" * 16
        calls = conversation((f"a{number}", True), (f"b{number}", False), key=key)
        answer = call_id(f"b{number}")
        mine = [
            *calls,
            said(1.0, f"k{number}", conversation_key=key, at_ms=1),
            said(-0.5, f"t{number}", conversation_key=key, target=answer, at_ms=2),
            said(0.25, f"k{number}", conversation_key=key, at_ms=3),
        ]
        items = _woven(items, mine, random)
    source.live(items, random, pause_s=40.0)
    made = refolded(interleaved(raw_of(source), random), rules, source.recorded())
    assert made.get(Topic.TRANSITIONS, []) == source.values(Topic.TRANSITIONS)
    assert sorted(made[Topic.EPISODES]) == sorted(source.values(Topic.EPISODES))


def attempt(number: int, group: str, member: int) -> list[Item]:
    """One that answers by one call, of a group of two."""
    own = rollout(number)
    one = call(f"c{number}", own, [1, 2], [3])
    place = GroupRef(id=RUN_HASH + group * 16, size=2, member=member, index=0)
    return [one, closed(own, [one]), reward(own, 1.0), event(own, group=place, spans_exported=0)]


@any_seed
def test_a_group_that_closed_in_part_closes_so_again(seed: int) -> None:
    """Where the source, with less room, gave up its second member, which came later; in its place among the others."""
    source = SourceRun(config(max_open_groups=1))
    source.feed(*attempt(0, "a", 0), *attempt(2, "b", 0), *attempt(3, "b", 1), *attempt(1, "a", 1))
    groups = source.values(Topic.TRANSITIONS)
    assert len(groups) == 2 and len(source.values(Topic.EPISODES)) == 4
    with_room = config(max_open_groups=100)
    made = refolded(interleaved(raw_of(source), Random(seed)), with_room, source.recorded())
    assert made[Topic.TRANSITIONS] == groups
    assert sorted(made[Topic.EPISODES]) == sorted(source.values(Topic.EPISODES))


def test_how_many_groups_close_meanwhile_was_the_sources_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of several workers each counts those of its partitions; one that counted all would give a group up sooner."""
    source = SourceRun(config())
    source.feed(*attempt(0, "a", 0))
    for number, group in enumerate("bcdef"):
        source.feed(*attempt(10 + 2 * number, group, 0), *attempt(11 + 2 * number, group, 1))
    source.feed(*attempt(1, "a", 1))
    monkeypatch.setattr("tracegrad.streams.credit.fold.OVERTAKEN", 3)
    made = refolded(raw_of(source), config(), source.recorded())
    assert made[Topic.TRANSITIONS] == source.values(Topic.TRANSITIONS)


def _woven(one: list[Any], other: list[Any], random: Random) -> list[Any]:
    """Both, each in its order."""
    places = sorted(random.sample(range(len(one) + len(other)), len(other)))
    woven = list(one)
    for place, item in zip(places, other, strict=True):
        woven.insert(place, item)
    return woven
