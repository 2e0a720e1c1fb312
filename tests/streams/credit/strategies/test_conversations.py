"""Conversations that people rated, as groups of one: which of them there are, and what each call is worth."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.consumers.audit.small_run import attempt
from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.make import (
    RUN_HASH,
    Item,
    Streams,
    call,
    call_id,
    config,
    llm_span,
    otlp,
    rollout,
    tool_call,
    tool_span,
)
from tracegrad.schemas.metrics import CREDIT_EPISODES
from tracegrad.schemas.records.calls import Purpose, SamplingParameters
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.transitions import GroupSummary, SegmentRow
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.air.rules import AirRule
from tracegrad.streams.config import SelectConfig

TRACE = "c" * 32
TURNS = [("a", True), ("b", False), ("c", True), ("d", False)]
"""Two questions of a user's, each answered by two calls."""


def conversation(*turns: tuple[str, bool], key: str = KEY, **changes: Any) -> list[Item]:
    """Calls of one conversation, each going on from the one before."""
    calls: list[Item] = []
    before: str | None = None
    for number, (name, answers_user) in enumerate(turns):
        given: dict[str, Any] = {"trace_id": TRACE, "conversation_key": key, "purpose": Purpose.UNKNOWN, **changes}
        given |= {"parent_call_id": before, "shared_tokens": 2 * number, "answers_user": answers_user}
        calls.append(call(name, None, [1], [2], **given))
        before = call_id(name)
    return calls


def folded(
    *items: Item,
    train: bool = True,
    unscored: Literal["drop", "air"] = "drop",
    sources: tuple[str, ...] = ("feedback",),
    **changes: Any,
) -> Streams:
    """Of a run that trains on what is captured."""
    select = SelectConfig(capture_all=True, train=train, unscored=unscored)
    streams = Streams(config(reward_sources=sources, select=select, **changes))
    streams.feed(*items)
    streams.tick(0.0, 100.0)
    return streams


def group_of(*items: Item, **changes: Any) -> tuple[GroupSummary, list[SegmentRow]]:
    """The one group."""
    (group,) = folded(*items, **changes).groups
    return group


def returns(rows: list[SegmentRow]) -> list[float]:
    """Of each call."""
    return [turn.return_ for row in rows for turn in row.turns]


def test_a_rated_conversation_is_a_group_of_its_own() -> None:
    """Under the episode's id; all of its sampled tokens train."""
    summary, (row,) = group_of(*conversation(*TURNS), said(0.5, "k1"))
    (member,) = summary.members
    assert (summary.group_id, member.episode_id, member.rollout_id) == (KEY, KEY, KEY)
    assert (member.reward, member.excluded, summary.excluded) == (0.5, "", "")
    assert row.loss_mask.tolist() == [0, 1] * 4
    assert returns([row]) == [0.5] * 4


def test_a_rated_answer_credits_the_calls_since_the_last_user_message() -> None:
    """The second answer's; the first question's calls were not meant."""
    summary, rows = group_of(*conversation(*TURNS), said(1.0, "k1", target=call_id("d")))
    assert returns(rows) == [0.0, 0.0, 1.0, 1.0]
    assert summary.members[0].reward == 1.0
    _, rows = group_of(*conversation(*TURNS), said(1.0, "k1", target=call_id("c")))
    assert returns(rows) == [0.0, 0.0, 1.0, 0.0]
    both = (said(1.0, "k1", target=call_id("b")), said(-1.0, "k2", target=call_id("d")), said(0.5, "k3"))
    summary, rows = group_of(*conversation(*TURNS), *both)
    assert returns(rows) == [1.5, 1.5, -0.5, -0.5]
    assert summary.members[0].reward == 0.5  # .5, and the mean of 1 and -1


def test_an_agent_that_another_called_worked_for_the_same_answer() -> None:
    """Its own prompt is a user's message, and no new question."""
    turns = [("a", True), ("b", True), ("c", False)]
    spans = [llm_span(TRACE, number, name) for number, (name, _) in enumerate(turns, 1)]
    for made, agent in zip(spans, ("planner", "coder", "planner"), strict=True):
        made.attributes.add(key="gen_ai.agent.name").value.string_value = agent
    _, rows = group_of(otlp(*spans), *conversation(*turns), said(1.0, "k1", target=call_id("c")))
    assert returns(rows) == [1.0] * 3


def test_air_pays_in_rated_conversations_only() -> None:
    """As return-to-go; what nobody rated trains nothing, for a policy learns to earn AIR for its own sake."""
    asked = (tool_call("1"),)
    spans = otlp(llm_span(TRACE, 1, "a", at=11), tool_span(TRACE, 2, at=20, gen_ai__tool__call__id="call_1", status=1))
    rule = (AirRule(name="ok", status="succeeded", value=0.25, cap=1),)
    calls = conversation(*TURNS[:2], tool_calls=asked)
    unrated = folded(spans, *calls, air=rule)
    assert unrated.values(Topic.TRANSITIONS) == []
    assert unrated.credit.metrics.value(CREDIT_EPISODES, "unscored") == 1
    _, rows = group_of(spans, *calls, said(0.5, "k1"), air=rule)
    assert returns(rows) == [0.75, 0.5]
    summary, rows = group_of(spans, *calls, air=rule, unscored="air")
    assert (summary.members[0].reward, returns(rows)) == (None, [0.25, 0.0]), "what nobody rated is not rated 0"


@pytest.mark.parametrize("items", [(), (said(1.0, "k1"),)], ids=["unrated", "rated"])
def test_a_run_that_does_not_ask_for_it_trains_on_nothing_captured(items: tuple[Item, ...]) -> None:
    """The default."""
    assert folded(*conversation(*TURNS), *items, train=False).values(Topic.TRANSITIONS) == []


@pytest.mark.parametrize(
    ("used", "masked"),
    [({"top_p": 0.9}, "cut_sampling"), ({"top_k": 20}, "cut_sampling"), ({"min_p": 0.1}, "cut_sampling"), ({}, "")],
    ids=str,
)
def test_a_call_that_was_sampled_from_a_part_of_the_tokens_trains_nothing(used: dict[str, Any], masked: str) -> None:
    """Its logprobs are those of another distribution than the policy's. Another temperature the loss knows."""
    sampling = SamplingParameters(temperature=0.7, **used)
    _, (row,) = group_of(*conversation(*TURNS[:1], sampling_used=sampling), said(1.0, "k1"))
    assert [turn.masked for turn in row.turns] == [masked]
    assert row.loss_mask.any() == (not masked)


def test_what_cannot_train_is_told_in_its_group() -> None:
    """Calls of a version that nobody knows: the gateway of another run, or from before this one trained."""
    _, (row,) = group_of(*conversation(*TURNS, versions=()), said(1.0, "k1"))
    assert not row.loss_mask.any()
    assert {turn.masked for turn in row.turns} == {"bad_versions"}


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("target", [None, "1a"])
def test_a_held_out_rollout_is_no_conversation_whatever_is_said_of_it(is_late: bool, target: str | None) -> None:
    """Of the same agent, in a run that trains on all that is captured: its episode has its grader's reward and ends
    there, and the conversation beside it trains as without it."""
    alone = folded(*conversation(*TURNS), said(0.5, "k1"))
    group = GroupRef(id=RUN_HASH + "e" * 16, size=1, member=0, index=0)
    items = attempt(1, group, Purpose.VALIDATION)
    about: dict[str, Any] = {"conversation_key": None, "rollout_id": rollout(1), "attempt_id": "a001", "name": "thumb"}
    rating = said(0.5, "k2", target=call_id(target) if target else None, **about)
    sources = ("feedback", "grader:*")
    both = folded(*(items if is_late else [rating, *items]), *conversation(*TURNS), said(0.5, "k1"), sources=sources)
    if is_late:
        both.feed(rating)
        both.tick(300.0)
    assert both.values(Topic.TRANSITIONS) == alone.values(Topic.TRANSITIONS) != []
    found = {episode.purpose: episode for episode in both.episodes}
    assert len(both.values(Topic.EPISODES)) == 2
    assert (found[Purpose.VALIDATION].reward, found[Purpose.UNKNOWN].reward) == (1.0, 0.5)
    assert not both.values(Topic.DEAD_LETTERS)
