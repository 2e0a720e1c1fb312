"""What is told of an answer while it is sampled: a beginning of the whole, as long as that is sure."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from tests.fake_engine.tokenizer import ToyTokenizer, toy_decoder
from tracegrad.producers.llm_gateway.api.events import Started, Text
from tracegrad.producers.llm_gateway.render.live import LiveAnswer, LiveText, Step
from tracegrad.schemas.ids import CallId

DECODER = toy_decoder()
STARTED = Started(call_id=CallId("chatcmpl-1"), model="policy", created_s=0)


def step() -> Step:
    """As a local template decodes."""
    stream = DecodeStream(ids=[], skip_special_tokens=False)
    return lambda token: stream.step(DECODER, token)


def heard(text: str, marks: tuple[str, ...]) -> list[str]:
    """What is told of a text after each of its ids."""
    live = LiveText(step, marks)
    return [live.add_ids([token]) for token in ToyTokenizer().encode(text, merge=False)]


@pytest.mark.parametrize(
    ("text", "marks", "told"),
    [
        ("a\u4f60", (), ["a", "", "", "\u4f60"]),
        ("a END", (" END",), ["a", "", "", "", ""]),
        ("a EN.", (" END",), ["a", "", "", "", " EN."]),
        ("abab", ("aba",), ["", "", "", ""]),
        ("x<tool_call>y", ("<tool_call>",), ["x", "", ""]),
        ("aab", ("ab", "c"), ["", "a", ""]),
    ],
    ids=["bytes", "stop", "no_stop", "stop_at_once", "tool_call", "stop_within_a_beginning"],
)
def test_what_may_change_is_held_back(text: str, marks: tuple[str, ...], told: list[str]) -> None:
    """Half a character, the first letters of a stop string, a tool call and all after it."""
    assert heard(text, marks) == told


@example("<a<", ["a", "<a<"])
@given(
    st.text(alphabet="ab<\u4f60\U0001f642", max_size=12), st.lists(st.text("ab<", min_size=1, max_size=3), max_size=3)
)
def test_what_is_told_is_the_text_up_to_a_mark(text: str, marks: list[str]) -> None:
    """All but what may still become a mark; never a letter of the one that is whole first: there sampling ends."""
    told = "".join(heard(text, tuple(marks)))
    # (end, begin) of each.
    found = [(text.find(mark) + len(mark), text.find(mark)) for mark in marks if mark in text]
    if found:
        assert told == text[: min(found)[1]]
    else:
        held = text.removeprefix(told)
        assert told + held == text and (not held or any(mark.startswith(held) for mark in marks))


def test_another_try_begins_from_nothing() -> None:
    """No half character or mark of the answer before is left."""
    live = LiveText(step, ("ab",))
    assert live.add_ids(ToyTokenizer().encode("\u4f60a")[:2]) == ""
    live.restart()
    assert live.add_ids(ToyTokenizer().encode("b")) == "b"


async def test_a_slow_reader_finds_the_text_joined() -> None:
    """The first event once; nothing twice; `wake` without news is no text."""
    live = LiveAnswer()
    assert not await live.has_more(0.001) and live.take_events() == []
    for piece in ("a", "", "b"):
        live.say(STARTED, piece)
    assert await live.has_more(None) and live.take_events() == [STARTED, Text("ab")]
    live.say(STARTED, "c")
    assert live.take_events() == [Text("c")] and live.said == "abc"
    asyncio.get_running_loop().call_soon(live.wake)
    assert await live.has_more(1) and live.take_events() == []
