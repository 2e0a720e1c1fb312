"""A replay writes what follows from a history, each record once, however often it is stopped."""

from __future__ import annotations

import dataclasses
import threading
from functools import partial
from random import Random

import msgspec
import pytest

from tests.consumers.history.source_run import SourceRun
from tests.memory_log import MemoryLog
from tests.streams.assemble.test_feedback import said
from tests.streams.credit.strategies.test_conversations import conversation
from tests.streams.make import RUN_HASH, TOPICS, agent_span, config, otlp
from tracegrad.consumers.history.read_recorded import read_recorded
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.consumers.history.replay import History, ReplayProgress, merged, replay
from tracegrad.consumers.history.selection import Window, bounds_of
from tracegrad.schemas.ids import conversation_key
from tracegrad.schemas.log.made_of import MADE_OF_HEADER, MadeOf, made_of
from tracegrad.schemas.log.protocol import Record, TopicPartition
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.transitions import group_id_of
from tracegrad.schemas.topics import INPUTS, STREAMS, Stage, Topic
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.write.again import make_again
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.folds import build_fold
from tracegrad.streams.ratings import rate_again

NUM = 6
RULES = config(
    reward_sources=("feedback",), select=SelectConfig(capture_all=True, train=True), feedback_wait_s=60.0, idle_s=10.0
)
FOREIGN = b"of another run"


class Shared(MemoryLog):
    """A log that another run writes to as well: a reader of this one passes over what it wrote."""

    def read(self, positions: dict[TopicPartition, int], max_records: int) -> list[Record]:
        """As MemoryLog.read."""
        return [record for record in super().read(positions, max_records) if record.key != FOREIGN]


class Stop(threading.Event):
    """Set by itself after so many records."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self._left = after

    def is_set(self) -> bool:
        """As Event.is_set, which a replay asks after each record."""
        self._left -= 1
        return self._left < 0 or super().is_set()


@pytest.fixture(scope="module")
def source() -> SourceRun:
    """Conversations that people rated, of which each is a group."""
    run = SourceRun(RULES)
    for number in range(NUM):
        rated(run, number, f"{number:x}e" * 16)
    return run


def rated(source: SourceRun, number: int, key: str) -> None:
    """One more call of a conversation, which somebody rates."""
    rating = said(1.0, f"k{number}", conversation_key=key, at_ms=1)
    source.live([*conversation((f"a{number}", True), key=key), rating], Random(number), pause_s=1.0)


def history_of(log: MemoryLog) -> History:
    """All that lies there."""
    raw = [TOPICS.name(topic) for topic in INPUTS[Stage.NORMALIZE]]
    kept = {TopicPartition(name, number): at for name in raw for number, at in log.offsets(name).items()}
    recorded = read_recorded(log, TOPICS, [RUN_HASH])
    return History(bounds=bounds_of(recorded, Window(), kept, {}), recorded=recorded)


def refold_of(recorded: RecordedEpisodes) -> Refold:
    """By the rules of the source."""
    folds = {stage: build_fold(stage, RULES, TOPICS) for stage in STREAMS}
    again = partial(make_again, rules=RULES, topics=TOPICS, metrics=Metrics(), reward=Rewarder(RULES.air, Metrics()))
    return Refold(folds, again, rate_again, TOPICS, recorded)


def remade(log: MemoryLog, history: History, topic: Topic, *, to_the_end: bool = True) -> list[bytes]:
    """What is made of it for a topic; without the end, what is let out while records are still read."""
    refold = refold_of(history.recorded)
    refold.give_up(history.bounds)
    outputs = [output for record in merged(log, history.bounds) for output in refold.fold(record)]
    outputs += refold.finish() if to_the_end else ()
    return [output.value for output in outputs if output.topic is topic]


def run(log: MemoryLog, target: MemoryLog | None, stop: threading.Event | None = None) -> ReplayProgress:
    """A replay of all that lies there."""
    history = history_of(log)
    refold = refold_of(history.recorded)
    stop = stop or threading.Event()
    return replay(history, log, refold, target=target, topics=TOPICS, stop=stop, tell=lambda _: None)


def new() -> MemoryLog:
    """The log of a run that has not begun."""
    log = MemoryLog()
    log.create_topics(TOPICS, policies=["policy"], partitions=3)
    return log


def written(log: MemoryLog, topic: Topic) -> list[bytes]:
    """The bodies on a topic; of `transitions` in order."""
    return [record.value or b"" for record in log.records(TOPICS.name(topic))]


def test_each_record_is_written_once(source: SourceRun) -> None:
    """Bodies are the source's, those of groups in its order; a second time nothing is written."""
    past, target = source.past(), new()
    done = run(past, target)
    assert written(target, Topic.TRANSITIONS) == source.values(Topic.TRANSITIONS)
    assert sorted(written(target, Topic.EPISODES)) == sorted(source.values(Topic.EPISODES))
    assert (done.counts["episodes"], done.counts["groups"], done.counts["written"]) == (NUM, NUM, 2 * NUM)
    again = run(past, target)
    assert (again.counts["written"], again.counts["there"]) == (0, 2 * NUM)
    assert len(written(target, Topic.TRANSITIONS)) == NUM


@pytest.mark.parametrize("every", [1, 3, 7, 19])
def test_one_that_was_stopped_goes_on_without_doubling(source: SourceRun, every: int) -> None:
    """However often, and wherever it was."""
    past, target = source.past(), new()
    after = every
    while not run(past, target, Stop(after)).is_whole:
        assert len(written(target, Topic.TRANSITIONS)) <= NUM
        after += every
    assert written(target, Topic.TRANSITIONS) == source.values(Topic.TRANSITIONS)
    assert sorted(written(target, Topic.EPISODES)) == sorted(source.values(Topic.EPISODES))


def test_a_stop_before_the_first_record_is_no_end(source: SourceRun) -> None:
    """Nothing of what is open closes for it."""
    target, stop = new(), threading.Event()
    stop.set()
    assert not run(source.past(), target, stop).is_whole
    assert written(target, Topic.EPISODES) == []


@pytest.mark.parametrize("after", [4, 7, 11])
def test_what_retention_takes_between_two_commands_doubles_no_episode(source: SourceRun, after: int) -> None:
    """An episode that was written whole stays so, though what is left of its records makes another one now."""
    past, target = source.past(), new()
    assert not run(past, target, Stop(after)).is_whole
    whole = written(target, Topic.EPISODES)
    past.truncate(TOPICS.name(Topic.REWARDS), 0, begin=5)
    assert run(past, target).counts["incomplete"] > 0
    found = written(target, Topic.EPISODES)
    assert set(whole) <= set(found)
    ids = [EPISODES.decode(value).episode_id for value in found]
    assert len(ids) == len(set(ids))
    groups = [group_id_of(value) for value in written(target, Topic.TRANSITIONS)]
    assert len(groups) == len(set(groups))


def test_of_two_episodes_with_one_key_the_one_that_names_exactly_a_record_gets_it() -> None:
    """Of a conversation's first episode ranges are told as one, with what lies between: a record of its second."""
    source = SourceRun(RULES)
    for number in range(2):
        rated(source, number, "7e" * 16)
    past = source.past()
    history = history_of(past)
    first, second = history.recorded.episodes
    assert first.key == second.key
    wide = tuple(dataclasses.replace(part, end=part.end + 1) for part in first.parts)
    episodes = [dataclasses.replace(first, is_exact=False, parts=wide), second]
    history = msgspec.structs.replace(history, recorded=RecordedEpisodes(episodes, history.recorded.order))
    assert sorted(remade(past, history, Topic.EPISODES)) == sorted(source.values(Topic.EPISODES))


def test_what_came_twice_is_again_in_both_episodes_that_have_it() -> None:
    """A worker that was killed gives the next stretch of a conversation what the one before has closed with."""
    source, key, trace = SourceRun(RULES), conversation_key("c-17"), "ab" * 16
    first, second = conversation(("a", True), ("b", True), key=key, trace_id=trace)
    source.live([first, otlp(agent_span(trace, 1, "solver", gen_ai__conversation__id="c-17"))], Random(1), pause_s=0.0)
    source.feed(second)
    for record in [one for one in source.log[Topic.EPISODE_EVENTS] if one.key == trace.encode()]:
        source.append(Topic.EPISODE_EVENTS, record.value, record.key, headers=record.headers)
    source.live([], Random(1), pause_s=0.0)
    made = source.values(Topic.EPISODES)
    assert [EPISODES.decode(value).num_spans for value in made] == [1, 1]
    past = source.past()
    assert remade(past, history_of(past), Topic.EPISODES) == made


def test_a_dry_run_counts_alike_and_writes_nothing(source: SourceRun) -> None:
    """Without a log to write to."""
    done = run(source.past(), None)
    assert (done.counts["episodes"], done.counts["groups"], done.counts["written"]) == (NUM, NUM, 0)
    assert done.is_whole


def test_what_another_run_wrote_is_no_reason_to_seem_stopped(source: SourceRun) -> None:
    """Raw topics may be shared: what a reader passes over counts as read, also at the end."""
    past = source.past(Shared())
    for topic in INPUTS[Stage.NORMALIZE]:
        past.writer().append(TOPICS.name(topic), key=FOREIGN, value=b"")
    done = run(past, new())
    assert done.is_whole
    assert done.num_read == done.num_records == sum(len(past.records(TOPICS.name(t))) for t in INPUTS[Stage.NORMALIZE])


def test_what_retention_has_taken_is_told_and_awaited_by_nobody(source: SourceRun) -> None:
    """An episode that lost its call is made of the rest, one that lost all is lost, and the groups behind them are
    written as soon as they come, not held until the end."""
    past, target = source.past(), new()
    past.truncate(TOPICS.name(Topic.LLM_CALLS), 0, begin=2)
    past.truncate(TOPICS.name(Topic.REWARDS), 0, begin=1)
    done = run(past, target)
    assert (done.counts["lost"], done.counts["incomplete"]) == (1, 1)
    assert f"{done.counts['gone']} records gone; 1 episodes incomplete, 1 lost" in done.text
    assert written(target, Topic.TRANSITIONS)[-4:] == source.values(Topic.TRANSITIONS)[2:]
    assert remade(past, history_of(past), Topic.TRANSITIONS, to_the_end=False) == source.values(Topic.TRANSITIONS)[2:]


def test_a_record_that_readers_pass_over_is_awaited_by_nobody() -> None:
    """Where an episode's ranges were too many for its header some are told as one, with what lies between: here what
    another run wrote."""
    source = SourceRun(RULES)
    for number in range(2):
        rated(source, number, f"{number}e" * 16)
        source.append(Topic.LLM_CALLS, b"", key=FOREIGN)
    past = source.past(Shared())
    history = history_of(past)
    first, *others = history.recorded.episodes
    (call, rating_of) = first.parts
    wide = dataclasses.replace(first, is_exact=False, parts=(dataclasses.replace(call, end=call.end + 1), rating_of))
    recorded = RecordedEpisodes([wide, *others], history.recorded.order)
    history = msgspec.structs.replace(history, recorded=recorded)
    assert remade(past, history, Topic.TRANSITIONS, to_the_end=False) == source.values(Topic.TRANSITIONS)


def test_positions_that_a_header_had_no_room_for_are_told(source: SourceRun) -> None:
    """The episode is made of the rest, and is not said to be whole."""
    log, topic = source.past(), TOPICS.name(Topic.EPISODES)
    (record, *_) = log.records(topic)
    made = made_of(record.headers, MadeOf)
    assert made is not None
    log.recreate_topic(topic)
    short = msgspec.structs.replace(made, num_omitted=2)
    log.writer().append(topic, key=record.key, value=b"", headers=((MADE_OF_HEADER, msgspec.json.encode(short)),))
    assert run(log, new()).counts["incomplete"] == 1


def test_progress_tells_no_pace_before_there_is_one() -> None:
    """One record in the seconds that opening takes said that two days were left."""
    first = ReplayProgress(num_read=1, num_records=50_970, seconds=3.3, counts={})
    assert first.text == "  0 %  1 of 50970 records; 0 episodes, 0 groups"
    later = ReplayProgress(num_read=5_097, num_records=50_970, seconds=10.0, counts={})
    assert later.text.startswith(" 10 %  5097 of 50970 records, 510/s, 90 s left; ")
    assert ReplayProgress(num_read=0, num_records=0, seconds=0.0, counts={}).text.startswith(
        "100 %  0 of 0 records, 0/s, 0 s"
    )
