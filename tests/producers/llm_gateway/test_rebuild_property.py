"""Wherever in a conversation the gateway ends: the next one splices, records and counts as it would have."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

from tests.fake_engine.scripted import Reply, tool_call_text
from tests.producers.llm_gateway.harness import CALC, Rig, full_prompt, rig
from tests.producers.llm_gateway.test_rebuild import begin_again, end
from tracegrad.schemas.records.calls import CallRecord

pytestmark = pytest.mark.slow


class Move(NamedTuple):
    """One request, and what is sampled for it."""

    goes_on_from: int
    """Which answer before it, by its number; the least: none."""
    says: str
    reply: str
    calls_tool: bool = False
    ends: bool = True
    """The answer's end is sampled."""
    stop: str | None = None
    changes: bool = False
    """The agent changes the answer that it goes on from."""
    puts_back: bool = False
    """The agent puts a stop string behind the answer that it goes on from."""


TEXT = st.text(alphabet="ab 123.", min_size=1, max_size=8)
MOVES = st.lists(
    st.builds(
        Move,
        goes_on_from=st.integers(-1, 5),
        says=st.sampled_from(["go", "1.", "12 a"]),
        reply=TEXT,
        calls_tool=st.booleans(),
        ends=st.booleans(),
        stop=st.sampled_from([None, None, "."]),
        changes=st.sampled_from([False, False, False, True]),
        puts_back=st.booleans(),
    ),
    min_size=1,
    max_size=6,
)


class Agent:
    """Makes the same requests of every gateway."""

    def __init__(self) -> None:
        self.said: list[list[dict[str, Any]]] = []
        """All that was said, up to each answer."""

    async def make(self, r: Rig, move: Move) -> None:
        """One request."""
        at = min(move.goes_on_from, len(self.said) - 1)
        before = [dict(message) for message in self.said[at]] if at >= 0 else []
        if before and move.changes:
            before[-1]["content"] = "x" + (before[-1]["content"] or "")
        if before and move.puts_back:
            before[-1]["content"] = (before[-1]["content"] or "") + "."
        results = [
            {"role": "tool", "tool_call_id": call["id"], "content": "42"}
            for call in (before[-1].get("tool_calls") or () if before else ())
        ]
        asked = [*before, *results, {"role": "user", "content": move.says}]
        r.engine.replies.append(Reply(tool_call_text("calc", e=move.reply) if move.calls_tool else move.reply))
        r.engine.replies[-1].ends = move.ends
        fields: dict[str, Any] = {"stop": [move.stop]} if move.stop else {}
        answer = await r.chat(asked, tools=CALC, **fields)
        self.said.append([*asked, answer["choices"][0]["message"]])


def told(calls: list[CallRecord]) -> list[Any]:
    """What the records say, with ids by their order, which each gateway draws anew."""
    order = {call.call_id: number for number, call in enumerate(calls)}
    return [
        (
            full_prompt(call, calls),
            call.sampled_ids,
            order.get(call.parent_call_id) if call.parent_call_id else None,
            (call.shared_tokens, call.splice, call.number, call.is_cut, call.content, call.asked),
            {order[call_id]: outcome for call_id, outcome in call.settled.items()},
        )
        for call in calls
    ]


async def perform(moves: list[Move], crash_after: int | None) -> tuple[list[Any], list[str], Any]:
    """The records, and the outcomes of the calls, of a conversation whose gateway ends once or never."""
    agent = Agent()
    async with rig() as r:
        await r.begin()
        for move in moves[:crash_after]:
            await agent.make(r, move)
        if crash_after is None:
            return told(r.calls()), *(await end(r))
        async with r.restarted() as again:
            assert (await begin_again(again))[0] == 200
            for move in moves[crash_after:]:
                await agent.make(again, move)
            return told(again.calls()), *(await end(again))


CUT = [Move(-1, "go", "a. b", stop="."), Move(0, "go", "1")]
ALIKE = [Move(-1, "go", "1", calls_tool=True), Move(-1, "go", "1", calls_tool=True), Move(0, "go", "2")]
UNENDED = [Move(-1, "go", "a", ends=False), Move(0, "go", "b")]


@settings(max_examples=20, deadline=None, phases=[Phase.explicit, Phase.generate])
@given(moves=MOVES, crash_after=st.integers(0, 6))
@example(moves=CUT, crash_after=1)
@example(moves=ALIKE, crash_after=2)
@example(moves=UNENDED, crash_after=1)
async def test_a_rebuilt_gateway_goes_on_as_the_other_would_have(moves: list[Move], crash_after: int) -> None:
    """After any call of any conversation. How the last answer went alone is not known, until the agent goes on."""
    crash_after = min(crash_after, len(moves))
    records, outcomes, end_told = await perform(moves, None)
    rebuilt, rebuilt_outcomes, rebuilt_told = await perform(moves, crash_after)
    for number, (one, other) in enumerate(zip(records, rebuilt, strict=True)):
        assert one[:-1] == other[:-1], number
        assert one[-1] == other[-1] or number == crash_after, "the first record of a gateway tells of no other's"
    for number, (one, other) in enumerate(zip(outcomes, rebuilt_outcomes, strict=True)):
        assert one == other or number == crash_after - 1, number
        assert other != "client_disconnected"
    assert [seen(call) for call in end_told["calls"]] == [seen(call) for call in rebuilt_told["calls"]]


def seen(call: dict[str, Any]) -> dict[str, Any]:
    """What `/end` says of a call, but for what was drawn and how its answer went."""
    asked = [(tool["name"], tool["arguments"]) for tool in call["tool_calls"]]
    return {**call, "tool_calls": asked, "call_id": "", "outcome": ""}
