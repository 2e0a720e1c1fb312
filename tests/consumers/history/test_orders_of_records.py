"""A history is the same episodes, and as few of them are open, in time order and trace by trace."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import pytest

from tests.streams.make import TOPICS, agent_span, config, otlp, tool_span
from tracegrad.consumers.history import refold as refolding
from tracegrad.consumers.history.recorded import RecordedEpisodes
from tracegrad.consumers.history.refold import Refold
from tracegrad.schemas.fold import Output
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.topics import STREAMS, Stage, Topic
from tracegrad.streams.config import SelectConfig
from tracegrad.streams.folds import build_fold

NUM_TRACES, LONG_S = 60, 25
"""Of which some are open at one time, and each is silent for longer than an episode may be."""


class Piece(NamedTuple):
    """One record of a trace."""

    at_s: int
    trace: str
    value: bytes


def pieces() -> list[list[Piece]]:
    """Of each trace, in time: a tool, another one, and the agent that they are of, which ended last."""
    found = []
    for number in range(NUM_TRACES):
        trace, began_s = f"{number + 1:032x}", 100 + 3 * number
        spans = (tool_span(trace, 2, parent=1), tool_span(trace, 3, parent=1), agent_span(trace, 1, "planner"))
        ends_s = (began_s, began_s + LONG_S, began_s + LONG_S + 1)
        for one in spans[:2]:
            one.flags = 256  # the agent's own process has the parent
        found.append([Piece(at, trace, otlp(one)) for at, one in zip(ends_s, spans, strict=True)])
    return found


def episodes(read: list[Piece]) -> tuple[list[bytes], int]:
    """The records of episodes, sorted, and how many were open at most, but for the last ones."""
    rules = config(select=SelectConfig(capture_all=True), idle_s=10.0)
    folds = {stage: build_fold(stage, rules, TOPICS) for stage in STREAMS}
    refold = Refold(folds, lambda *_: (), lambda episode, _: episode, TOPICS, RecordedEpisodes())
    outputs: list[Output] = []
    most = 0
    for offset, piece in enumerate(read):
        outputs += refold.fold(
            Record(
                topic=TOPICS.name(Topic.OTLP_SPANS),
                partition=0,
                offset=offset,
                key=None,
                value=piece.value,
                timestamp_ms=1_000 * piece.at_s,
            )
        )
        most = max(most, folds[Stage.ASSEMBLE].num_open)
    outputs += refold.finish()
    assert refold.spans.report()[0]["emitted"] == len(read)
    return sorted(one.value for one in outputs if one.topic is Topic.EPISODES), most


def in_time() -> list[Piece]:
    """As a Collector would have written them."""
    return sorted((piece for of_trace in pieces() for piece in of_trace), key=lambda piece: piece.at_s)


@pytest.mark.parametrize("order", ["ascending", "descending", "any"])
@pytest.mark.parametrize("root", ["first", "last"])
def test_order_by_trace_gives_the_episodes_of_time_order(
    order: str, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their records are equal to the byte, and open is what was read within a silence."""
    monkeypatch.setattr(refolding, "_IDLE_BYTES", 30 * len(pieces()[0][0].value))
    expected, most_in_time = episodes(in_time())
    assert len(expected) == NUM_TRACES and most_in_time < NUM_TRACES // 2
    traces = pieces()
    if order != "ascending":
        traces.reverse()
    if order == "any":
        Random(0).shuffle(traces)
    ordered = [piece for trace in traces for piece in (reversed(trace) if root == "first" else trace)]
    found, most = episodes(ordered)
    assert found == expected
    assert most < NUM_TRACES // 2
