"""Which calls of an episode leave the loss, and why."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from tests.streams.make import Streams, call, call_id, closed, config, event, reward, rollout
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.streams.config import SelectConfig

R1 = rollout(1)


@pytest.mark.parametrize(
    ("changes", "outcome", "masked"),
    [
        ({}, CallOutcome.DELIVERED, ""),
        ({}, CallOutcome.CLIENT_DISCONNECTED, "client_disconnected"),
        ({}, CallOutcome.SUPERSEDED, "superseded"),
        ({"is_constrained": True}, CallOutcome.DELIVERED, "constrained"),
        ({"is_truncated": True, "finish_reason": "length"}, CallOutcome.DELIVERED, "truncated"),
        ({"is_truncated": True, "finish_reason": "tool_calls"}, CallOutcome.DELIVERED, "truncated"),
        ({"is_truncated": True, "finish_reason": "length"}, CallOutcome.SUPERSEDED, "superseded"),
        ({"is_truncated": True, "is_cut": True}, CallOutcome.DELIVERED, ""),
        ({"is_cut": True, "stop_text": "</code>"}, CallOutcome.DELIVERED, ""),
        ({}, CallOutcome.UNKNOWN, "outcome_unknown"),
    ],
)
def test_calls_that_leave_the_loss_say_why(changes: dict[str, Any], outcome: CallOutcome, masked: str) -> None:
    """Marked, not removed: they are context of what follows."""
    made = call("a", R1, [1], [2], **changes)
    streams = Streams(config())
    streams.feed(made, closed(R1, [made], a=outcome), reward(R1), event(R1))
    episode = streams.episode
    assert [(c.masked, c.outcome) for c in episode.calls] == [(masked, outcome)]


@pytest.mark.parametrize(("truncated", "masked"), [("mask", "truncated"), ("train", "")])
def test_answers_cut_at_the_limit_train_where_the_run_says_so(truncated: Any, masked: str) -> None:
    """`[select] truncated`; what is masked for another reason stays so."""
    calls = [call(name, R1, [1], [2], is_truncated=True, finish_reason="length") for name in "ab"]
    calls[1] = msgspec.structs.replace(calls[1], is_constrained=True)
    streams = Streams(config(select=SelectConfig(truncated=truncated)))
    streams.feed(*calls, closed(R1, calls), reward(R1), event(R1))
    episode = streams.episode
    assert [c.masked for c in episode.calls] == [masked, "constrained"]


def test_a_call_whose_parent_is_not_here_leaves_the_loss_alone() -> None:
    """Its prompt is a difference to that one's; with those that rest on it. A parent has to come before."""
    calls = [
        call("a", R1, [1], [2]),
        call("b", R1, [3], [4], parent_call_id=call_id("gone"), shared_tokens=2),
        call("c", R1, [5], [6], parent_call_id=call_id("b"), shared_tokens=2),
        call("d", R1, [3], [4], parent_call_id=call_id("a"), shared_tokens=2),
    ]
    streams = Streams()
    streams.feed(*calls, closed(R1, calls), reward(R1), event(R1))
    episode = streams.episode
    assert [made.masked for made in episode.calls] == ["", "missing_parent", "missing_parent", ""]
    summary, (row,) = streams.groups[0]
    assert [turn.call_id for turn in row.turns] == [calls[0].call_id, calls[3].call_id]
    assert [member.excluded for member in summary.members] == [""]
