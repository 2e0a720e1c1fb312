"""Where a run's groups go on when Kafka forgot, retention was faster, or somebody changed a topic. No broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from tests.memory_log import MemoryLog
from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    Item,
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
)
from tracegrad.compose.kafka.positions import TopicStart, begin_run, positions
from tracegrad.schemas.errors import ConfigurationError, LogGapError
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.log.ledger import Ledger
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Close
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic
from tracegrad.streams.folds import build_fold

MAX_CLOSED_IDS = 1000
NUM_ROLLOUTS = 6
Starts = Mapping[str, TopicStart]


def new_log() -> MemoryLog:
    """All topics, and of other runs a few raw records that this run must never see."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"])
    writer = log.writer()
    for n in range(5):
        writer.append(TOPICS.name(Topic.LLM_CALLS), key=b"other%d" % n, value=b"of another run")
    return log


def prepare(log: MemoryLog, starts: Starts | None = None) -> Starts:
    """A start of the run, up to its processes. `starts`: what its folder keeps, if it had begun before."""
    starts = starts or begin_run(log, TOPICS)
    for stage, offsets in positions(log, TOPICS, starts, max_closed_ids=MAX_CLOSED_IDS).items():
        log.groups[TOPICS.group(stage)].update(offsets)
    return starts


def items(member: int, *, calls: int = 2) -> list[Item]:
    """What a rollout leaves on the raw topics; two rollouts a group."""
    own = rollout(member)
    made = [call(f"c{member}.{n}", own, [n + 1], [n + 2]) for n in range(calls)]
    spans = otlp(
        agent_span(own + "a001", 1, "calculator"),
        *(llm_span(own + "a001", 2 + n, f"c{member}.{n}", parent=1) for n in range(calls)),
    )
    group = GroupRef(id=RUN_HASH + f"{member // 2:016x}", size=2, member=member % 2, index=member // 2)
    end = event(own, group=group, spans_exported=1 + calls)
    return [*made, spans, closed(own, made), reward(own, 1.0), end]


def feed(log: MemoryLog, *given: Item) -> None:
    """As gateways, graders and runner append it."""
    writer = log.writer()
    for item in given:
        topic, value = raw(item)
        key = getattr(item, "rollout_id", None) or "trace"
        sent = let_in(value) if isinstance(item, bytes) else value
        writer.append(TOPICS.name(topic), key=key.encode(), value=sent, headers=signed_by(RUN_HASH))


def work(log: MemoryLog) -> None:
    """Each stage once from its committed offsets to the end, by the real folds; commits as its worker does."""
    writer = log.writer()

    def append(output: Output) -> None:
        name = TOPICS.name(output.topic)
        writer.append(name, key=output.key, value=output.value, headers=output.headers, partition=output.partition)

    for stage in STREAMS:
        fold, ledger, group = build_fold(stage, config(), TOPICS), Ledger(), TOPICS.group(stage)
        if fold.marker_topic is not None:
            fold.restore(read_to_end(log, TOPICS.name(fold.marker_topic)))
        for topic in INPUTS[stage]:
            name = TOPICS.name(topic)
            committed = log.committed(group, name)
            reader = log.tail({TopicPartition(name, n): committed.get(n, 0) for n in log.offsets(name)})
            while records := reader.read(timeout_s=0.0):
                for record in records:
                    ledger.deliver(*record.position)
                    emission = fold.fold(record)
                    for output in (*emission.outputs, *((emission.marker,) if emission.marker else ())):
                        append(output)
                    ledger.done(emission.done, epoch=ledger.epoch)
        log.groups[group].update(ledger.committable())


def outputs(log: MemoryLog) -> dict[Topic, list[bytes]]:
    """All that came of it, each as often as it came."""
    return {
        topic: sorted(record.value or b"" for record in log.records(TOPICS.name(topic)))
        for topic in (Topic.EPISODES, Topic.TRANSITIONS)
    }


def undisturbed() -> dict[Topic, list[bytes]]:
    """All rollouts in one go."""
    log = new_log()
    prepare(log)
    for member in range(NUM_ROLLOUTS):
        feed(log, *items(member))
    work(log)
    return outputs(log)


def forget(*stages: Stage) -> Any:
    """The groups' offsets expire."""

    def damage(log: MemoryLog) -> None:
        for stage in stages:
            log.groups.pop(TOPICS.group(stage), None)

    return damage


def expire(log: MemoryLog) -> None:
    """`episode_events` is older than its retention."""
    name = TOPICS.name(Topic.EPISODE_EVENTS)
    for partition, kept in log.offsets(name).items():
        log.truncate(name, partition, begin=kept.end)


def expire_half(log: MemoryLog) -> None:
    """Of each partition the older half, so that open episodes are cut in two."""
    name = TOPICS.name(Topic.EPISODE_EVENTS)
    for partition, kept in log.offsets(name).items():
        log.truncate(name, partition, begin=kept.end // 2)


def expire_but_for_proposals(log: MemoryLog) -> None:
    """What is left is one record in each partition, and proposals to close that were not folded any more."""
    name = TOPICS.name(Topic.EPISODE_EVENTS)
    for partition, kept in log.offsets(name).items():
        log.truncate(name, partition, begin=max(kept.end - 1, 0))
    for member in range(NUM_ROLLOUTS):
        value = EPISODE_EVENTS.encode(Close(episode_id=rollout(member) + "a001", reason="deadline"))
        log.writer().append(name, key=rollout(member).encode(), value=value)


def both(log: MemoryLog) -> None:
    """Ten days on the reader's own cluster."""
    forget(*Stage)(log)
    expire(log)


def widen(log: MemoryLog) -> None:
    """Partitions are added to every raw topic, and the offsets are forgotten."""
    for topic in INPUTS[Stage.NORMALIZE]:
        log.add_partitions(TOPICS.name(topic), 7)
    forget(Stage.NORMALIZE)(log)


@pytest.mark.parametrize(
    "damage",
    [
        forget(Stage.NORMALIZE),
        forget(Stage.ASSEMBLE),
        forget(Stage.CREDIT),
        forget(*Stage),
        expire,
        expire_half,
        expire_but_for_proposals,
        both,
        widen,
    ],
    ids=["normalize", "assemble", "credit", "all", "retention", "half", "proposals", "both", "widen"],
)
@pytest.mark.parametrize("num_before", [0, 1, 3, 5], ids=lambda number: f"{number}-before")
def test_a_run_goes_on_exactly(damage: Any, num_before: int) -> None:
    """The same episodes and transitions, each once, as without a pause; in it, episodes and a group are open."""
    log = new_log()
    starts = prepare(log)
    for member in range(num_before):
        feed(log, *items(member))
    cut = items(num_before)
    feed(log, *cut[:3])
    work(log)
    damage(log)
    feed(log, *cut[3:])
    for member in range(num_before + 1, NUM_ROLLOUTS):
        feed(log, *items(member))
    prepare(log, starts)
    work(log)
    found = outputs(log)
    assert found == undisturbed()
    assert {topic: len(values) for topic, values in found.items()} == {
        Topic.EPISODES: NUM_ROLLOUTS,
        Topic.TRANSITIONS: NUM_ROLLOUTS // 2,
    }


def test_a_start_that_was_killed_before_it_committed_begins_where_it_would_have_begun() -> None:
    """Neither at the beginning of what others wrote, nor at the end of what came meanwhile."""
    log = new_log()
    starts = begin_run(log, TOPICS)
    feed(log, *items(0))
    prepare(log, starts)
    name = TOPICS.name(Topic.LLM_CALLS)
    committed = log.committed(TOPICS.group(Stage.NORMALIZE), name)
    assert sum(committed.values()) == 5
    assert {number: committed.get(number, 0) for number in range(4)} == dict(enumerate(starts[name].offsets))


def test_a_run_that_is_told_to_begins_with_spans_that_lie_there(caplog: pytest.LogCaptureFixture) -> None:
    """And with nothing of other topics; nobody is told that a position was lost."""
    log = new_log()
    feed(log, *items(0))
    starts = begin_run(log, TOPICS, start=lambda name: (0,) * len(log.offsets(name)))
    prepare(log, starts)
    assert sum(starts[TOPICS.name(Topic.OTLP_SPANS)].offsets) == 0 < sum(starts[TOPICS.name(Topic.REWARDS)].offsets)
    assert not any(log.committed(TOPICS.group(Stage.NORMALIZE), TOPICS.name(Topic.OTLP_SPANS)).values())
    assert caplog.messages == []


def test_a_second_start_commits_nothing() -> None:
    """What is there is kept."""
    log = new_log()
    starts = prepare(log)
    feed(log, *items(0))
    work(log)
    assert not any(positions(log, TOPICS, starts, max_closed_ids=MAX_CLOSED_IDS).values())


def test_a_partition_that_was_added_to_a_raw_topic_is_read_from_its_beginning() -> None:
    """What came there before the next start is the run's, and needs no markers."""
    log = new_log()
    starts = prepare(log)
    name = TOPICS.name(Topic.OTLP_SPANS)
    log.add_partitions(name, 5)
    log.writer().append(name, key=None, value=otlp(agent_span(rollout(0) + "a001", 1, "a")), partition=4)
    for partition in range(4):
        log.truncate(TOPICS.name(Topic.CLOSED_EPISODES), partition, begin=0)
    assert not any(positions(log, TOPICS, starts, max_closed_ids=0).values())
    work(log)
    assert log.committed(TOPICS.group(Stage.NORMALIZE), name)[4] == 1


def lose_markers(log: MemoryLog) -> None:
    name = TOPICS.name(Topic.CLOSED_EPISODES)
    partition = next(number for number, kept in log.offsets(name).items() if kept.end)
    log.truncate(name, partition, begin=1)
    forget(Stage.NORMALIZE)(log)


def lose_group_markers(log: MemoryLog) -> None:
    name = TOPICS.name(Topic.CLOSED_GROUPS)
    partition = next(number for number, kept in log.offsets(name).items() if kept.end)
    log.truncate(name, partition, begin=1)
    forget(Stage.CREDIT)(log)


def lose(topic: Topic) -> Any:
    """Records that no stage can make again; unread, for the offsets are set to 0."""

    def damage(log: MemoryLog) -> None:
        name = TOPICS.name(topic)
        for partition, kept in log.offsets(name).items():
            log.truncate(name, partition, begin=kept.end)
        for committed in log.groups.values():
            committed.update({where: 0 for where in committed if where.topic == name})

    return damage


def cut_the_end(log: MemoryLog) -> None:
    group = log.groups[TOPICS.group(Stage.CREDIT)]
    group.update({where: offset + 1 for where, offset in group.items()})


@pytest.mark.parametrize(
    ("damage", "remedy"),
    [
        (lose_markers, "--run NAME.*retention.bytes"),
        (lose_group_markers, "--run NAME.*retention.bytes"),
        (lose(Topic.LLM_CALLS), "retention.ms.*--run NAME"),
        (lose(Topic.EPISODES), "retention.ms.*--run NAME"),
        (cut_the_end, "lost its end.*--run NAME"),
    ],
    ids=["markers", "group_markers", "raw", "episodes", "end"],
)
def test_what_cannot_go_on_exactly_stops_with_the_remedy(damage: Any, remedy: str) -> None:
    """Before any process starts; never a silent skip."""
    log = new_log()
    starts = prepare(log)
    for member in range(4):
        feed(log, *items(member))
    work(log)
    damage(log)
    with pytest.raises(LogGapError, match=remedy):
        prepare(log, starts)


def test_more_markers_than_a_stage_can_know_are_named_with_the_key_to_raise() -> None:
    """It would emit what it forgot again."""
    log = new_log()
    starts = prepare(log)
    for member in range(4):
        feed(log, *items(member))
    work(log)
    forget(Stage.ASSEMBLE)(log)
    with pytest.raises(LogGapError, match=r"max_closed_ids = 3 .* set it to 4"):
        positions(log, TOPICS, starts, max_closed_ids=3)


def test_a_new_run_on_topics_of_another_is_refused() -> None:
    """Its folder is gone, or another one: offsets, markers and versions there are not this run's."""
    log = new_log()
    prepare(log)
    feed(log, *items(0))
    work(log)
    with pytest.raises(ConfigurationError, match="another folder"):
        begin_run(log, TOPICS)
