"""A call's slot: given back exactly once, whatever became of the request; what is told while it is sampled."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers.decoders import DecodeStream

from tests.fake_engine.tokenizer import ToyTokenizer, toy_decoder
from tracegrad.producers.llm_gateway.api.chat_request import ChatRequest
from tracegrad.producers.llm_gateway.api.events import Finished, Started, Text
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.render.finish import Answer, ServedCall
from tracegrad.producers.llm_gateway.render.live import LiveAnswer, LiveText, Step
from tracegrad.producers.llm_gateway.respond import CallResponse
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import CallOutcome

Settled = list[tuple[ServedCall | None, BaseException | None]]


def made() -> ServedCall:
    """A call whose record is acknowledged; nobody has its answer yet."""
    call_id = CallId("chatcmpl-1")
    events = (
        Started(call_id=call_id, model="policy", created_s=0),
        Text("42"),
        Finished(reason="stop", prompt_tokens=3, sampled_tokens=1),
    )
    answer = Answer(
        call_id=call_id,
        content="42",
        reasoning=None,
        tool_calls=(),
        finish_reason="stop",
        sampled_tokens=1,
        is_cut=False,
    )
    return ServedCall(answers=(answer,), events=events)


class Request:
    """One request to a CallResponse, with a connection that does what a test asks of it."""

    def __init__(self, *, is_stream: bool = False, error: Exception | None = None) -> None:
        self.settled: Settled = []
        self.goes_on = asyncio.Event()
        """The call ends once it is set."""
        self.sends: list[str] = []
        self.broken_from: int | None = None
        """Sends from this one on raise; negative: they block."""
        self._error = error
        self._response = CallResponse(
            call=self._call,
            api=OPENAI_CHAT,
            request=ChatRequest(messages=(), is_stream=is_stream),
            live=LiveAnswer(),
            keep_alive_s=0.001,
            left=lambda: None,
            settled=lambda served, error: self.settled.append((served, error)),
        )
        self.task = asyncio.create_task(self._response({"type": "http"}, self._receive, self._send))

    async def _call(self) -> ServedCall:
        await self.goes_on.wait()
        if self._error is not None:
            raise self._error
        return made()

    async def _receive(self) -> Any:
        await asyncio.Event().wait()

    async def _send(self, message: Any) -> None:
        self.sends.append(message["type"])
        if self.broken_from is not None and len(self.sends) > self.broken_from:
            if self.broken_from < 0:
                await asyncio.Event().wait()
            raise OSError("the connection is gone")

    async def end(self, expected: type[BaseException] | None = None) -> Settled:
        """Waits for the request and for what it leaves behind; how often and with what the slot was given back."""
        if expected is None:
            await self.task
        else:
            with pytest.raises(expected):
                await self.task
        for _ in range(5):
            await asyncio.sleep(0)
        return self.settled


async def test_an_answer_that_was_sent_is_delivered() -> None:
    """The ordinary case: once, with the outcome."""
    request = Request()
    request.goes_on.set()
    ((served, error),) = await request.end()
    assert served is not None and error is None
    assert served.answers[0].outcome is CallOutcome.DELIVERED


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_cannot_be_sent_gives_its_slot_back(is_stream: bool) -> None:
    """The call counts as one whose client is gone; `/end` need not wait for it."""
    request = Request(is_stream=is_stream)
    request.goes_on.set()
    request.broken_from = 1
    ((served, error),) = await request.end(OSError)
    assert served is not None and error is None
    assert served.answers[0].outcome is CallOutcome.CLIENT_DISCONNECTED


async def test_an_error_that_cannot_be_sent_gives_its_slot_back() -> None:
    """Once, with the call's error."""
    failed = RequestError("no")
    request = Request(error=failed)
    request.goes_on.set()
    request.broken_from = 0
    assert await request.end(OSError) == [(None, failed)]


async def test_a_client_lost_between_comments_does_not_stop_the_call() -> None:
    """Its slot is given back when the call ends, not before: its record may still come."""
    request = Request(is_stream=True)
    request.broken_from = 1
    assert await request.end(OSError) == []
    request.goes_on.set()
    ((served, error),) = await request.end(OSError)
    assert served is not None and error is None
    assert served.answers[0].outcome is CallOutcome.CLIENT_DISCONNECTED


async def test_a_cancelled_request_gives_its_slot_back() -> None:
    """In the middle of the call, which is cancelled with it."""
    request = Request()
    await asyncio.sleep(0.005)
    request.task.cancel()
    ((served, error),) = await request.end(asyncio.CancelledError)
    assert served is None and isinstance(error, asyncio.CancelledError)


async def test_a_request_cancelled_while_it_sends_gives_its_slot_back() -> None:
    """The call had ended; nobody knows whether the client has its answer."""
    request = Request()
    request.goes_on.set()
    request.broken_from = -1
    while not request.sends:
        await asyncio.sleep(0)
    request.task.cancel()
    ((served, error),) = await request.end(asyncio.CancelledError)
    assert served is not None and error is None
    assert served.answers[0].outcome is CallOutcome.CLIENT_DISCONNECTED


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
