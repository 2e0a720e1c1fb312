"""A captured conversation that goes on after its episode has closed makes the next one; what is repeated makes none."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.consumers.audit.small_run import RING, memory_log
from tests.streams.assemble.test_links import silence, streams
from tests.streams.make import RUN_HASH, TOPICS, agent_span, call, call_id, otlp, span
from tracegrad.consumers.audit.account import audit
from tracegrad.schemas.ids import RunHash, conversation_key, stretch_id
from tracegrad.schemas.records.calls import CallRecord, Purpose
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.topics import Topic

KEY = conversation_key("c-17")


def captured(name: str, **changes: Any) -> CallRecord:
    """A call of the conversation."""
    return call(name, None, [1], [2], purpose=Purpose.UNKNOWN, conversation_key=KEY, **changes)


def test_a_later_request_makes_the_next_episode() -> None:
    """Named by key and first call; a third follows the second. Each says which conversation it is of."""
    run = streams()
    for number, names in enumerate((["a", "b"], ["c"], ["d", "e"])):
        run.feed(*map(captured, names))
        silence(run, 100.0 * number)
    found = run.episodes
    assert [episode.episode_id for episode in found] == [
        KEY,
        stretch_id(KEY, call_id("c")),
        stretch_id(KEY, call_id("d")),
    ]
    assert [[made.call_id for made in episode.calls] for episode in found] == [
        [call_id(name) for name in names] for names in (["a", "b"], ["c"], ["d", "e"])
    ]
    assert {episode.conversation for episode in found} == {KEY}
    assert audit(memory_log(run), TOPICS, RunHash(RUN_HASH), "policy", ring=RING).calls.terms == {"in episodes": 5}


def test_what_an_episode_held_makes_no_next_one() -> None:
    """Facts are delivered again after a crash: late, whether or not the conversation has gone on since."""
    run = streams()
    run.feed(captured("a"), captured("b"))
    silence(run)
    again = list(run.log[Topic.EPISODE_EVENTS])[:2]
    for _ in range(2):
        for record in again:
            run.append(Topic.EPISODE_EVENTS, record.value, record.key)
        run.feed(captured("c"))
    silence(run, 100.0)
    assert [len(episode.calls) for episode in run.episodes] == [2, 1]
    assert run.assemble.num_open == 0


def test_spans_alone_make_no_next_episode_but_join_one_that_is_open() -> None:
    """A late span is late; that of a later request finds its call."""
    run, trace = streams(), "ab" * 16
    first = captured("a", trace_id=trace, parent_span_id=f"{2:016x}")
    run.feed(first, otlp(span(trace, 2, "POST", parent=1), agent_span(trace, 1, "solver")))
    silence(run)
    run.feed(otlp(span(trace, 3, "late", parent=1)))
    assert run.assemble.num_open == 0
    later = "cd" * 16
    run.feed(captured("b", trace_id=later, parent_span_id=f"{2:016x}"))
    run.feed(otlp(span(later, 2, "POST", parent=1), agent_span(later, 1, "solver")))
    silence(run, 100.0)
    assert [[made.agent for made in episode.calls] for episode in run.episodes] == [["solver"], ["solver"]]


def test_an_episode_that_is_open_is_open_in_the_account() -> None:
    """Its calls are neither late nor missing."""
    run = streams()
    run.feed(captured("a"))
    silence(run)
    log_before = len(run.log[Topic.EPISODE_EVENTS])
    run.feed(captured("b"))
    assert len(run.log[Topic.EPISODE_EVENTS]) == log_before + 1
    report = audit(memory_log(run), TOPICS, RunHash(RUN_HASH), "policy", ring=RING)
    assert report.calls.terms.get("in episodes") == 1 and "late" not in report.calls.terms


@settings(max_examples=40)
@given(st.lists(st.booleans(), min_size=1, max_size=8), st.integers(0, 8))
def test_a_restart_goes_on_where_it_was(pauses: list[bool], restart: int) -> None:
    """From the markers, and the inputs that were not done: the same episodes as without one."""
    ends = []
    for is_restarted in (False, True):
        run = streams()
        for number, pause in enumerate(pauses):
            if is_restarted and number == restart:
                run.take_over(*run.undone(Topic.EPISODE_EVENTS))
            run.feed(captured(f"n{number}"))
            if pause:
                silence(run, 100.0 * number)
        silence(run, 10_000.0)
        ends.append(run.values(Topic.EPISODES))
    assert ends[0] == ends[1]
    assert sum(len(EPISODES.decode(value).calls) for value in ends[0]) == len(pauses)
