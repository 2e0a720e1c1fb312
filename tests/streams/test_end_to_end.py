"""From OTLP bytes and call records to Arrow rows, through the three folds: a group of two calculator rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.streams.make import (
    RUN_HASH,
    TOPICS,
    Item,
    Streams,
    agent_span,
    call,
    call_id,
    closed,
    config,
    event,
    llm_span,
    otlp,
    reward,
    rollout,
    span,
    tool_call,
    tool_span,
)
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import GIVEN_UP_ATTEMPT
from tracegrad.schemas.records.episodes import EPISODES, AppliedReward
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.topics import Stage, Topic
from tracegrad.streams.assemble.air.rules import AirRule
from tracegrad.streams.folds import build_fold

CONFIG = config(air=(AirRule(name="tool_success", status="succeeded", value=0.5, cap=2),))
OTHER_TRACE = "cd" * 16


def group(member: int) -> GroupRef:
    """The place of a member."""
    return GroupRef(id=RUN_HASH + "9" * 16, size=2, member=member, index=0)


def solved() -> list[Item]:
    """Member 0: asks for the tool, which works, then answers rightly. Joined by response id."""
    own = rollout(0)
    trace = own + "a001"
    first = call("s1", own, [1, 2], [3, 4], tool_calls=(tool_call("s"),), finish_reason="tool_calls")
    second = call("s2", own, [5], [6], parent_call_id=call_id("s1"), shared_tokens=4)
    spans = otlp(
        agent_span(trace, 1, "calculator", at=0),
        llm_span(trace, 2, "s1", parent=1, at=1),
        tool_span(trace, 3, parent=1, at=3, gen_ai__tool__call__id="call_s", gen_ai__tool__call__result="15"),
        llm_span(trace, 4, "s2", parent=1, at=5),
    )
    end = event(own, group=group(0), spans_exported=4)
    return [first, second, spans, closed(own, [first, second]), reward(own, 1.0), end]


def broken() -> list[Item]:
    """Member 1: the tool fails, the second call is cut at the limit; a framework with trace ids of its own."""
    own = rollout(1)
    ids: dict[str, Any] = {"rollout__id": own, "attempt__id": "a001"}
    first = call("b1", own, [1, 2], [9], tool_calls=(tool_call("b"),), trace_id=OTHER_TRACE, parent_span_id=f"{3:016x}")
    at_limit: dict[str, Any] = {"is_truncated": True, "finish_reason": "length"}
    second = call("b2", own, [5], [7, 8], parent_call_id=call_id("b1"), shared_tokens=3, **at_limit)
    agent: dict[str, Any] = {"openinference__span__kind": "AGENT", "agent__name": "calculator"}
    tool: dict[str, Any] = {"openinference__span__kind": "TOOL", "tool__name": "calc"}
    spans = otlp(
        span(OTHER_TRACE, 1, "agent", at=0, **agent),
        span(OTHER_TRACE, 3, "POST", parent=1, at=1),
        span(OTHER_TRACE, 4, "calc", parent=1, at=4, status=2, exception=True, **tool),
        **ids,
    )
    end = event(own, RolloutState.TRUNCATED, group=group(1), spans_exported=3)
    return [first, second, spans, closed(own, [first, second]), reward(own, 0.0), end]


def test_raw_records_become_arrow_rows() -> None:
    """The whole way, with every number worked by hand."""
    streams = Streams(CONFIG)
    # Interleaved, as the four topics are read.
    for left, right in zip(solved(), broken(), strict=True):
        streams.feed(right, left)
    assert streams.values(Topic.DEAD_LETTERS) == []
    ((summary, rows),) = streams.groups
    assert [(m.state, m.reward, m.num_tools, m.num_tools_succeeded, m.excluded) for m in summary.members] == [
        ("succeeded", 1.0, 1, 1, ""),
        ("truncated", 0.0, 1, 0, ""),
    ]
    good, bad = rows
    assert (good.token_ids.tolist(), good.loss_mask.tolist()) == ([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])
    assert good.logprobs.tolist() == [0, 0, -0.5, -0.5, 0, -0.5]
    assert [(t.agent, t.peers, t.return_, t.reward_parts) for t in good.turns] == [
        ("calculator", "calculator:0", 1.5, (AppliedReward(rule="air:tool_success", value=0.5),)),
        ("calculator", "calculator:1", 1.0, ()),
    ]
    assert (bad.token_ids.tolist(), bad.loss_mask.tolist()) == ([1, 2, 9, 5, 7, 8], [0, 0, 1, 0, 0, 0])
    assert bad.rollout_tokens == 1
    # The second call has no span: it is the only agent's, and is compared with second turns.
    assert [(t.agent, t.peers, t.return_, t.masked) for t in bad.turns] == [
        ("calculator", "calculator:0", 0.0, ""),
        ("calculator", "calculator:1", 0.0, "truncated"),
    ]
    tools = [EPISODES.decode(value).calls[0].tools for value in streams.values(Topic.EPISODES)]
    assert {(t[0].status.value, t[0].status_from, t[0].tool_call_id) for t in tools} == {
        ("succeeded", "span_status", "call_s"),
        ("failed", "exception", "call_b"),
    }


def test_a_rollout_given_up_ends_the_group_that_waits_for_it() -> None:
    """Nothing came of member 1; the event that tasks writes closes the group; what comes then is late."""
    streams = Streams(CONFIG)
    streams.feed(*solved())
    assert (streams.values(Topic.TRANSITIONS), streams.credit.num_open) == ([], 1)
    fields: dict[str, Any] = {"attempt_id": GIVEN_UP_ATTEMPT, "spans_exported": None, "group": group(1)}
    streams.feed(event(rollout(1), RolloutState.GIVEN_UP, **fields))
    ((summary, rows),) = streams.groups
    assert [member.excluded for member in summary.members] == ["", "given_up"]
    assert ({row.rollout_id for row in rows}, streams.credit.num_open) == ({rollout(0)}, 0)
    streams.feed(*broken())
    assert (len(streams.values(Topic.TRANSITIONS)), streams.credit.num_open) == (1, 0)


def test_without_the_otlp_gateway_calls_still_train() -> None:
    """Spans lost: the episodes close by deadline, the bonus vanishes, the tokens are the same."""
    streams = Streams(CONFIG)
    streams.feed(*(item for item in [*solved(), *broken()] if not isinstance(item, bytes)))
    for member, state, num_lost in ((0, RolloutState.SUCCEEDED, 4), (1, RolloutState.TRUNCATED, 3)):
        lost = {"spans_exported": 0, "spans_lost": num_lost, "at_ms": 1}
        streams.feed(event(rollout(member), state, group=group(member), **lost))
    assert streams.episodes == []
    streams.tick(0.0, 5.0)
    _, rows = streams.groups[0]
    assert [row.token_ids.tolist() for row in rows] == [[1, 2, 3, 4, 5, 6], [1, 2, 9, 5, 7, 8]]
    assert [[t.return_ for t in row.turns] for row in rows] == [[1.0, 1.0], [0.0, 0.0]]
    assert [[(t.agent, t.peers) for t in row.turns] for row in rows] == [[(None, ":0"), (None, ":1")]] * 2


def test_only_the_stages_of_the_streams_have_folds() -> None:
    """The runner reads as a group too, but it is no fold."""
    with pytest.raises(ConfigurationError, match="runner"):
        build_fold(Stage.RUNNER, CONFIG, TOPICS)
