"""A prompt is a difference to an earlier call's; where that one is missing, the call leaves the loss, and no other."""

from __future__ import annotations

from tests.streams.make import Streams, call, call_id, closed, event, reward, rollout

R1 = rollout(1)


def test_a_call_whose_parent_is_not_here_leaves_the_loss_alone() -> None:
    """With those that rest on it; a parent has to come before. The rollout trains."""
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
