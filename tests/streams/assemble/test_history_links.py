"""Tool-call ids in what was said before name a captured trace's conversation, where nothing better does."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.streams.assemble.test_links import OTHER, TRACE, captured, episodes, llm, streams
from tests.streams.make import Item, Streams, agent_span, otlp, span
from tracegrad.schemas.ids import new_tool_call
from tracegrad.schemas.records.calls import ToolCall

ASKED = new_tool_call(OTHER, lambda _: 7)
ASKING = msgspec.structs.replace(
    captured(OTHER, "two", trace_id=OTHER), tool_calls=(ToolCall(id=ASKED, name="calc", arguments="{}"),)
)


def said(*ids: str) -> str:
    """The messages of a prompt, with what was asked and answered before."""
    asked = [{"type": "tool_call", "id": one, "name": "calc", "arguments": {}} for one in ids]
    results = [{"role": "tool", "parts": [{"type": "tool_call_response", "id": one, "response": "3"}]} for one in ids]
    return json.dumps([{"role": "assistant", "parts": asked}, *results])


def close(run: Streams) -> None:
    """Falls silent as time goes by: what goes elsewhere has a quarter of the silence for it."""
    for now_s in range(120):
        run.tick(now_s / 2)


OF_HISTORY: dict[str, dict[str, Any]] = {
    "otel": {"gen_ai__operation__name": "chat", "gen_ai__input__messages": said(ASKED)},
    "openinference": {
        "openinference__span__kind": "LLM",
        "llm__input_messages__1__message__tool_calls__0__tool_call__id": ASKED,
        "llm__input_messages__2__message__tool_call_id": ASKED,
    },
}


@pytest.mark.parametrize("history", OF_HISTORY.values(), ids=OF_HISTORY)
@pytest.mark.parametrize("is_call_first", [True, False])
def test_ids_of_what_was_said_before_bring_a_trace_to_its_conversation(
    history: dict[str, Any], is_call_first: bool
) -> None:
    """Of a framework whose spans repeat no id of their own answer."""
    run = streams()
    spans = otlp(agent_span(TRACE, 1, "planner"), span(TRACE, 2, "llm", parent=1, **history))
    items: list[Item] = [ASKING, spans] if is_call_first else [spans, ASKING]
    run.feed(*items)
    close(run)
    episode = run.episode
    assert (episode.episode_id, episode.num_spans, len(episode.calls)) == (OTHER, 2, 1)


def test_a_critic_who_is_given_anothers_transcript_keeps_its_own_calls() -> None:
    """Whether its client propagates, repeats its own ids or does neither; nor do words in a text name anything."""
    own = captured(TRACE, "own", parent_span_id=f"{2:016x}")
    run = streams()
    run.feed(ASKING, own, otlp(agent_span(TRACE, 1, "critic"), span(TRACE, 2, "llm", parent=1, **OF_HISTORY["otel"])))
    close(run)
    assert {key: len(one.calls) for key, one in episodes(run).items()} == {OTHER: 1, TRACE: 1}
    apart, trace = captured("c3" * 16, "apart", trace_id="c3" * 16), "c4" * 16
    run = streams()
    run.feed(ASKING, apart, otlp(llm(trace, 2, apart.call_id, **{"gen_ai__input__messages": said(ASKED)})))
    close(run)
    assert {key: one.num_spans for key, one in episodes(run).items()} == {OTHER: 0, "c3" * 16: 1}
    run = streams()
    text = json.dumps([{"role": "user", "parts": [{"type": "text", "content": f'"tool_call_id": "{ASKED}"'}]}])
    run.feed(ASKING, otlp(span(TRACE, 2, "chat", gen_ai__operation__name="chat", gen_ai__input__messages=text)))
    close(run)
    assert episodes(run)[OTHER].num_spans == 0


def test_a_history_of_two_conversations_leaves_its_trace_where_it_was() -> None:
    """It may be a judge of both."""
    other = new_tool_call("c3" * 16, lambda _: 7)
    run = streams()
    judge = span(TRACE, 2, "chat", gen_ai__operation__name="chat", gen_ai__input__messages=said(ASKED, other))
    run.feed(ASKING, otlp(judge))
    close(run)
    assert episodes(run)[OTHER].num_spans == 0
