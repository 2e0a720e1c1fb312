"""What the gateway tells of a captured agent's calls: how each went, and that one is in flight."""

from __future__ import annotations

import itertools

import pytest

from tests.streams.make import Streams, call, call_id, config
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import CallEnded, CallOpen, CallOutcome, LlmCall
from tracegrad.schemas.records.episodes import EPISODES, Episode
from tracegrad.schemas.topics import Topic
from tracegrad.streams.config import SelectConfig

TRACE = "11" * 16
CALL = call("a", None, [1], [2], trace_id=TRACE)
ALL = SelectConfig(capture_all=True)


def ended(outcome: CallOutcome, name: str = "a") -> CallEnded:
    """How a call went."""
    return CallEnded(call_id=CallId(call_id(name)), trace_id=TRACE, outcome=outcome)


def closed(*records: LlmCall) -> Episode:
    """The episode of these records, closed by silence."""
    streams = Streams(config(select=ALL))
    streams.feed(*records)
    streams.tick(0, 3_000)
    (written,) = streams.values(Topic.EPISODES)
    return EPISODES.decode(written)


@pytest.mark.parametrize(
    ("told", "outcome", "masked"),
    [
        ([], "unknown", ""),
        (["delivered"], "delivered", ""),
        (["client_disconnected"], "client_disconnected", "client_disconnected"),
        (["client_disconnected", "superseded"], "superseded", "superseded"),
    ],
    ids=["nothing", "delivered", "gone", "asked_again"],
)
def test_a_captured_call_bears_its_outcome(told: list[str], outcome: str, masked: str) -> None:
    """Of several the last that can be known; an answer that nobody took leaves the loss; the order says nothing."""
    records: list[LlmCall] = [CALL, *(ended(CallOutcome(one)) for one in told)]
    for order in itertools.permutations(records):
        (made,) = closed(*order, *order).calls
        assert (made.outcome.value, made.masked) == (outcome, masked)


def test_an_answer_that_nobody_took_shares_its_turn_with_the_next() -> None:
    """As in an attempt: the client asked again."""
    gone = ended(CallOutcome.CLIENT_DISCONNECTED)
    episode = closed(CALL, gone, call("b", None, [1], [2], trace_id=TRACE), ended(CallOutcome.DELIVERED, "b"))
    assert [(made.turn, made.masked) for made in episode.calls] == [(0, "client_disconnected"), (0, "")]


def test_what_is_told_of_calls_is_no_call_and_takes_no_room_from_calls() -> None:
    """Three records of each are taken beside it, then they are dead letters."""
    streams = Streams(config(select=ALL, max_calls_per_episode=1))
    told: list[LlmCall] = [CallOpen(call_id=CALL.call_id, trace_id=TRACE), ended(CallOutcome.CLIENT_DISCONNECTED)]
    told += [ended(CallOutcome.SUPERSEDED), ended(CallOutcome.DELIVERED)]
    streams.feed(*told, CALL)
    streams.tick(0, 3_000)
    episode = streams.episode
    assert [made.outcome for made in episode.calls] == [CallOutcome.SUPERSEDED]
    assert len(streams.values(Topic.DEAD_LETTERS)) == 1
