"""Messages that a template refuses are made such as it takes; those that it takes stay as they are."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.producers.llm_gateway.harness import ASK, Rig
from tests.producers.llm_gateway.real_templates import NOW, RealTemplate, load
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest, Message, OtherPart, TextPart
from tracegrad.producers.llm_gateway.api.messages.read import read as read_messages
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.api.reading import with_whole_answers
from tracegrad.producers.llm_gateway.render.answer_end import EndOfMessage
from tracegrad.producers.llm_gateway.render.normalise import TemplateRefusals, normalised
from tracegrad.producers.llm_gateway.render.splice import (
    EarlierCall,
    SpliceHistory,
    build_prompt,
    conversation_digest,
    splice_context,
)
from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.ids import CallId, new_tool_call
from tracegrad.schemas.metrics import PROMPT_NOTES

SYSTEM, LATER = {"role": "system", "content": "You code."}, {"role": "system", "content": "<permissions>"}
USER, OTHER = {"role": "user", "content": "hi"}, {"role": "user", "content": "there"}
MINTED = new_tool_call("ab" * 16)


def read(messages: list[Any], *, joins_users: bool = False) -> ChatRequest:
    """As they come over OpenAI's API, or over one that joins users."""
    return ChatRequest(messages=OPENAI_CHAT.read({"messages": messages}).messages, joins_users=joins_users)


async def made(template: str, request: ChatRequest) -> tuple[tuple[Message, ...], tuple[str, ...]]:
    """The messages, and what was done to them."""
    renderer: Any = load(template)
    return await normalised(request, TemplateRefusals(), renderer, NOW)


def asks(*ids: str) -> dict[str, Any]:
    """An answer that calls a tool under each of these ids."""
    calls = [{"id": id_, "type": "function", "function": {"name": "calc", "arguments": "{}"}} for id_ in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def result(call_id: str, content: str = "3") -> dict[str, Any]:
    """Of one of these."""
    return {"role": "tool", "tool_call_id": call_id, "content": content}


async def test_systems_that_are_not_first_are_merged_where_the_template_refuses_them() -> None:
    """As vLLM's Messages endpoint merges them: into the first message, in their order, joined by nothing."""
    request = read([SYSTEM, LATER, USER, {"role": "system", "content": "!"}, {"role": "assistant", "content": "x"}])
    messages, done = await made("qwen3_5_think", request)
    assert [(message.role, message.content) for message in messages] == [
        ("system", "You code.<permissions>!"), ("user", "hi"), ("assistant", "x"),
    ]  # fmt: skip
    assert done == ("systems",)
    assert await made("qwen3", request) == (request.messages, ())
    late, _ = await made("qwen3_5_think", read([USER, LATER]))
    assert [message.role for message in late] == ["system", "user"]


SYSTEM_IS_NO_TURN = RealTemplate(
    "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
    "{% for message in messages %}{% if (message.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate') }}{% endif %}"
    "<|turn|>{{ message.role }} {{ message.content }}{% endfor %}"
)
"""As Gemma 3's and Cohere's published templates: any role is let pass in an answer's place."""


@pytest.mark.parametrize(
    ("messages", "merged"),
    [
        ([SYSTEM, LATER, USER], True),
        ([SYSTEM, USER, {"role": "assistant", "content": "x"}, LATER, USER], True),
        ([SYSTEM, USER, LATER, USER], False),
        ([USER, LATER, USER], False),
    ],
    ids=["in a row", "after an answer", "in an answer's place", "none first"],
)
async def test_systems_are_merged_in_each_place_in_which_a_template_refuses_them(
    messages: list[Any], merged: bool
) -> None:
    """Asked of it by what they follow: where it takes them, nothing is changed."""
    request, renderer = read(messages), cast(Any, SYSTEM_IS_NO_TURN)
    done, notes = await normalised(request, TemplateRefusals(), renderer, NOW)
    assert notes == (("systems",) if merged else ())
    assert merged == ([one.role for one in done].count("system") == 1 and done != request.messages)
    await renderer.ids(replace(request, messages=done), NOW)


async def test_users_in_a_row_are_one_where_the_api_says_so_and_the_template_refuses_them() -> None:
    """Anthropic's does; OpenAI's does not, and its client gets the template's refusal."""
    row = [USER, OTHER, {"role": "assistant", "content": "x"}, USER]
    messages, done = await made("alternating", read(row, joins_users=True))
    assert [message.content for message in messages] == ["hi\nthere", "x", "hi"] and done == ("users",)
    for template, joins in (("alternating", False), ("qwen3", True)):
        request = read(row, joins_users=joins)
        assert await made(template, request) == (request.messages, ())
    assert read_messages({"max_tokens": 1, "messages": [USER]}).joins_users and not read([USER]).joins_users


async def test_parts_of_merged_messages_stay_parts() -> None:
    """An image among texts."""
    image = OtherPart({"type": "image_url", "image_url": {"url": "data:,"}})
    row = (Message(role="user", content="a"), Message(role="user", content=(TextPart("b"), image)))
    messages, _ = await made("alternating", ChatRequest(messages=row, joins_users=True))
    assert [message.content for message in messages] == [(TextPart("a"), TextPart("b"), image)]


async def test_ids_of_tool_calls_have_nine_letters_where_the_template_asks_for_them() -> None:
    """Equal ones stay equal, others apart; those that have nine stay, and other templates see what was sent."""
    ids = [MINTED, "call_b", "abcdefghi"]
    request = read([USER, asks(*ids), *map(result, ids)])
    messages, done = await made("nine_character_ids", request)
    called = [call.id for call in messages[1].tool_calls]
    assert called == [message.tool_call_id for message in messages[2:]] and done == ("long_ids",)
    assert len(set(called)) == 3 and called[2] == ids[2]
    assert all(len(id_) == 9 and id_.isalnum() and id_.isascii() for id_ in called)
    assert await made("qwen3", request) == (request.messages, ())


@pytest.mark.parametrize(
    ("template", "first", "more"),
    [
        ("qwen3_5_think", [SYSTEM, LATER, USER], [OTHER]),
        ("qwen3_5_think", [SYSTEM, USER, LATER], [OTHER]),
        ("alternating", [USER, OTHER], [USER, OTHER]),
        ("nine_character_ids", [USER], None),
    ],
)
async def test_what_was_made_of_a_conversation_is_gone_on_from(
    template: str, first: list[Any], more: list[Any] | None
) -> None:
    """The second prompt has the ids of the first and what was sampled."""
    renderer: Any = load(template)
    history, ends = SpliceHistory(), EndOfMessage()
    request = read(first, joins_users=True)
    prompt, _ = await build_prompt(renderer, ends, history, request, NOW)
    answer = asks(MINTED) if more is None else {"role": "assistant", "content": "3"}
    message = read([answer]).messages[0]
    call = EarlierCall(
        call_id=CallId("c"),
        prompt_ids=prompt.ids,
        sampled_ids=np.asarray([5], np.int32),
        tool_call_ids=(),
        is_cut=False,
    )
    history.remember(conversation_digest(splice_context(request), request.messages), message, call)
    after = [result(MINTED)] if more is None else more
    later, _ = await build_prompt(renderer, ends, history, read([*first, answer, *after], joins_users=True), NOW)
    assert later.outcome.kind == "extended" and later.notes
    assert later.ids[: later.shared_tokens].tolist() == [*prompt.ids.tolist(), 5]


async def test_what_no_rule_mends_stays_the_templates_refusal() -> None:
    """Answers in a row are nobody's turn."""
    said = {"role": "assistant", "content": "x"}
    renderer: Any = load("alternating")
    with pytest.raises(EngineRefusal, match="alternate"):
        await build_prompt(renderer, EndOfMessage(), SpliceHistory(), read([USER, said, said, USER]), NOW)


MESSAGES = st.lists(
    st.one_of(
        st.sampled_from([SYSTEM, USER, OTHER, {"role": "assistant", "content": "x"}]),
        st.sampled_from(["a", MINTED]).map(lambda id_: asks(id_)),
        st.sampled_from(["a", MINTED]).map(lambda id_: result(id_)),
    ),
    min_size=1,
    max_size=8,
)


@pytest.mark.parametrize("template", ["qwen3", "qwen3_5_think", "alternating", "nine_character_ids"])
@given(messages=MESSAGES, joins_users=st.booleans())
async def test_prefixes_are_preserved(template: str, messages: list[Any], joins_users: bool) -> None:
    """What is made of a conversation before an answer, or up to it, is what the whole begins with, unless a system
    comes later."""
    whole, _ = await made(template, read(messages, joins_users=joins_users))
    for at, message in enumerate(messages):
        if message["role"] == "assistant" and SYSTEM not in messages[at:]:
            for end in (at, at + 1):
                part = read(messages[:end], joins_users=joins_users) if end else ChatRequest(messages=())
                start, _ = await made(template, part)
                assert whole[: len(start)] == start


def told(*messages: Any) -> list[str | None]:
    """The results, as the reader of any API leaves them."""
    request = with_whole_answers(OPENAI_CHAT.read({"messages": [USER, *messages]}))
    return [str(message.content) for message in request.messages if message.role == "tool"]


@pytest.mark.parametrize(
    ("results", "order"),
    [
        ([result("a", "cold"), result("b", "hot")], ["cold", "hot"]),
        ([result("b", "hot"), result("a", "cold")], ["cold", "hot"]),
        ([result("b", "hot")], ["hot"]),
        ([result("b", "hot"), result("a", "cold"), result("b", "again")], ["hot", "cold", "again"]),
        ([result("b", "hot"), result("z", "?"), result("a", "cold")], ["hot", "?", "cold"]),
    ],
    ids=["as called", "as they ended", "one missing", "one doubled", "a stranger's"],
)
def test_results_of_parallel_calls_stand_in_the_order_of_the_calls(results: list[Any], order: list[str]) -> None:
    """Templates write them without ids; what is odd stays as the engine's own endpoint has it."""
    assert told(asks("a", "b"), *results, USER, asks("b", "a"), *results)[: len(order)] == order


async def test_the_gateway_counts_what_it_makes_of_messages(r: Rig) -> None:
    """By what the template refuses; here it is told to have refused it before."""
    r.gateway.parts.ends.refused._known["systems"] = True
    await r.chat([SYSTEM, *ASK, LATER, *ASK])
    assert r.gateway.parts.metrics.value(PROMPT_NOTES, "systems") == 1
