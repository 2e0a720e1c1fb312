"""Feedback on what cannot earn it, or is hard to find: each piece ends somewhere, and its neighbours are unharmed."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest

from tests.streams.assemble.test_feedback import KEY, said
from tests.streams.credit.strategies.test_conversations import TRACE, TURNS, conversation, returns
from tests.streams.credit.test_feedback_window import Run, closing
from tests.streams.make import call, call_id, tool_call
from tracegrad.schemas.records.calls import Purpose
from tracegrad.schemas.records.episodes import CLOSED, EPISODES, LATE
from tracegrad.schemas.records.rollouts import piece_id
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig


def late(run: Run) -> set[str]:
    """Pieces that are for nothing."""
    markers = map(CLOSED.decode, run.streams.values(Topic.CLOSED_GROUPS))
    return {piece for marker in markers if marker.disposition == LATE for piece in marker.heard}


def choices(is_late: bool, **changes: Any) -> dict[str, tuple[str, float | None]]:
    """What masks, and what earned, each answer to a request that asked for two, of which one is rated."""
    run, rated = Run(), said(1.0, "k1", target=call_id("one"))
    given: dict[str, Any] = {"trace_id": TRACE, "conversation_key": KEY, "purpose": Purpose.UNKNOWN, **changes}
    run.feed(*(call(name, None, [1], [2], answers_user=True, num_choices=2, **given) for name in ("one", "two")))
    run.wait(20 * is_late)
    run.feed(rated)
    run.wait(100)
    ((_, rows),) = run.streams.groups
    return {turn.call_id: (turn.masked, turn.return_) for row in rows for turn in row.turns}


@pytest.mark.parametrize("is_late", [False, True])
def test_of_several_answers_the_one_that_is_rated_trains(is_late: bool) -> None:
    """Whether it was rated before its episode closed or behind that; the other's tokens earn nothing."""
    turns = choices(is_late)
    assert turns[call_id("one")] == ("", 1.0)
    assert turns[call_id("two")][0] == "not_chosen"


@pytest.mark.parametrize("is_late", [False, True])
def test_a_rated_answer_that_cannot_train_does_not(is_late: bool) -> None:
    """That it was one of several is the least of its faults, whenever it is rated."""
    turns = choices(is_late, is_truncated=True, finish_reason="length")
    assert {masked for masked, _ in turns.values()} == {"truncated"}


def test_feedback_on_a_tool_call_that_is_rated_behind_the_close_is_its_callers() -> None:
    """As it would be had it come before."""
    run = Run()
    run.feed(*conversation(*TURNS[:1], tool_calls=(tool_call("t"),)), *conversation(("x", True), key="7a" * 16))
    run.wait(20)
    run.feed(said(0.5, "k1", target="call_t"))
    run.wait(100)
    ((summary, rows),) = run.streams.groups
    assert (summary.group_id, returns(rows), run.undone()) == (KEY, [0.5], [])


def test_feedback_on_a_conversation_that_was_not_selected_is_late() -> None:
    """There is no episode, and nothing waits for ever."""
    run = Run(select=SelectConfig(services=("other",), train=True))
    pieces = [said(1.0, "k1", target=call_id("d")), said(1.0, "k2")]
    run.feed(*conversation(*TURNS), pieces[0])
    run.wait(20)
    run.feed(pieces[1])
    run.wait(200)
    assert (run.streams.values(Topic.EPISODES), run.streams.groups) == ([], [])
    assert (late(run), run.undone()) == ({*map(piece_id, pieces)}, [])


def test_feedback_on_an_answer_of_another_conversation_is_late() -> None:
    """Its id carries that one's key where the gateway wrote it; here somebody named a key of his own."""
    run = Run()
    stray = said(1.0, "k1", target=call_id("x"))
    run.feed(*conversation(*TURNS), *conversation(("x", True), key="7a" * 16), stray)
    run.wait(200)
    assert (run.streams.groups, late(run), run.undone()) == ([], {piece_id(stray)}, [])


def test_a_revision_behind_the_close_changes_nothing_and_what_counted_stays() -> None:
    """The group is written once; the piece is in it by its last value in time."""
    run = Run()
    run.feed(*conversation(*TURNS), said(1.0, "k1", at_ms=1))
    run.wait(100)
    run.feed(said(-1.0, "k1", at_ms=200_000))
    run.wait(200)
    ((_, rows),) = run.streams.groups
    assert (returns(rows), run.num_late, run.undone()) == ([1.0] * 4, 1, [])


def test_one_key_of_two_things_is_two_pieces() -> None:
    """Reused for another answer it revises nothing of the first."""
    run = Run()
    run.feed(*conversation(*TURNS), said(1.0, "k", target=call_id("b"), at_ms=1))
    run.feed(said(-1.0, "k", target=call_id("d"), at_ms=2))
    run.wait(100)
    ((_, rows),) = run.streams.groups
    assert returns(rows) == [1.0, 1.0, -1.0, -1.0]


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e13])
def test_a_value_that_no_gateway_of_ours_takes_counts_for_nothing(value: float) -> None:
    """Signed, all the same: the folds stand on their own; what is usable beside it counts."""
    run = Run()
    run.feed(*conversation(*TURNS), said(0.5, "k2", target=call_id("b")))
    run.feed(said(value, "k1", target=call_id("d")))
    run.wait(200)
    ((_, rows),) = run.streams.groups
    assert (returns(rows), run.undone()) == ([0.5, 0.5, 0.0, 0.0], [])
    assert all(EPISODES.decode(value).episode_id == KEY for value in run.streams.values(Topic.EPISODES))


def test_a_close_that_bears_a_strange_key_is_done_with_its_episode() -> None:
    """Nobody of ours writes one; an input that is never done would stop the stage in the end."""
    run = Run()
    run.feed(*conversation(*TURNS), said(0.5, "k1"))
    run.wait(20)
    credit, (episode,) = run.streams.credit, run.streams.log[Topic.EPISODES]
    credit.reset()
    strange = msgspec.structs.replace(closing(KEY, 7), key=b"\xffother")
    assert credit.fold(strange).done == ()
    assert credit.fold(closing(KEY, 8)).done == (closing(KEY, 8).position,)
    assert credit.fold(episode).done == (strange.position, episode.position)
