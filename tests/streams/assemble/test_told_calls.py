"""Spans that tell a model's calls become the calls of their episode, in a replay of a history."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tests.streams.make import RUN_HASH, TOPICS, Streams, agent_span, config, otlp, pairs, span, tool_span
from tracegrad.schemas.metrics import TOLD_CALLS
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.facts import CallFact
from tracegrad.schemas.records.tokens import CallTokens, Ids, ids_from_bytes
from tracegrad.schemas.records.told import ToldCall, ToolDefinition
from tracegrad.schemas.topics import Topic
from tracegrad.streams.assemble.fold import Assemble
from tracegrad.streams.assemble.told_calls import ToldCalls
from tracegrad.streams.assemble.write.again import Judge
from tracegrad.streams.config import HistoryConfig, SelectConfig
from tracegrad.streams.normalize.told.read_call import joined

TRACE = "ab" * 16
OPENAI = "openinference.instrumentation.openai"
TELLS_NO_TOOLS = "openinference.instrumentation.openai_agents"
CALC = {"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}
ASK = "What is 1+2?"


def letters(text: str) -> Ids:
    return np.array([*map(ord, text)], np.int32)


def tokens(call: ToldCall) -> CallTokens:
    """Of each letter its number; none where the call lacks something."""
    if call.lacks:
        return CallTokens(reason=call.lacks[0])
    assert call.answer is not None
    prompt = "".join(message.content or "" for message in call.messages or ())
    answer = (call.answer.content or "") + "".join(tool.name for tool in call.answer.tool_calls)
    return CallTokens(prompt=letters(prompt), answer=letters(answer + "\0"), masked=Reason.TEXT)


def chat(number: int, answer: str | None = "3", *, ask: str = ASK, model: str = "gpt-4o", **rest: Any) -> Span:
    """A model's span that tells its request and response; `answer` None: no content, `tools` None: nothing of tools."""
    request = {"model": model, "messages": [{"role": "user", "content": ask}], "tools": rest.pop("tools", [])}
    is_bare = request["tools"] is None
    choice = {"message": {"role": "assistant", "content": answer}, "finish_reason": rest.pop("finish", "stop")}
    response = {"id": rest.pop("response", None), "choices": [choice]}
    told: dict[str, Any] = {"openinference__span__kind": "LLM", "llm__model_name": model}
    if is_bare:
        told |= {
            "llm__input_messages__0__message__role": "user",
            "llm__input_messages__0__message__content": ask,
            "llm__output_messages__0__message__role": "assistant",
            "llm__output_messages__0__message__content": answer or "",
        }
    elif answer is not None:
        told |= {"input__value": json.dumps(request), "output__value": json.dumps(response)}
    return span(TRACE, number, "chat", **{"at": 10 * number, "parent": 1, **rest}, **told)


def request(*spans: Span, scope: str = OPENAI) -> bytes:
    """By one instrumentation."""
    made = ExportTraceServiceRequest.FromString(otlp(*spans))
    made.resource_spans[0].scope_spans[0].scope.name = scope
    return bytes(made.SerializeToString())


def streams(
    history: HistoryConfig,
    tools: dict[str, tuple[ToolDefinition, ...]] | None = None,
    judge: Judge | None = None,
    tokens_of: Callable[[ToldCall], CallTokens] = lambda call: tokens(call),
) -> Streams:
    """Of a replay with this history."""
    made = Streams(config(history=history, select=SelectConfig(capture_all=True)))
    told_calls = ToldCalls(history, "policy", RUN_HASH, tools or {}, tokens_of, joined)
    made.assemble = Assemble(made.config, TOPICS, told_calls=told_calls, judge=judge)
    return made


def told(*requests: bytes, models: tuple[str, ...] = ("gpt-4o*",), **options: Any) -> Episode:
    """What becomes of these, of one trace."""
    tools = options.pop("file", None)
    made = streams(HistoryConfig(models=models, **options), tools)
    made.feed(*requests)
    made.tick(0.0, 1e6, 2e6)
    return made.episode


def said(episode: Episode) -> list[tuple[str | None, str]]:
    """Of each call its answer, and why it leaves the loss."""
    return [(call.content, call.masked) for call in episode.calls]


def test_a_span_that_tells_its_call_is_one_with_the_policys_tokens() -> None:
    """Under the agent that asked, with the provider's id, from no parent; beside its tools."""
    clerk, spans = agent_span(TRACE, 1, "clerk"), (chat(2, response="resp-1"), chat(3, "5", ask=ASK + "35?"))
    episode = told(request(clerk, *spans, tool_span(TRACE, 4, parent=1, at=25)))
    first, second = episode.calls
    assert (first.call_id, first.joined_by, first.agent, first.turn) == ("resp-1", "traceparent", "clerk", 0)
    assert (second.call_id, second.agent, second.turn) == (f"span-{TRACE}-{3:016x}", "clerk", 1)
    assert bytes(ids_from_bytes(second.suffix_ids).tolist()) == (ASK + "35?").encode()
    assert (first.policy, first.parent_call_id, first.splice.kind, first.temperature) == ("policy", None, "told", 1.0)
    assert [version.run for version in first.versions] == [RUN_HASH]


def test_a_history_that_is_not_asked_for_gives_no_call() -> None:
    """Without the section the spans are shown, and no content is read; with it, of models, agents and services that
    are named alone."""
    live = Streams(config(select=SelectConfig(capture_all=True)))
    live.feed(request(agent_span(TRACE, 1, "clerk"), chat(2)))
    live.tick(0.0, 1e6, 2e6)
    assert live.episode.calls == () and b"1+2" not in b"".join(live.values(Topic.EPISODE_EVENTS))
    spans = request(agent_span(TRACE, 1, "clerk"), chat(2), chat(3, "4", model="claude"))
    assert said(told(spans)) == [("3", Reason.TEXT)]
    assert said(told(spans, models=("*",), agents=("clerk",), services=("ag*",))) == [
        ("3", Reason.TEXT),
        ("4", Reason.TEXT),
    ]
    assert said(told(spans, models=("*",), agents=("boss",))) == []
    assert said(told(spans, models=("*",), services=("other",))) == []


def test_of_spans_within_each_other_the_innermost_that_tells_is_the_call() -> None:
    """Those around it fill in what it lacks; one that tells nothing within one that tells is no call."""
    outer = chat(2, "3", tools=[CALC], response="outer")
    inner = chat(5, "3", parent=2, at=21, tools=None)
    one = told(request(agent_span(TRACE, 1, "clerk"), outer), request(inner, scope=TELLS_NO_TOOLS))
    assert [(call.call_id, call.masked) for call in one.calls] == [("outer", Reason.TEXT)]
    bare = told(request(agent_span(TRACE, 1, "clerk"), outer, chat(5, None, parent=2, at=21)))
    assert said(bare) == [("3", Reason.TEXT)]


def test_each_call_within_a_span_that_tells_is_a_call() -> None:
    """As of a wrapper of several; the wrapper is none."""
    inner = [chat(number, str(number), ask=f"{number}?", parent=2) for number in (5, 6)]
    episode = told(request(chat(2, "3", response="outer"), *inner))
    assert said(episode) == [("5", Reason.TEXT), ("6", Reason.TEXT)]
    assert "outer" not in {call.call_id for call in episode.calls}, "nobody knows whose it is"


def test_an_agent_or_a_tool_between_two_model_spans_makes_them_two_calls() -> None:
    """One asked the other."""
    inner = chat(5, "inner", parent=4)
    episode = told(request(chat(2, "outer"), agent_span(TRACE, 4, "helper", parent=2, at=22), inner))
    assert said(episode) == [("outer", Reason.TEXT), ("inner", Reason.TEXT)]


def test_two_spans_of_one_answer_are_one_call() -> None:
    """They repeat one response id, or tell equal words at one time; the one that lacks least is believed."""
    twice = request(chat(2, "3", response="r")), request(chat(3, "3", response="r", at=90), scope=TELLS_NO_TOOLS)
    assert said(told(*twice)) == [("3", Reason.TEXT)]
    assert said(told(request(chat(2, at=20), chat(3, at=20)))) == [("3", Reason.TEXT)]


def test_what_is_said_of_a_span_that_tells_the_same_answer_counts() -> None:
    """Else a reward would be for nothing; one that both say counts once."""
    spans = [chat(2, "3", response="r", at=20), chat(3, "3", response="r", at=20)]
    for one, name in zip(spans, ("useful", "short"), strict=True):
        event = one.events.add(name="gen_ai.evaluation.result")
        event.attributes.extend(pairs({"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": 1.0}))
    seen: list[CallFact] = []

    def judge(episode: Episode, facts: Sequence[CallFact]) -> Episode:
        seen.extend(facts)
        return episode

    made = streams(HistoryConfig(models=("*",)), judge=judge)
    made.feed(request(*spans))
    made.tick(0.0, 1e6, 2e6)
    assert [sorted(fact.told.rewards) for fact in seen if fact.told] == [[("short", 1.0), ("useful", 1.0)]]


def test_an_id_that_two_answers_bear_loses_neither() -> None:
    """As a careless export repeats it: the second has an id of its span's."""
    spans = request(chat(2, "3", response="r"), chat(4, "5", ask="b", response="r"))
    assert said(told(spans)) == [("3", Reason.TEXT), ("5", Reason.TEXT)]
    assert {call.call_id for call in told(spans).calls} == {"r", f"span-{TRACE}-{4:016x}"}


def test_of_calls_that_repeat_a_prompt_the_last_that_ended_counts() -> None:
    """The agent asked again; a later one that failed changes nothing, and two that were asked at once both count."""
    failed = chat(4, "", status=2)
    assert said(told(request(chat(2, "2"), chat(3, "3"), failed))) == [
        ("2", Reason.SUPERSEDED),
        ("3", Reason.TEXT),
        (None, Reason.UNFINISHED),
    ]
    assert said(told(request(chat(2, "2", at=20), chat(3, "3", at=20)))) == [("2", Reason.TEXT), ("3", Reason.TEXT)]


def test_tools_that_nobody_told_are_those_of_the_agents_other_call_or_of_the_file() -> None:
    """Where the other calls agree; else the call does not train."""
    clerk = agent_span(TRACE, 1, "clerk")
    bare = request(clerk, chat(2, ask="a", tools=None), scope=TELLS_NO_TOOLS)
    assert said(told(bare)) == [("3", Reason.NO_TOOLS_TOLD)]
    assert said(told(bare, request(chat(3, ask="b", tools=[CALC])))) == [("3", Reason.TEXT)] * 2
    several = request(chat(3, ask="b", tools=[CALC]), chat(4, ask="c"))
    assert said(told(bare, several))[0] == ("3", Reason.NO_TOOLS_TOLD)
    assert said(told(bare, file={"boss": (), "cl*": ()})) == [("3", Reason.TEXT)]
    assert said(told(bare, file={"boss": ()})) == [("3", Reason.NO_TOOLS_TOLD)]


@pytest.mark.parametrize(
    ("scope", "masked"),
    [("strands.telemetry.tracer", Reason.TEXT), ("agent_framework", Reason.NO_TOOLS_TOLD)],
)
def test_tools_on_the_agents_own_span_count_where_they_are_sent_so(scope: str, masked: str) -> None:
    """In Bedrock's form, for the agent's calls alone; Agent Framework closes their schemas for OpenAI's Responses."""
    tool = {"name": "calc", "inputSchema": {"json": {"type": "object"}}}
    clerk = agent_span(TRACE, 1, "clerk", gen_ai__tool__definitions=json.dumps([tool]))
    boss = [agent_span(TRACE, 7, "boss"), chat(8, "8", ask="c", parent=7, tools=None)]
    episode = told(request(clerk, chat(2, "2", ask="a", tools=None), *boss, scope=scope))
    assert said(episode) == [("2", masked), ("8", Reason.NO_TOOLS_TOLD)]


@pytest.mark.parametrize(
    ("ends", "masked"),
    [
        ([{"gen_ai__tool__call__result": "4"}], Reason.TEXT),
        ([{"status": 2}], Reason.FAILURE_REWRITTEN),
        ([{"gen_ai__tool__call__result": "4"}, {"status": 2}], Reason.FAILURE_REWRITTEN),
        ([], Reason.FAILURE_REWRITTEN),
    ],
    ids=["succeeded", "failed", "told both ways", "has no span"],
)
def test_a_result_counts_as_it_was_sent_where_only_failures_are_rewritten(ends: list[Any], masked: str) -> None:
    """If the tool's span says that it ended well: pydantic-ai and AI SDK 7 send a failure in other words."""
    asked = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "calc", "arguments": {}}]}
    result = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}]}
    answer = {"role": "assistant", "parts": [{"type": "text", "content": "4"}], "finish_reason": "stop"}
    attributes: dict[str, Any] = {
        "gen_ai__operation__name": "chat",
        "gen_ai__request__model": "gpt-4o",
        "gen_ai__input__messages": json.dumps([{"role": "user", "content": ASK}, asked, result]),
        "gen_ai__output__messages": json.dumps([answer]),
    }
    last = span(TRACE, 9, "chat", at=90, parent=1, **attributes)
    tools = [
        tool_span(TRACE, n, parent=1, at=20 + n, gen_ai__tool__call__id="c1", **end) for n, end in enumerate(ends, 2)
    ]
    assert said(told(request(agent_span(TRACE, 1, "clerk"), *tools, last, scope="pydantic-ai"))) == [("4", masked)]


def test_an_answer_that_met_the_token_limit_is_masked_as_any_other() -> None:
    """The policy would not have ended there."""
    assert said(told(request(chat(2, finish="length")))) == [("3", Reason.TRUNCATED)]


def test_more_than_may_be_told_of_a_call_is_left_out_with_its_reason() -> None:
    """Its neighbours train."""
    spans = request(chat(2, "x" * 5_000), chat(3, "3", ask="b"))
    assert said(told(spans, max_call_bytes=4_000)) == [(None, Reason.HISTORY_CUT), ("3", Reason.TEXT)]


def test_the_order_of_spans_changes_nothing() -> None:
    """Be they in one request or in several."""
    spans = [agent_span(TRACE, 1, "clerk"), chat(2, "3", tools=[CALC]), chat(5, "3", parent=2, at=21), chat(6, "6")]
    made = {told(*map(request, order)).calls for order in map(list, itertools.permutations(spans))}
    assert len(made) == 1 and len(next(iter(made))) == 2


def test_a_conversation_over_hours_is_an_episode_a_trace_and_what_comes_again_is_none() -> None:
    """As calls that the gateway records begin the next stretch of a conversation."""
    made, values = streams(HistoryConfig(models=("*",))), []
    for number in range(1, 4):
        trace = number.to_bytes(16)
        clerk = agent_span(TRACE, 1, "clerk", gen_ai__conversation__id="talk")
        values.append(request(clerk, chat(2, str(number), ask=f"{number}?")).replace(bytes.fromhex(TRACE), trace))
        made.feed(values[-1])
        made.tick(number * 1e6, number * 1e6 + 5e5)
    made.feed(*values)
    made.tick(9e6, 9.5e6)
    assert [said(episode) for episode in made.episodes] == [[(str(number), Reason.TEXT)] for number in range(1, 4)]
    assert len({episode.conversation for episode in made.episodes}) == 1


def test_a_trace_that_tells_a_call_is_kept_as_one_with_calls() -> None:
    """Of bare spans a flood is let go."""
    made = streams(HistoryConfig(models=("*",)))
    made.feed(*(request(chat(2)).replace(bytes.fromhex(TRACE), number.to_bytes(16)) for number in range(1, 6)))
    made.tick(0.0, 1e6, 2e6)
    assert len(made.episodes) == 5


def test_calls_are_counted_by_why_they_leave_the_loss() -> None:
    """For the report at a replay's end."""
    made = streams(HistoryConfig(models=("*",)))
    made.feed(request(chat(2), chat(3, "x", ask="b", finish="length"), chat(4, None)))
    made.tick(0.0, 1e6, 2e6)
    counted = made.assemble.metrics.series()[TOLD_CALLS]
    assert counted == {(Reason.TEXT,): 2, (Reason.NO_PROMPT_TOLD,): 1}


def test_the_keys_of_a_tools_schema_stay_in_their_order() -> None:
    """Templates write them so; records sort what they hold."""
    schema = {"type": "object", "properties": {"z": {}, "a": {}}, "required": ["z"]}
    seen: list[ToldCall] = []

    def kept(call: ToldCall) -> CallTokens:
        seen.append(call)
        return tokens(call)

    made = streams(HistoryConfig(models=("*",)), tokens_of=kept)
    made.feed(request(chat(2, tools=[{"type": "function", "function": {"name": "calc", "parameters": schema}}])))
    made.tick(0.0, 1e6, 2e6)
    assert [tool.parameters for call in seen for tool in call.tools or ()] == [json.dumps(schema)]


@pytest.mark.parametrize("tools", [[CALC, {"type": "web_search"}], [{"type": "custom", "custom": {"name": "x"}}]])
def test_tools_that_cannot_be_read_are_not_taken_for_none(tools: list[Any]) -> None:
    """Though the instrumentation tells them always; a file of tools makes the call whole."""
    spans = request(agent_span(TRACE, 1, "clerk"), chat(2, tools=tools))
    assert said(told(spans)) == [("3", Reason.NO_TOOLS_TOLD)]
    assert said(told(spans, file={"*": ()})) == [("3", Reason.TEXT)]


def test_of_calls_at_one_time_the_one_with_the_longer_prompt_is_later() -> None:
    """As clocks of seconds tell it; none of them takes another's place."""
    turns = []
    for number in range(4):
        call = chat(9 - number, str(number), ask="same", at=7)
        call.end_time_unix_nano = 7
        messages = [{"role": "user", "content": "go on"}] * (2 * number + 1)
        body = json.dumps({"model": "gpt-4o", "messages": messages, "tools": []})
        next(one for one in call.attributes if one.key == "input.value").value.string_value = body
        turns.append(call)
    assert said(told(request(*turns[::-1]))) == [(str(number), Reason.TEXT) for number in range(4)]
    assert said(told(request(chat(2, "2", at=20), chat(3, "3", at=20)))) == [("2", Reason.TEXT), ("3", Reason.TEXT)]
