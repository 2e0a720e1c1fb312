"""Every span of a history that is assembled anew is in an episode, or it is told why not."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from tests.consumers.history.source_run import SourceRun, interleaved, raw_of
from tests.seeds import any_seed
from tests.streams.assemble.test_interleavings import NAMES, conversation
from tests.streams.assemble.test_links import ALL
from tests.streams.make import (
    TOPICS,
    Streams,
    agent_span,
    call,
    config,
    otlp,
    raw,
    signed_by,
    span,
    spans_of,
    tool_span,
)
from tests.streams.test_end_to_end import CONFIG, solved
from tracegrad.consumers.history import refold as refold_module
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.topics import STREAMS, Topic
from tracegrad.streams.config import SelectConfig, StreamRules
from tracegrad.streams.folds import build_fold

SPANS = TOPICS.name(Topic.OTLP_SPANS)
SHOP, BARE, WEB, BIG = ("a" * 32, "b" * 32, "c" * 32, "d" * 32)


def account(records: list[Record], rules: StreamRules, clock_rate: float = 1.0) -> tuple[dict[str, int], str]:
    """Of a refold of these."""
    folds = {stage: build_fold(stage, rules, TOPICS) for stage in STREAMS}
    refold = Refold(folds, lambda *_: (), lambda episode, _: episode, TOPICS, RecordedEpisodes(), clock_rate=clock_rate)
    for record in records:
        list(refold.fold(record))
    list(refold.finish())
    return refold.spans.report()


def test_each_fate_is_counted() -> None:
    """In an episode, of a trace that tells of nothing, of another service, too late, and of too large an episode."""
    values = [
        otlp(agent_span(SHOP, 1, "planner"), tool_span(SHOP, 2, parent=1), service="shop"),
        otlp(span(BARE, 1, "GET /"), service="shop"),
        otlp(agent_span(WEB, 1, "planner"), service="web"),
        otlp(agent_span(BIG, 1, "planner"), service="shop"),
        otlp(*(tool_span(BIG, number, parent=1) for number in range(2, 6)), service="shop"),
        otlp(tool_span(SHOP, 3, parent=1), service="shop"),
    ]
    times = [1_000, 1_001, 1_002, 1_003, 1_004, 10_000_000]
    records = [
        Record(topic=SPANS, partition=0, offset=offset, key=None, value=value, timestamp_ms=at)
        for offset, (value, at) in enumerate(zip(values, times, strict=True))
    ]
    rules = config(select=SelectConfig(services=("shop",)), idle_s=10.0, max_spans_per_episode=4)
    counts, text = account(records, rules)
    assert counts == {
        "read": 10,
        "emitted": 3,
        "not_selected": 1,
        "unattributed": 1,
        "late": 1,
        "refused": 4,
        "forwarded": 0,
        "unaccounted": 0,
    }
    assert text == (
        "spans: 10 read = 3 in episodes + 1 not selected + 1 of traces without call, agent or tool + "
        "1 late or let go + 4 in dead letters; 0 unaccounted"
    )


@pytest.mark.parametrize(("clock_rate", "late"), [(1.0, 1), (1 / 361, 0)])
def test_a_slow_clock_closes_nothing_before_what_is_read_late(clock_rate: float, late: int) -> None:
    """Of a trace in two files: the second is read behind an hour of the first."""
    half, rest = otlp(agent_span(SHOP, 1, "planner")), otlp(tool_span(SHOP, 2, parent=1))
    values = [(half, 1_000), (otlp(agent_span(WEB, 1, "planner")), 3_600_000), (rest, 1_001)]
    records = [
        Record(topic=SPANS, partition=0, offset=offset, key=None, value=value, timestamp_ms=at)
        for offset, (value, at) in enumerate(values)
    ]
    counts, _ = account(records, config(select=SelectConfig(capture_all=True), idle_s=10.0), clock_rate)
    assert (counts["emitted"], counts["late"]) == (3 - late, late)


def test_bounds_hold_while_the_clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of files in no order at all: what is too much is closed, and no call is refused."""
    monkeypatch.setattr(refold_module, "_TICK_RECORDS", 2)
    rules = config(select=SelectConfig(capture_all=True), max_open_episodes=20)
    folds = {stage: build_fold(stage, rules, TOPICS) for stage in STREAMS}
    refold = Refold(folds, lambda *_: (), lambda episode, _: episode, TOPICS, RecordedEpisodes(), clock_rate=1e-6)
    for number in range(100):
        one = call(f"n{number}", None, [1], [2], trace_id=f"{number + 1:032x}", purpose=Purpose.UNKNOWN)
        topic, value = raw(one)
        headers, name = signed_by(rules.run_hash), TOPICS.name(topic)
        record = Record(topic=name, partition=0, offset=number, key=None, value=value, headers=headers, timestamp_ms=1)
        assert Topic.DEAD_LETTERS not in [output.topic for output in refold.fold(record)]
    list(refold.finish())
    assert refold.counts["episodes"] == 100


def test_a_trace_that_nobody_may_want_is_let_go() -> None:
    """Its records are done with behind a runner's episode, and are not counted for that."""
    streams = Streams(CONFIG)
    streams.feed(*solved())
    stray = otlp(agent_span(SHOP, 1, "planner"))
    records = [Record(topic=SPANS, partition=9, offset=0, key=None, value=stray, timestamp_ms=1_000)]
    *before, last = raw_of(streams)
    records += [msgspec.structs.replace(one, timestamp_ms=1_001) for one in before]
    records.append(msgspec.structs.replace(last, timestamp_ms=10_000_000))
    found, _ = account(records, CONFIG)
    num = len(spans_of([item for item in solved() if isinstance(item, bytes)]))
    assert (found["read"], found["emitted"], found["late"], found["unaccounted"]) == (num + 1, num, 1, 0)


@pytest.mark.parametrize("name", NAMES)
@any_seed
def test_no_span_is_unaccounted_however_traces_name_each_other(name: str, seed: int) -> None:
    """Two requests in two traces, which are forwarded to their conversation in any order; some spans come twice."""
    random = Random(seed)
    source = SourceRun(config(select=ALL, idle_s=10.0))
    items = conversation(name)
    items += [item for item in items if isinstance(item, bytes)][:2]
    random.shuffle(items)
    source.live(items, random, pause_s=30.0)
    records = interleaved(raw_of(source), random)
    found, _ = account(records, source.config)
    assert found["read"] == len(spans_of([item for item in items if isinstance(item, bytes)])) > 0
    assert found["unaccounted"] == 0
    assert found["read"] == sum(found.values()) - found["read"]
