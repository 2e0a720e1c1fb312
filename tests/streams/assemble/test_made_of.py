"""An episode's header names exactly the raw records whose facts are in it, and a group's header its episodes.

Whatever the order, whoever is killed, and however often a record is delivered.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from random import Random

import pytest

from tests.schemas.log.test_made_of import offsets
from tests.seeds import any_seed
from tests.streams.assemble.test_feedback import said
from tests.streams.assemble.test_interleavings import IDLE_S, NAMES, Worker, drive, facts_of
from tests.streams.assemble.test_interleavings import conversation as of_two_traces
from tests.streams.assemble.test_links import ALL
from tests.streams.credit.strategies.test_conversations import TURNS, conversation
from tests.streams.credit.test_feedback_window import Run
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    Streams,
    call_id,
    chain,
    closed,
    config,
    event,
    otlp,
    reward,
    rollout,
    span,
)
from tracegrad.schemas.fold import Emission
from tracegrad.schemas.ids import attempt_of
from tracegrad.schemas.log.made_of import (
    GroupMadeOf,
    MadeOf,
    Parts,
    made_of,
    origins_in,
    raw_positions,
)
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts, LinkFact
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.open_episode import OpenEpisode
from tracegrad.streams.assemble.write.emit import emit

RULES = config(select=ALL, idle_s=IDLE_S)


def of_episode(record: Record) -> MadeOf:
    """What an episode's record says."""
    made = made_of(record.headers, MadeOf)
    assert made is not None and (made.gap, made.num_omitted, made.revision) == (1, 0, 0)
    return made


def union(parts: Iterable[Parts]) -> Parts:
    """By key."""
    parts = list(parts)
    keys = {key for one in parts for key in one}
    return {key: raw_positions({key: one[key]} for one in parts if key in one) for key in sorted(keys)}


def written(worker: Worker) -> list[tuple[bytes, MadeOf]]:
    """The episodes of a worker."""
    values = zip(worker.episodes, worker.headers, strict=True)
    return [
        (value, of_episode(Record(topic="episodes", partition=0, offset=0, key=None, value=value, headers=headers)))
        for value, headers in values
    ]


def folded_again(made: MadeOf, facts: Sequence[Record]) -> bytes:
    """The body of an episode of just the facts that its header names, in the order of their records."""
    episode = OpenEpisode(made.id, attempt_of(made.id, RULES.runs), partition=0, key=made.key)
    held = {(key, at): offsets(few) for key, of in made.parts.items() for at, few in of.items()}
    for record in facts:
        ((key, positions),) = origins_in(record.headers).items()
        ((at, ((begin, _),)),) = positions.items()
        if begin in held.get((key, at), ()):
            batch = EPISODE_EVENTS.decode(record.value)
            assert isinstance(batch, Facts)
            if key not in (made.id, made.key):
                episode.sources.add(key)
            for fact in batch.facts:
                episode.add_fact(fact, RULES.reward_sources)
    record, reward = facts[0], Rewarder(RULES.air, Metrics())
    output, *_ = emit(episode, record, made.closed_by, rules=RULES, topics=TOPICS, metrics=Metrics(), reward=reward)
    return output.value


def is_link_alone(record: Record) -> bool:
    """Whether a record of facts only says whither a trace goes."""
    batch = EPISODE_EVENTS.decode(record.value)
    return isinstance(batch, Facts) and all(isinstance(fact, LinkFact) for fact in batch.facts)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_order_names_every_record(name: str) -> None:
    """Of a conversation in two traces, whose facts are forwarded, also twice, over kills and proposals."""
    facts = facts_of(of_two_traces(name))
    # What links a trace that has gone already changes nothing any more, and goes nowhere.
    every = union(origins_in(record.headers) for record in facts)
    least = union(origins_in(record.headers) for record in facts if not is_link_alone(record))
    for seed in range(50):
        worker = Worker()
        drive(worker, facts, Random(seed), is_silent=False)
        for value, made in written(worker):
            assert union([made.parts, least]) == made.parts, seed
            assert union([made.parts, every]) == every, seed
            assert (made.id, made.closed_by) == (EPISODES.decode(value).episode_id, EPISODES.decode(value).closed_by)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["header", "baggage", "tool-call id"])
def test_what_a_header_names_makes_the_same_episode(name: str) -> None:
    """Also where an agent falls silent at any time, so that some facts are late or of the next episode."""
    facts = facts_of(of_two_traces(name))
    num_partial = 0
    for seed in range(100):
        worker = Worker()
        drive(worker, facts, Random(seed), is_silent=True)
        for value, made in written(worker):
            num_partial += made.parts != union(origins_in(record.headers) for record in facts)
            assert folded_again(made, facts) == value, seed
    assert num_partial > 10


def of_attempts() -> list[Record]:
    """Facts of three attempts, whose raw records lie between each other's; some are delivered twice."""
    run = Streams(config())
    run.assemble.fold = lambda record: Emission()  # type: ignore[method-assign]
    owns = [rollout(number) for number in range(3)]
    calls = {own: chain(own, 3) for own in owns}
    for own in owns:
        run.feed(event(own, RolloutState.STARTED))
    for turn in range(3):
        for own in owns:
            run.feed(calls[own][turn], otlp(span(own + "a001", turn + 1), is_counted=True))
            run.feed(otlp(*(span(one + "a001", 10 + turn) for one in owns)))
    for own in owns:
        end = event(
            own, spans_exported=3, spans_marked=True, group=GroupRef(id=RUN_HASH + own[-16:], size=1, member=0, index=0)
        )
        run.feed(closed(own, calls[own]), reward(own), end)
    return run.log[Topic.EPISODE_EVENTS]


@any_seed
def test_an_attempts_header_names_what_was_folded_and_nothing_late(seed: int) -> None:
    """Spans of others that nobody waits for may come before its close or after; each record twice, by chance."""
    random, facts, worker = Random(seed), of_attempts(), Worker()
    mixed = random.sample([*facts, *random.sample(facts, 10)], len(facts) + 10)
    known: dict[str, list[Parts]] = {}
    for record in mixed:
        batch = EPISODE_EVENTS.decode(record.value)
        num = len(worker.episodes)
        if random.random() < 0.1:
            worker.settle()
            worker.restart()
            worker.settle()
        worker.append(record.key, record.value or b"", record.headers)
        if batch.episode_id not in {made.id for _, made in written(worker)[:num]}:
            known.setdefault(batch.episode_id, []).append(origins_in(record.headers))
        worker.settle()
    assert len({made.id for _, made in written(worker)}) == 3
    for value, made in written(worker):
        assert made.parts == union(known[made.id])
        assert (made.key, made.group) == (made.id, EPISODES.decode(value).group.id)  # type: ignore[union-attr]
        assert folded_again(made, facts) == value
    assert {*worker.episodes} == {value for value, made in written(worker)}


def test_equal_episodes_that_lie_elsewhere_have_equal_bodies() -> None:
    """Lineage is in headers alone."""
    own, bodies, parts = rollout(1), set(), []
    for first in (0, 700):
        streams, made = Streams(config()), chain(own, 1)
        for number in range(first):
            streams._record(Topic.REWARDS, b"", None)
            assert number >= 0
        streams.feed(*made, closed(own, made), reward(own), event(own))
        (record,) = streams.log[Topic.EPISODES]
        bodies.add(record.value)
        parts.append(of_episode(record).parts[own + "a001"]["rewards/0"])
    assert (len(bodies), parts) == (1, [[(0, 1)], [(700, 701)]])


def test_a_group_names_its_episodes_by_their_bytes() -> None:
    """By member; the one that a later attempt superseded is in no group."""
    streams = Streams(config())
    for member in (1, 0):
        own = rollout(member)
        made = chain(own, 1)
        place = GroupRef(id=RUN_HASH + "e" * 16, size=2, member=member, index=0)
        if member:
            streams.feed(
                event(own, RolloutState.ABORTED, is_final=False, attempt_id="b002", calls_closed=False, group=place)
            )
        streams.feed(*made, closed(own, made), reward(own), event(own, group=place))
    (record,) = streams.log[Topic.TRANSITIONS]
    made_of_group = made_of(record.headers, GroupMadeOf)
    assert made_of_group is not None
    bodies = {EPISODES.decode(value).episode_id: value for value in streams.values(Topic.EPISODES)}
    assert [(ref.id, ref.revision, ref.sha256) for ref in made_of_group.episodes] == [
        (own + "a001", 0, hashlib.sha256(bodies[own + "a001"]).hexdigest()) for own in (rollout(0), rollout(1))
    ]
    assert (made_of_group.group, made_of_group.num_omitted, made_of_group.feedback) == (RUN_HASH + "e" * 16, 0, {})


def test_a_group_names_the_feedback_that_came_behind_its_close() -> None:
    """Where it lies on `rewards`; what came before is the episode's, what came too late nobody's."""
    run = Run()
    run.feed(*conversation(*TURNS), said(0.5, "k0"))
    run.wait(20)
    run.feed(said(1.0, "k1", target=call_id("d")))
    run.wait(20)
    run.feed(said(0.5, "k2"))
    run.wait(40)
    run.feed(said(0.5, "k3"))
    run.wait(100)
    (episode,), (group,) = run.streams.log[Topic.EPISODES], run.streams.log[Topic.TRANSITIONS]
    assert raw_positions([of_episode(episode).parts])["rewards/0"] == [(0, 1)]
    made = made_of(group.headers, GroupMadeOf)
    assert made is not None
    assert (made.feedback, [ref.id for ref in made.episodes]) == ({"rewards/0": [(1, 3)]}, [of_episode(episode).id])
    of_scores = [
        raw_positions([origins_in(record.headers)])
        for record in run.streams.log[Topic.EPISODE_SCORES]
        if b'"score"' in (record.value or b"")
    ]
    assert of_scores == [{"rewards/0": [(place, place + 1)]} for place in (1, 2, 3)]
