"""Facts of one conversation that come by ways of their own find its episodes, whatever came first."""

from __future__ import annotations

import pytest

from tests.consumers.audit.small_run import RING, memory_log
from tests.streams.assemble.test_links import (
    BY_CONVERSATION,
    KEY,
    OTHER,
    TRACE,
    captured,
    close,
    episodes,
    llm,
    markers,
    silence,
    streams,
)
from tests.streams.make import RUN_HASH, TOPICS, Item, Streams, agent_span, otlp, span
from tracegrad.consumers.audit.account import audit
from tracegrad.schemas.ids import RunHash, conversation_key, stretch_id
from tracegrad.schemas.metrics import FACTS_LATE
from tracegrad.schemas.records.calls import CallOpen
from tracegrad.schemas.topics import Topic

BY_TOPIC, CLOSED = Topic.EPISODE_EVENTS, Topic.CLOSED_EPISODES
SAID = {"gen_ai__conversation__id": "c-17"}


def agents(run: Streams) -> dict[str, list[str | None]]:
    """Of each episode's calls."""
    return {id_: [made.agent for made in episode.calls] for id_, episode in episodes(run).items()}


def test_the_longer_of_two_parallel_requests_makes_the_next_episode() -> None:
    """Of a conversation that only spans name: its record is older than the last of the episode that has closed."""
    run = streams()
    long, short = captured(OTHER, "long"), captured(TRACE, "short")
    run.feed(long, short)
    inner = span(OTHER, 9, parent=1)
    inner.flags = 0x100  # its parent is of the same process, and ends later
    run.feed(otlp(inner))
    run.feed(otlp(agent_span(TRACE, 1, "solver", **SAID), llm(TRACE, 2, short.call_id, parent=1)))
    silence(run, 0.0)
    assert agents(run) == {KEY: ["solver"]}
    run.feed(otlp(agent_span(OTHER, 1, "critic", **SAID), llm(OTHER, 2, long.call_id, parent=1)))
    silence(run, 100.0)
    assert agents(run) == {KEY: ["solver"], stretch_id(KEY, long.call_id): ["critic"]}
    assert run.assemble.metrics.value(FACTS_LATE, "calls") == run.assemble.metrics.value(FACTS_LATE, "other") == 0
    report = audit(memory_log(run), TOPICS, RunHash(RUN_HASH), "policy", ring=RING)
    assert report.calls.terms == {"in episodes": 2}
    for record in list(run.log[BY_TOPIC]):
        run.append(BY_TOPIC, record.value, record.key)
    silence(run, 200.0)
    assert len(agents(run)) == 2, "what is delivered again makes none"


@pytest.mark.parametrize("is_silent", [False, True])
def test_a_trace_that_comes_before_the_next_call_waits_for_it(is_silent: bool) -> None:
    """Its episode names the agent; where no call comes, or comes too late, the trace is late."""
    run = streams()
    run.feed(captured(KEY, "first", conversation_key=KEY, trace_id=None))
    silence(run, 0.0)
    run.feed(otlp(agent_span(TRACE, 1, "solver", **SAID), span(TRACE, 2, "POST", parent=1)))
    assert markers(run)[TRACE] == f"forwarded {KEY}"
    if is_silent:
        silence(run, 100.0)
    assert run.assemble.metrics.value(FACTS_LATE, "other") == 2 * is_silent
    run.feed(BY_CONVERSATION)
    silence(run, 200.0)
    assert agents(run) == {KEY: [None], stretch_id(KEY, BY_CONVERSATION.call_id): [None if is_silent else "solver"]}
    assert run.assemble.num_open == 0


def test_a_late_span_waits_for_nothing() -> None:
    """Its trace was of the episode that has closed."""
    run = streams()
    run.feed(BY_CONVERSATION, otlp(agent_span(TRACE, 1, "solver"), span(TRACE, 2, "POST", parent=1)))
    silence(run, 0.0)
    run.feed(otlp(span(TRACE, 3, "late", parent=1)))
    assert run.assemble.num_open == 0 and run.assemble.metrics.value(FACTS_LATE, "other") == 1


def test_what_waits_lasts_while_the_call_is_in_flight() -> None:
    """The gateway told that it lasts; the same after a restart."""
    run = streams()
    run.feed(captured(KEY, "first", conversation_key=KEY, trace_id=None))
    silence(run, 0.0)
    run.feed(CallOpen(call_id=BY_CONVERSATION.call_id, conversation_key=KEY, trace_id=TRACE))
    run.feed(otlp(agent_span(TRACE, 1, "solver", **SAID), span(TRACE, 2, "POST", parent=1)))
    silence(run, 100.0)
    run.take_over(*run.undone(BY_TOPIC))
    silence(run, 300.0)
    run.feed(BY_CONVERSATION)
    silence(run, 400.0)
    assert agents(run)[stretch_id(KEY, BY_CONVERSATION.call_id)] == ["solver"]


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("forged", [{}, SAID | {"gen_ai__conversation__id": "other"}], ids=["alone", "to another"])
def test_a_span_in_a_conversations_own_name_moves_none_of_it(forged: dict[str, str], is_restarted: bool) -> None:
    """Sent before its first call by somebody who knows its id: neither calls nor their traces go anywhere else."""
    run = streams()
    run.feed(otlp(agent_span(KEY, 9, "intruder", **forged)))
    close(run)
    for start, name, parts in ((300.0, "one", [0, 1]), (600.0, "two", [1, 0])):
        trace = TRACE if name == "one" else OTHER
        made = captured(KEY, name, conversation_key=KEY, trace_id=trace, parent_span_id=f"{2:016x}")
        spans = otlp(agent_span(trace, 1, "solver", **SAID), span(trace, 2, "POST", parent=1))
        if is_restarted:
            run.take_over()
        items: list[Item] = [made, spans]
        run.feed(*(items[part] for part in parts))
        silence(run, start)
    found = {id_: made for id_, made in agents(run).items() if made}
    assert list(found.values()) == [["solver"], ["solver"]]
    assert {episodes(run)[id_].conversation for id_ in found} == {KEY}
    assert conversation_key("other") not in found


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_call_that_goes_on_from_a_moved_trace_follows_it(is_restarted: bool) -> None:
    """The gateway found by its messages that it goes on; its key is the trace's, whose spans name a conversation."""
    run = streams()
    first = captured(TRACE, "one")
    run.feed(otlp(agent_span(TRACE, 1, "solver", **SAID), llm(TRACE, 2, first.call_id, parent=1)), first)
    if is_restarted:
        run.take_over(*(record for record in run.log[BY_TOPIC] if record.key == KEY.encode()))
    run.feed(captured(TRACE, "two", conversation_key=TRACE, trace_id=None, parent_call_id=first.call_id))
    silence(run, 0.0)
    assert {id_: len(made) for id_, made in agents(run).items()} == {KEY: 2}
