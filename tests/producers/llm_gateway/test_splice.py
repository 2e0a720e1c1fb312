"""The splice as a pure function: properties over random conversations of a toy template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fake_engine.scripted import ScriptedEngine
from tests.fake_engine.tokenizer import EOT, ToyTokenizer
from tracegrad.producers.llm_gateway.api.chat_request import Message
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.render.answer_end import (
    AnswerEnding,
    PromptRest,
    end_of_message,
    rest_after,
    rest_after_changed,
)
from tracegrad.producers.llm_gateway.render.splice import (
    EarlierCall,
    Match,
    SpliceHistory,
    conversation_digest,
    splice,
    whole,
)
from tracegrad.schemas.ids import CallId
from tracegrad.schemas.records.calls import ToolCall

TOKENIZER = ToyTokenizer()
(NEWLINE,) = TOKENIZER.encode("\n")
ENGINE = ScriptedEngine()
TEXT = st.text(alphabet="ab 1234567890", max_size=12)


def rendered(messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> list[int]:
    return ENGINE.render(messages, None, generation_prompt=generation_prompt)


def read(messages: Sequence[Any]) -> tuple[Message, ...]:
    """As they would come over OpenAI's API."""
    return OPENAI_CHAT.read({"messages": messages}).messages if messages else ()


def remember(history: SpliceHistory, context: Any, messages: Sequence[Any], answer: Any, call: EarlierCall) -> None:
    history.remember(conversation_digest(context, read(messages)), read([answer])[0], call)


def match(history: SpliceHistory, context: Any, messages: Sequence[Any]) -> Match:
    return history.match(context, read(messages))


def prompt_of(history: SpliceHistory, messages: list[dict[str, Any]]) -> Any:
    found = match(history, {}, messages)
    if found.call is None:
        return whole(rendered(messages), found.outcome)
    up_to, full = rendered(messages[: found.position + 1], generation_prompt=False), rendered(messages)
    sampled = found.call.sampled_ids[-1:].tolist()
    rest = rest_after(up_to, full, AnswerEnding((EOT, NEWLINE), sampled[0] if sampled else None, [EOT]))
    return splice(found, full, rest or PromptRest(reason="history_dropped"))


@given(st.lists(st.tuples(TEXT, TEXT, st.booleans()), min_size=1, max_size=5))
def test_every_prompt_starts_with_all_that_was_sampled(turns: list[tuple[str, str, bool]]) -> None:
    """And says, decoded, exactly what the template says; each token is context or sampled, never both."""
    history, messages, before = SpliceHistory(), [], None
    for i, (said, answer, ends) in enumerate(turns):
        messages.append({"role": "user", "content": said})
        prompt = prompt_of(history, messages)
        assert TOKENIZER.decode(prompt.ids.tolist()) == TOKENIZER.decode(rendered(messages))
        assert prompt.outcome.kind == ("first" if i == 0 else "extended")
        if before is not None:
            assert prompt.ids[: len(before)].tolist() == before
            assert prompt.shared_tokens == len(before)
        sampled = TOKENIZER.encode(answer, merge=False) + ([EOT] if ends else [])
        message = {"role": "assistant", "content": answer}
        remember(history, {}, messages, message, _call(f"c{i}", prompt=prompt.ids, sampled=sampled))
        messages.append(message)
        before = [*prompt.ids.tolist(), *sampled]


@given(TEXT, TEXT, TEXT, st.integers(0, 1), TEXT)
def test_a_changed_message_never_inherits_sampled_ids(said: str, answer: str, more: str, at: int, other: str) -> None:
    """Whatever was changed, the prompt is then the template's own, with a reason."""
    history = SpliceHistory()
    messages: list[dict[str, Any]] = [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
    call = _call("c", prompt=rendered(messages[:1]), sampled=[*TOKENIZER.encode(answer, merge=False), EOT])
    remember(history, {}, messages[:1], messages[1], call)
    asked = [dict(message) for message in messages] + [{"role": "user", "content": more}]
    asked[at]["content"] = other
    prompt = prompt_of(history, asked)
    if other == messages[at]["content"]:
        assert prompt.outcome.kind == "extended"
    else:
        assert prompt.ids.tolist() == rendered(asked)
        assert prompt.outcome.kind == "new_segment" and prompt.outcome.reason


def _call(name: str, *tool_call_ids: str, prompt: Any = (1,), sampled: Any = (1,)) -> EarlierCall:
    ids: dict[str, Any] = {"prompt_ids": np.asarray(prompt, np.int32), "sampled_ids": np.asarray(sampled, np.int32)}
    return EarlierCall(call_id=CallId(name), **ids, tool_call_ids=tool_call_ids, is_cut=False)


def _asks(call_id: str, arguments: str) -> dict[str, Any]:
    function = {"name": "calc", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": call_id, "function": function}]}


def test_equal_answers_are_told_apart_by_their_minted_ids() -> None:
    """Two samples of one prompt that say the same have different ids; each finds its own tokens."""
    history, ask = SpliceHistory(), [{"role": "user", "content": "q"}]
    remember(history, {}, ask, _asks("call_1", '{"a":1}'), _call("one", "call_1"))
    remember(history, {}, ask, _asks("call_2", '{"a":1}'), _call("two", "call_2"))
    for call_id, expected in (("call_1", "one"), ("call_2", "two"), ("renamed", "two")):
        found = match(history, {}, [*ask, _asks(call_id, '{"a":1}')]).call
        assert found is not None and found.call_id == expected


def test_rewritten_json_arguments_are_no_change_but_other_values_are() -> None:
    """Frameworks parse arguments and write them anew."""
    history, ask = SpliceHistory(), [{"role": "user", "content": [{"type": "text", "text": "q"}]}]
    remember(history, {}, ask, _asks("call_1", '{"a": 1, "b": [2]}'), _call("one", "call_1"))
    plain = [{"role": "user", "content": "q"}]
    same = {**_asks("call_1", '{"b":[2],"a":1}'), "content": "", "refusal": None}
    assert match(history, {}, [*plain, same]).outcome.kind == "extended"
    changed = match(history, {}, [*plain, _asks("call_1", '{"a": 2}')])
    assert (changed.call, changed.outcome.reason) == (None, "answer_changed")
    assert match(history, {"tools": []}, [*plain, same]).outcome.reason == "history_changed"


def test_a_special_token_that_comes_back_broken_is_no_change() -> None:
    """pydantic-ai puts an invisible character into each; in arguments as it is, or as JSON escapes it."""
    history, ask = SpliceHistory(), [{"role": "user", "content": "q"}]
    answer = {**_asks("call_1", '{"a": "[INST]"}'), "content": "so <|im_start|>"}
    remember(history, {}, ask, answer, _call("one", "call_1"))
    for arguments in ('{"a": "[\u200dINST]"}', '{"a":"[\\u200dINST]"}'):
        broken = {**_asks("call_1", arguments), "content": "so <\u200d|im_start|>"}
        assert match(history, {}, [*ask, broken]).outcome.kind == "extended"
    other = {**answer, "content": "s\u200do <|im_start|>"}
    assert match(history, {}, [*ask, other]).outcome.reason == "answer_changed"


def test_an_earlier_answer_is_still_spliced_when_a_later_one_changed() -> None:
    """The prefix stays exact; the new segment is counted with its reason."""
    history = SpliceHistory()
    ask = [{"role": "user", "content": "q"}]
    one = {"role": "assistant", "content": "1"}
    go = {"role": "user", "content": "go"}
    remember(history, {}, ask, one, _call("one"))
    remember(history, {}, [*ask, one, go], {"role": "assistant", "content": "2"}, _call("two"))
    found = match(history, {}, [*ask, one, go, {"role": "assistant", "content": "edited"}, go])
    assert found.call is not None and found.call.call_id == "one"
    assert (found.outcome.kind, found.outcome.reason) == ("new_segment", "answer_changed")


def test_the_end_of_message_is_read_off_the_template() -> None:
    """From two renderings that differ in one letter; a token that ended answers is preferred."""
    one = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}]
    other = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "b"}]
    ids = [rendered(messages, generation_prompt=False) for messages in (one, other)]
    assert end_of_message(ids[0], ids[1]) == (EOT, NEWLINE)
    assert end_of_message([1, 5, 8, 9], [1, 6, 8, 9], terminals=[9]) == (9,)
    assert end_of_message([1, 5], [1, 6]) == ()


A, B, T, END = 4, 5, 6, 9
"""Letters, a thought, and the end of an answer."""


@pytest.mark.parametrize(
    ("up_to", "in_full", "sampled", "rest"),
    [
        ([1, A, END, 0], [1, A, END, 0, 2], END, [0, 2]),
        ([1, A, END, 0], [1, A, END, 0, 2], A, [END, 0, 2]),
        ([1, A, END, 0], [1, B, END, 0, 2], END, None),
        ([1, A, END], [1, A, END, 0, 2], END, None),
        ([1, A], [1, A, 2], END, None),
        ([1, A, END, B], [1, A, END, B, 2], END, None),
    ],
)
def test_an_answer_that_is_written_alike_as_last_message_and_before_others(
    up_to: list[int], in_full: list[int], sampled: int, rest: list[int] | None
) -> None:
    """Its end is the template's; it is added where it was not sampled."""
    found = rest_after(up_to, in_full, AnswerEnding((END, 0), sampled, [END]))
    assert found == (None if rest is None else PromptRest(rest))


@pytest.mark.parametrize(
    ("up_to", "in_full", "ending", "rest"),
    [
        ([1, T, T, A, END, 0], [1, A, END, 0, 2], AnswerEnding((END, 0), END, [END]), PromptRest([0, 2])),
        ([1, T, T, A, END, 0], [1, A, END, 0, 2], AnswerEnding((END, 0), A, [END]), PromptRest([END, 0, 2])),
        ([1, A, T, B, END, 0], [1, A, B, END, 0, 2], AnswerEnding((END, 0), END, [END]), PromptRest([0, 2])),
        ([1, A, END, 0], [1, B, END, 0, 2], AnswerEnding((END, 0), END, [END]), PromptRest(reason="answer_dropped")),
        ([1, A, END, 0], [1, 2, B, END, 0], AnswerEnding((END, 0), END, [END]), PromptRest(reason="answer_dropped")),
        ([1, A, END, 0], [7, A, END, 0, 2], AnswerEnding((END, 0), END, [END]), PromptRest(reason="history_dropped")),
        ([1, A, 0], [1, A, 0, 2], AnswerEnding((END, 0), END, [END]), PromptRest(reason="no_end_of_message")),
        ([1, A, B], [1, A, B, 2, 3], AnswerEnding((), 2, [2]), PromptRest([3])),
        ([1, A, B], [1, A, B, 2, 3], AnswerEnding((), B, [2]), PromptRest([2, 3])),
        ([1, A, B], [1, A, B, 2, 3], AnswerEnding((), 8, [8]), PromptRest(reason="no_end_of_message")),
        ([1, T, A, B, A, B], [1, A, B, A, B, 2], AnswerEnding((), 2, [2]), PromptRest(reason="answer_dropped")),
    ],
    ids=["thought", "thought, cut", "thought within", "changed", "gone", "history", "no end", "next role",
         "next role, cut", "other role", "two places"],
)  # fmt: skip
def test_an_answer_that_is_written_otherwise_before_others(
    up_to: list[int], in_full: list[int], ending: AnswerEnding, rest: PromptRest
) -> None:
    """One stretch may be gone; its end is found exactly once, or a new segment starts."""
    assert rest_after_changed([1], up_to, in_full, ending) == rest


@pytest.mark.parametrize(
    "arguments",
    ['{"a": "\\ud83d"}', '{"a": 1e999}', "[" * 5000, '{"a": ' + "9" * 5000 + "}"],
    ids=["half a pair", "infinite", "nested", "long number"],
)
def test_odd_arguments_are_matched(arguments: str) -> None:
    """Whatever a model writes there, its call is remembered and found again."""
    message = Message(role="assistant", tool_calls=(ToolCall(id="c0", name="calc", arguments=arguments),))
    asked = Message(role="user", content="a")
    call = _call("c", "c0")
    history = SpliceHistory()
    history.remember(conversation_digest({}, [asked]), message, call)
    assert history.match({}, [asked, message]).call is call
