"""A tool that must be called: its call would be sampled under a grammar, and could not train."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_engine.scripted import Reply, ScriptedEngine, tool_call_text
from tests.producers.llm_gateway.harness import ASK, ATTEMPT, CALC, ROLLOUT, Rig, begun, rig
from tests.versions import label
from tracegrad.schemas.metrics import CALLS_UNFORCED, CALLS_UNPARSED

_CHAT, _RESPONSES, _MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
_ATTEMPT = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}"
_SCHEMA = {"type": "object"}
_NAMED = {"type": "function", "function": {"name": "calc"}}
_CHAT_BODY: dict[str, Any] = {"model": "policy", "messages": ASK, "tools": CALC}
_RESPONSES_BODY = {
    "model": "policy",
    "input": "what is 12 plus 30?",
    "tools": [{"type": "function", "name": "calc", "parameters": _SCHEMA}],
}
_MESSAGES_BODY = {
    "model": "policy",
    "max_tokens": 100,
    "messages": ASK,
    "tools": [{"name": "calc", "input_schema": _SCHEMA}],
}
FORCED = {
    "chat-required": (_CHAT, _CHAT_BODY, "required"),
    "chat-named": (_CHAT, _CHAT_BODY, _NAMED),
    "responses-required": (_RESPONSES, _RESPONSES_BODY, "required"),
    "responses-named": (_RESPONSES, _RESPONSES_BODY, {"type": "function", "name": "calc"}),
    "messages-any": (_MESSAGES, _MESSAGES_BODY, {"type": "any"}),
    "messages-tool": (_MESSAGES, _MESSAGES_BODY, {"type": "tool", "name": "calc"}),
}
_CALLED = tool_call_text("calc", expr="12+30")


@pytest.mark.parametrize("purpose", ["train", "validation"])
@pytest.mark.parametrize(("path", "body", "choice"), FORCED.values(), ids=FORCED)
async def test_a_tool_that_must_be_called_is_called_freely_where_the_call_may_train(
    path: str, body: dict[str, Any], choice: Any, purpose: str
) -> None:
    """In each API, held-out calls too; the record keeps the word, and a counter tells it."""
    async with rig() as r:
        r.engine.replies.append(Reply(_CALLED))
        await r.begin(purpose=purpose)
        status, answer = await r.post(_ATTEMPT + path, body | {"tool_choice": choice})
        assert status == 200, answer
        (call,) = r.calls()
        assert not call.is_constrained and call.sampling_asked["tool_choice"] == choice
        assert [tool.name for tool in call.tool_calls] == ["calc"]
        assert r.gateway.parts.metrics.value(CALLS_UNFORCED, "tool_choice") == 1


@pytest.mark.parametrize(
    ("trains", "settings", "is_constrained"),
    [(True, {}, False), (False, {}, True), (True, {"allow_forced": True}, True)],
    ids=["trains", "recorded", "allowed"],
)
async def test_a_captured_agents_word_holds_where_its_calls_do_not_train(
    trains: bool, settings: Any, is_constrained: bool
) -> None:
    """It must call then, and is marked; so it is everywhere under `[llm] allow_forced`."""
    async with rig(trains_captured=trains, **settings) as r:
        r.engine.replies.append(Reply(_CALLED))
        assert (await r.post(_CHAT, _CHAT_BODY | {"tool_choice": "required"}))[0] == 200
        assert [call.is_constrained for call in r.calls()] == [is_constrained]


async def test_a_forced_tool_is_kept_where_the_settings_allow_it() -> None:
    """Also in a rollout that trains: its tokens then leave the loss."""
    async with begun(allow_forced=True) as r:
        r.engine.replies.append(Reply(_CALLED))
        await r.chat(ASK, tools=CALC, tool_choice="required")
        assert [call.is_constrained for call in r.calls()] == [True]


async def test_a_parser_that_forces_whatever_is_asked_is_not_obeyed() -> None:
    """GLM-4.7's derives a grammar from tools alone; a grammar that the request asks for stays, marked."""
    async with begun(ScriptedEngine(label=label(0), forces_auto=True)) as r:
        for asked in ({}, {"tool_choice": "required"}, {"response_format": {"type": "text"}}):
            r.engine.replies.append(Reply(_CALLED))
            await r.chat(ASK, tools=CALC, **asked)
        assert [call.is_constrained for call in r.calls()] == [False] * 3
        assert r.gateway.parts.metrics.value(CALLS_UNFORCED, "parser") == 3
        r.engine.replies.append(Reply("{}"))
        await r.chat(ASK, tools=CALC, response_format={"type": "json_object"})
        assert r.calls()[-1].is_constrained


async def test_a_tool_that_is_not_there_is_the_engines_to_refuse(r: Rig) -> None:
    """Nothing is made of a choice among no tools, or of a name that none bears."""
    await r.chat(ASK, tool_choice="required")
    await r.chat(ASK, tools=CALC, tool_choice={"type": "function", "function": {"name": "other"}})
    asked = [body.get("tool_choice") for body in r.asked("/v1/chat/completions/render")]
    assert asked == ["required", {"type": "function", "function": {"name": "other"}}]


@pytest.mark.parametrize(
    ("said", "num"),
    [
        ('```json\n{\n  "name": "calc",\n  "arguments": {\n    "expr": 6685 - 5265\n  }\n}\n```', 1),
        ("<tool_call>calc(12+30)</tool_call>", 1),
        ('{"name": "calc", "parameters": {"expr": "12+30"}}', 1),
        ("It is 42.", 0),
        (_CALLED, 0),
    ],
    ids=["no-json", "no-object", "parameters", "plain", "called"],
)
async def test_a_call_that_the_parser_cannot_read_is_an_answer_and_counted(said: str, num: int) -> None:
    """So that a wrong form and a wrong result can be told apart."""
    async with begun() as r:
        r.engine.replies.append(Reply(said))
        await r.chat(ASK, tools=CALC)
        assert r.gateway.parts.metrics.value(CALLS_UNPARSED) == num
        assert bool(r.calls()[-1].tool_calls) == (said == _CALLED)
