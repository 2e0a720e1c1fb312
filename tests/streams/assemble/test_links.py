"""A captured trace that names a conversation with another key is forwarded there, once, or stays where it is."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.streams.make import (
    Item,
    Streams,
    agent_span,
    call,
    closed,
    config,
    event,
    otlp,
    reward,
    rollout,
    span,
    tool_span,
)
from tracegrad.schemas.ids import conversation_key, key_in, new_call, new_tool_call
from tracegrad.schemas.metrics import FACTS_LATE, LINKS, SESSIONS_IGNORED
from tracegrad.schemas.records.calls import CallRecord, Purpose, ToolCall
from tracegrad.schemas.records.episodes import CLOSED, Episode
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

TRACE, OTHER = "ab" * 16, "cd" * 16
KEY = conversation_key("c-17")
ALL = SelectConfig(capture_all=True)


def streams() -> Streams:
    """Of a run that takes everything."""
    return Streams(config(select=ALL))


def captured(key: str, name: str, **changes: Any) -> CallRecord:
    """A call of a captured agent, keyed as the gateway does; its id carries the key."""
    if "conversation_key" not in changes:
        changes["trace_id"] = key
    made = call(name, None, [1], [2], purpose=Purpose.UNKNOWN, **changes)
    return msgspec.structs.replace(made, call_id=new_call(key, lambda below: sum(name.encode()) % below))


def episodes(run: Streams) -> dict[str, Episode]:
    """Those emitted, by id."""
    return {episode.episode_id: episode for episode in run.episodes}


def markers(run: Streams) -> dict[str, str]:
    """Closed id -> disposition, and whither it went."""
    decoded = map(CLOSED.decode, (marker for marker in run.values(Topic.CLOSED_EPISODES)))
    return {marker.id: f"{marker.disposition} {marker.forwarded_to or ''}".strip() for marker in decoded}


def silence(run: Streams, start: float = 0.0) -> None:
    """Long enough for whatever is open, and not for a call in flight."""
    run.tick(*(start + 20.0 * step for step in range(4)))


def close(run: Streams) -> None:
    """Lets everything fall silent, also what is forwarded meanwhile."""
    run.tick(*range(0, 200, 20))


def llm(trace: str, span_id: int, response_id: str, **rest: Any) -> Any:
    """An LLM span that names its answer."""
    return span(trace, span_id, "chat", gen_ai__operation__name="chat", gen_ai__response__id=response_id, **rest)


BY_CONVERSATION = captured(KEY, "one", conversation_key=KEY, trace_id=TRACE, parent_span_id=f"{2:016x}")
BY_TRACE = captured(TRACE, "x")
ANSWERED = llm(TRACE, 2, BY_TRACE.call_id, parent=1)
UNNAMED = captured(OTHER, "two", trace_id=OTHER)


@pytest.mark.parametrize(
    ("the_call", "spans"),
    [
        (BY_CONVERSATION, otlp(agent_span(TRACE, 1, "solver"), span(TRACE, 2, "POST", parent=1))),
        (BY_TRACE, otlp(agent_span(TRACE, 1, "solver", gen_ai__conversation__id="c-17"), ANSWERED)),
        (BY_TRACE, otlp(agent_span(TRACE, 1, "solver"), ANSWERED, session__id="c-17")),
        (captured(KEY, "x"), otlp(agent_span(TRACE, 1, "solver"), llm(TRACE, 2, captured(KEY, "x").call_id, parent=1))),
    ],
    ids=["call", "span-attribute", "resource-session", "response-id"],
)
@pytest.mark.parametrize("calls_first", [True, False])
def test_a_trace_is_forwarded_to_the_conversation_that_it_names(
    the_call: CallRecord, spans: bytes, calls_first: bool
) -> None:
    """Its calls too: one episode under the conversation's key, its agent known; the trace's marker says whither."""
    run = streams()
    run.feed(*((the_call, spans) if calls_first else (spans, the_call)))
    close(run)
    episode = run.episode
    assert (episode.episode_id, [made.agent for made in episode.calls]) == (KEY, ["solver"])
    assert markers(run) == {TRACE: f"forwarded {KEY}", KEY: "emitted"}
    assert run.assemble.num_open == 0
    assert len(run.done) == sum(
        len(records)
        for topic, records in run.log.items()
        if topic in (Topic.EPISODE_EVENTS, Topic.OTLP_SPANS, Topic.LLM_CALLS, Topic.EPISODES)
    )


def test_a_trace_goes_to_its_conversation_before_that_falls_silent() -> None:
    """Its root is still out, so that the clock sends it: after a part of the silence that ends the conversation."""
    run = streams()
    run.feed(captured(KEY, "none", conversation_key=KEY, trace_id=OTHER))
    run.tick(0.0)
    run.feed(BY_CONVERSATION, otlp(span(TRACE, 2, "POST", parent=1)))
    run.tick(3.0, 6.0, 9.0)
    assert markers(run) == {TRACE: f"forwarded {KEY}"}
    close(run)
    episode = run.episode
    assert len(episode.calls) == 2


def test_a_trace_that_is_whole_goes_at_once_and_what_comes_later_follows() -> None:
    """No clock is needed where its root has come; a restart remembers whither, by the marker."""
    run = streams()
    run.feed(BY_CONVERSATION, otlp(agent_span(TRACE, 1, "solver"), span(TRACE, 2, "POST", parent=1)))
    assert markers(run) == {TRACE: f"forwarded {KEY}"}
    restarted = streams()
    restarted.log = run.log
    restarted.assemble.restore(run.log[Topic.CLOSED_EPISODES])
    for record in list(run.log[Topic.EPISODE_EVENTS]):
        if record.key == KEY.encode():
            restarted.assemble.fold(record)
    restarted.feed(otlp(span(TRACE, 3, "late", parent=1)))
    close(restarted)
    assert episodes(restarted)[KEY].num_spans == 3
    assert restarted.assemble.metrics.value(FACTS_LATE, "other") == 0


def test_a_trace_that_names_two_keys_links_nothing() -> None:
    """It stays, as do both conversations; counted."""
    run = streams()
    run.feed(BY_CONVERSATION, UNNAMED)
    run.feed(otlp(agent_span(TRACE, 1, "solver"), llm(TRACE, 2, UNNAMED.call_id, parent=1)))
    close(run)
    assert {id_: len(episode.calls) for id_, episode in episodes(run).items()} == {KEY: 1, OTHER: 1, TRACE: 0}
    assert run.assemble.metrics.value(LINKS, "two_keys") == 1


def test_what_a_call_names_counts_more_than_what_a_span_says() -> None:
    """A framework's thread id beside the client's header: the call knows its key."""
    run = streams()
    run.feed(
        BY_CONVERSATION,
        otlp(agent_span(TRACE, 1, "solver", gen_ai__conversation__id="thread"), span(TRACE, 2, "POST", parent=1)),
    )
    close(run)
    assert {id_: episode.num_spans for id_, episode in episodes(run).items()} == {KEY: 2}


@pytest.mark.parametrize("said", [{}, {"gen_ai__conversation__id": "c-17"}], ids=["unnamed", "named"])
@pytest.mark.parametrize("calls_first", [True, False])
def test_calls_of_an_evaluators_trace_stay_its_own(calls_first: bool, said: dict[str, str]) -> None:
    """It names the answer that it judges; its own calls are no part of that conversation, but of one that it says."""
    run, own = streams(), captured(TRACE, "judge")
    spans = otlp(llm(TRACE, 1, own.call_id, **said), llm(TRACE, 2, UNNAMED.call_id, parent=1))
    run.feed(*((UNNAMED, own, spans) if calls_first else (spans, UNNAMED, own)))
    close(run)
    assert {id_: [made.call_id for made in e.calls] for id_, e in episodes(run).items()} == {
        OTHER: [UNNAMED.call_id],
        KEY if said else TRACE: [own.call_id],
    }


def test_an_id_that_no_call_bears_joins_nothing() -> None:
    """Anybody can make one up that carries a conversation's key."""
    run, forged = streams(), new_call(OTHER)
    run.feed(UNNAMED, otlp(agent_span(TRACE, 1, "intruder"), llm(TRACE, 2, forged, parent=1)))
    close(run)
    episode = run.episode
    assert (episode.episode_id, episode.num_spans, [made.agent for made in episode.calls]) == (OTHER, 0, [None])
    assert run.assemble.metrics.value(LINKS, "unknown_id") == 1


def test_traces_that_name_each_other_hand_nothing_on_for_ever() -> None:
    """Anybody can make up ids that carry their keys; nothing goes back to where it came from."""
    run = streams()
    run.feed(*(otlp(llm(one, 1, new_call(other))) for one, other in ((TRACE, OTHER), (OTHER, TRACE))))
    run.feed(otlp(span(TRACE, 2, "more", parent=1)))
    close(run)
    assert markers(run) == {TRACE: f"forwarded {OTHER}", OTHER: "unattributed"}
    assert run.assemble.metrics.value(FACTS_LATE, "other") == 0
    assert episodes(run) == {} and run.assemble.num_open == 0


@pytest.mark.parametrize("is_known", [True, False])
def test_a_tool_in_another_trace_reaches_the_attempt_that_asked_for_it(is_known: bool) -> None:
    """A tool server with traces of its own repeats the minted id; shown as unproved."""
    r1 = rollout(1)
    minted = new_tool_call(r1)
    assert key_in(minted) == r1
    asked = (ToolCall(id=minted if is_known else new_tool_call(r1), name="calc", arguments="{}"),)
    run, made = streams(), call("a", r1, [1], [2], tool_calls=asked)
    run.feed(made, otlp(tool_span(TRACE, 1, gen_ai__tool__call__id=minted)))
    run.feed(closed(r1, [made]), reward(r1), event(r1))
    episode = run.episode
    tools = [(tool.tool_call_id, tool.is_proved) for made in episode.calls for tool in made.tools]
    assert tools == ([(minted, False)] if is_known else [])
    assert len(run.values(Topic.DEAD_LETTERS)) == (not is_known)


def test_a_session_id_with_many_open_traces_is_no_conversation() -> None:
    """A process's, say: from the ninth open trace on it is ignored; a trace that has its root is open no more."""
    run = streams()
    traces = [f"{n:032x}" for n in range(1, 12)]
    run.feed(*(otlp(span(trace, 2, "step", parent=1, session__id="s")) for trace in traces))
    assert run.normalize.metrics.value(SESSIONS_IGNORED) == 3
    run.feed(*(otlp(span(trace, 1, "root", session__id="s")) for trace in traces[:8]))
    run.feed(otlp(span(traces[8], 2, "step", parent=1, session__id="s")))
    assert run.normalize.metrics.value(SESSIONS_IGNORED) == 3


@settings(max_examples=60)
@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=4), st.integers(0, 6))
def test_any_order_and_duplicates_give_one_episode(order: list[int], again: list[int], pause: int) -> None:
    """Whatever comes first, and however often; a pause forwards what is there, and the rest follows."""
    more = captured(KEY, "more", conversation_key=KEY, trace_id=OTHER, parent_span_id=f"{2:016x}")
    items: list[Item] = [
        BY_CONVERSATION,
        otlp(span(TRACE, 2, "POST", parent=1)),
        otlp(agent_span(TRACE, 1, "solver")),
        more,
        otlp(span(OTHER, 2, "POST", parent=1)),
        otlp(agent_span(OTHER, 1, "solver")),
    ]
    run = Streams(config(select=ALL, idle_s=40.0))
    for number, item in enumerate([*order, *again]):
        run.feed(items[item])
        if number == pause:
            run.tick(0.0, 15.0)
    run.tick(*range(100, 500, 20))
    episode = run.episode
    assert (episode.episode_id, episode.num_spans) == (KEY, 4)
    assert [made.agent for made in episode.calls] == ["solver", "solver"]


def test_no_span_carries_calls_into_a_runners_attempt() -> None:
    """An id that carries an attempt's episode is nobody's: the gateway's carry the rollout."""
    own, key = rollout(1), conversation_key("c")
    attempt = own + "a001"
    run = streams()
    run.feed(event(own, RolloutState.STARTED))
    run.feed(otlp(tool_span(key, 1, gen_ai__tool__call__id=new_tool_call(attempt))))
    run.feed(captured(key, "stranger", conversation_key=key))
    made = call("own", own, [1], [2])
    run.feed(made, closed(own, [made]), reward(own), event(own))
    close(run)
    assert [(one.call_id, one.turn) for one in episodes(run)[attempt].calls] == [(made.call_id, 0)]
    assert len(episodes(run)[key].calls) == 1


@pytest.mark.parametrize("is_root", [False, True], ids=["child", "root"])
def test_a_long_trace_that_names_a_conversation_costs_no_more_by_the_span(is_root: bool) -> None:
    """Each span in a record of its own, the first without its parent, so that the trace is never whole."""
    run = streams()
    run.feed(otlp(span(TRACE, 1, parent=99_999, gen_ai__conversation__id="c-17")))
    for number in range(2, 8_000):
        run.feed(otlp(span(TRACE, number, parent=None if is_root else 99_999)))
    began = time.process_time()
    for number in range(8_000, 8_100):
        run.feed(otlp(span(TRACE, number, parent=None if is_root else 99_999)))
    assert time.process_time() - began < 0.15
    assert run.assemble.num_open == 1


def test_a_conversation_that_its_client_named_is_moved_by_no_span() -> None:
    """Its key stands in each id that the gateway mints, so that anybody can make a span of such a trace."""
    run = streams()
    run.feed(BY_CONVERSATION, otlp(span(KEY, 9, gen_ai__conversation__id="other")))
    close(run)
    assert markers(run)[KEY] == "emitted" and [*episodes(run)] == [KEY]


def forged(trace: str, key: str) -> bytes:
    """A span that anybody can send: of any trace, with an id that carries any key."""
    return otlp(tool_span(trace, 1, gen_ai__tool__call__id=new_tool_call(key)))


@pytest.mark.parametrize("key", [KEY, TRACE], ids=["named", "trace"])
@pytest.mark.parametrize(
    "spans",
    [
        lambda key: [forged(key, OTHER), forged(OTHER, key)],
        lambda key: [forged(key, "c0" * 16), *(forged(f"c{n}" * 16, f"c{n + 1}" * 16) for n in range(8))],
        lambda key: [forged(key, rollout(1))],
        lambda key: [otlp(span(OTHER, 1)), forged(key, OTHER)],
    ],
    ids=["circle", "chain", "rollout", "closed"],
)
def test_spans_that_came_first_lose_no_call(spans: Any, key: str) -> None:
    """Whatever they name: its calls make an episode somewhere."""
    run = streams()
    run.feed(*spans(key))
    close(run)
    named = {"conversation_key": KEY} if key == KEY else {}
    run.feed(captured(key, "one", **named), captured(key, "two", **named))
    run.feed(otlp(agent_span(OTHER, 3, "x", gen_ai__conversation__id="c-17")))
    run.tick(*range(300, 500, 20))
    made = [episode for episode in episodes(run).values() if episode.calls]
    assert sum(len(episode.calls) for episode in made) == 2
    assert run.assemble.metrics.value(FACTS_LATE, "calls") == 0


def test_what_follows_a_trace_to_an_attempt_joins_it_too() -> None:
    """Later spans of the trace repeat no id; the attempt knows the trace."""
    own, trace = rollout(1), "77" * 16
    asked = ToolCall(id=new_tool_call(own), name="calc", arguments="{}")
    made = call("a", own, [1], [2], tool_calls=(asked,))
    run = streams()
    run.feed(event(own, RolloutState.STARTED), made)
    run.feed(otlp(tool_span(trace, 1, gen_ai__tool__call__id=asked.id)), otlp(span(trace, 2, "query", parent=1)))
    run.feed(closed(own, [made]), reward(own), event(own))
    assert [episode.num_spans for episode in episodes(run).values()] == [2]


def test_another_trace_renames_no_call_and_turns_no_outcome() -> None:
    """Whoever repeats the ids fills in what the call's own trace leaves open, and nothing else."""
    asked = ToolCall(id=new_tool_call(TRACE), name="calc", arguments="{}")
    made = captured(TRACE, "v", parent_span_id=f"{2:016x}", tool_calls=(asked,))
    answers = {"gen_ai__tool__call__id": asked.id}
    run = streams()
    run.feed(made, otlp(agent_span(TRACE, 1, "solver"), span(TRACE, 2, "POST", parent=1)))
    run.feed(otlp(tool_span(TRACE, 3, parent=1, at=10, status=2, **answers)))
    run.feed(otlp(agent_span(OTHER, 1, "evil"), llm(OTHER, 2, made.call_id, parent=1)))
    run.feed(otlp(tool_span(OTHER, 3, parent=1, at=20, **answers)))
    close(run)
    ((one,),) = (episode.calls for episode in episodes(run).values())
    assert (one.agent, [tool.status.value for tool in one.tools]) == ("solver", ["failed"])
