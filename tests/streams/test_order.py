"""The assembler's promise: all orders, duplicates and re-deliveries of an episode give the same bytes."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from tests.streams.make import (
    TOPICS,
    Item,
    Streams,
    agent_span,
    call,
    closed,
    config,
    event,
    let_in,
    llm_span,
    otlp,
    raw,
    reward,
    rollout,
    signed_by,
    span,
    tool_call,
    tool_span,
)
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.transitions import decode_group
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.assemble.air.rules import AirRule
from tracegrad.streams.folds import build_fold

R1 = rollout(1)
OWN = R1 + "a001"
CONFIG = config(air=(AirRule(name="ok", status="succeeded", value=0.5, cap=1),))

CALLS = [
    call("plan", R1, [1, 2], [3], tool_calls=(tool_call("delegate", "coder"),)),
    call("code", R1, [4], [5, 6], tool_calls=(tool_call("run"),)),
    call("code2", R1, [7], [8], parent_call_id=call("code", R1).call_id, shared_tokens=3),
    call("plan2", R1, [9], [10], parent_call_id=call("plan", R1).call_id, shared_tokens=3),
]
SPANS = [
    agent_span(OWN, 1, "planner"),
    llm_span(OWN, 2, "plan", parent=1, at=1),
    tool_span(OWN, 3, "coder", parent=1, at=3, gen_ai__tool__call__id="call_delegate"),
    agent_span(OWN, 4, "coder", parent=3, at=4),
    llm_span(OWN, 5, "code", parent=4, at=5),
    tool_span(OWN, 6, parent=4, at=7, gen_ai__tool__call__id="call_run", gen_ai__tool__call__result="Error: no"),
    llm_span(OWN, 7, "code2", parent=4, at=9),
    llm_span(OWN, 8, "plan2", parent=1, at=11),
    span(OWN, 9, "POST", parent=8, at=11),
]
STALE_END = event(R1, RolloutState.FAILED, spans_exported=len(SPANS), at_ms=1)
ON_CALLS: list[Item] = [*CALLS, closed(R1, CALLS)]
RAW = [
    *((*raw(item), offset) for offset, item in enumerate(ON_CALLS)),
    (*raw(reward(R1, 1.0)), 0),
    (*raw(event(R1, RolloutState.STARTED)), 0),
    (*raw(event(R1, spans_exported=len(SPANS), spans_marked=True, at_ms=2)), 1),
    *(
        (Topic.OTLP_SPANS, let_in(otlp(*SPANS[start : start + 2], is_counted=True)), start)
        for start in range(0, len(SPANS), 2)
    ),
]
"""(topic, bytes, offset on its topic) of a planner that delegates to a coder whose tool fails."""


def facts() -> list[bytes]:
    """The batches of facts that normalize makes of the raw records."""
    normalize = build_fold(Stage.NORMALIZE, CONFIG, TOPICS)
    outputs: list[Output] = []
    for topic, value, offset in RAW:
        headers = signed_by(CONFIG.run_hash)
        record = Record(topic=TOPICS.name(topic), partition=0, offset=offset, key=None, value=value, headers=headers)
        outputs += normalize.fold(record).outputs
    return [output.value for output in outputs]


FACTS = facts()


def expected() -> Streams:
    """The episode in the order in which it happened."""
    streams = Streams(CONFIG)
    for value in FACTS:
        streams.append(Topic.EPISODE_EVENTS, value)
    return streams


EXPECTED = expected()
(EPISODE,) = EXPECTED.values(Topic.EPISODES)


def test_the_two_agent_episode_by_hand() -> None:
    """Who spoke when, what was paid, and what each turn is worth."""
    episode = EPISODES.decode(EPISODE)
    assert [(c.agent, c.turn) for c in episode.calls] == [("planner", 0), ("coder", 0), ("coder", 1), ("planner", 1)]
    assert [[r.value for r in c.rewards] for c in episode.calls] == [[0.5], [], [], []]
    summary, rows = decode_group(EXPECTED.values(Topic.TRANSITIONS)[0])
    assert summary.members[0].reward == 1.0
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 9, 10], [4, 5, 6, 7, 8]]
    assert [[(t.agent, t.peers, t.return_) for t in row.turns] for row in rows] == [
        [("planner", "planner:0", 1.5), ("planner", "planner:1", 1.0)],
        [("coder", "coder:0", 1.0), ("coder", "coder:1", 1.0)],
    ]


@given(st.permutations(range(len(FACTS))), st.lists(st.integers(0, len(FACTS) - 1), max_size=8), st.randoms())
def test_any_order_and_duplicates_give_the_same_bytes(
    order: list[int], repeated: list[int], rng: random.Random
) -> None:
    """One episode, one marker, all positions done, transitions equal."""
    delivered = list(order)
    for number in repeated:
        delivered.insert(rng.randrange(len(delivered) + 1), number)
    streams = Streams(CONFIG)
    for number in delivered:
        streams.append(Topic.EPISODE_EVENTS, FACTS[number])
    assert streams.values(Topic.EPISODES) == [EPISODE]
    assert streams.values(Topic.TRANSITIONS) == EXPECTED.values(Topic.TRANSITIONS)
    assert len(streams.values(Topic.CLOSED_EPISODES)) == 1
    assert sum(topic.endswith("episode_events") for topic, _ in streams.done) == len(delivered)


@given(st.permutations(range(len(FACTS))), st.lists(st.integers(0, len(FACTS)), max_size=4))
def test_re_deliveries_after_restarts_give_the_same_bytes(order: list[int], crashes: list[int]) -> None:
    """A restart forgets the state, reads the markers and gets again what was not done."""
    streams = Streams(CONFIG)
    records = [
        Record(topic=TOPICS.name(Topic.EPISODE_EVENTS), partition=0, offset=offset, key=b"", value=FACTS[number])
        for offset, number in enumerate(order)
    ]
    episodes: list[bytes] = []
    markers: list[Record] = []
    done: set[int] = set()
    for stop in [*crashes, len(records)]:
        streams.assemble.reset()
        streams.assemble.restore(markers)
        for record in records[:stop]:
            if record.offset not in done:
                emission = streams.assemble.fold(record)
                episodes += [output.value for output in emission.outputs]
                if emission.marker is not None:
                    marker = emission.marker
                    name = TOPICS.name(marker.topic)
                    markers.append(Record(topic=name, partition=0, offset=0, key=marker.key, value=marker.value))
                done |= {position.offset for position in emission.done}
    assert set(episodes) == {EPISODE}
    assert done == set(range(len(records)))


@given(st.permutations(range(len(RAW))))
def test_any_interleaving_of_the_raw_topics_gives_the_same_transitions(order: list[int]) -> None:
    """A replay reads the same raw records in another interleaving."""
    streams = Streams(CONFIG)
    for number in order:
        topic, value, offset = RAW[number]
        streams.append(topic, value, offset=offset, headers=signed_by(CONFIG.run_hash))
    assert streams.values(Topic.EPISODES) == [EPISODE]
    assert streams.values(Topic.TRANSITIONS) == EXPECTED.values(Topic.TRANSITIONS)


@given(st.permutations(range(4)))
def test_facts_that_conflict_have_one_winner(order: list[int]) -> None:
    """The greatest end time wins, whichever came first, as long as the episode is open."""
    stale = call("a", R1, [1], [2], content="stale", ended_at_ns=5)
    fresh = call("a", R1, [1], [3], content="fresh", ended_at_ns=6)
    conflicting: list[Item] = [stale, fresh, STALE_END, event(R1, at_ms=2)]
    streams = Streams(CONFIG)
    for number in order:
        streams.feed(conflicting[number])
    assert streams.values(Topic.EPISODES) == []
    streams.feed(*(otlp(span(OWN, n + 1)) for n in range(len(SPANS))), reward(R1, 1.0), closed(R1, [fresh]))
    episode = streams.episode
    assert ([c.content for c in episode.calls], episode.state) == (["fresh"], RolloutState.SUCCEEDED)
