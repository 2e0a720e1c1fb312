"""Where in a rendered conversation an answer ends, so that what the template writes behind it can follow sampled ids.

In: the conversation rendered in full, up to the answer, and before it. Out: the ids behind the answer's end, or why
they cannot be told. Templates write an answer otherwise once messages follow: Qwen3 leaves an empty think block out,
others drop thoughts. So what precedes the answer must be equal in all renderings, and the answer itself but for one
stretch that is gone; its end is then found once, or not at all. Ids are never guessed. Failure: the renderer's.

    before     P'
    up to it   P' <assistant> <think> a' <end> \\n
    in full    P' <assistant> a' <end> \\n <user>...     ->  the rest: \\n <user>...

GLM ends an answer by the token of the role that comes next: no template writes it behind the last answer, the model
samples it, and it is there once.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import NamedTuple

from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.reasons import Reason

from ..api.chat_request import ChatRequest, Message
from ..engines.engine import Renderer, Waits
from .normalise import TemplateRefusals

_ASK = Message(role="user", content="x")


class AnswerEnding(NamedTuple):
    """What is known of how answers end."""

    of_template: Sequence[int]
    """What the template writes behind an answer, its end first; empty: nothing."""
    sampled: int | None
    """The last id of the answer."""
    terminals: Sequence[int] = ()
    """Tokens that ended sampled answers."""

    @property
    def was_sampled(self) -> bool:
        """Whether the answer ended by itself."""
        return self.sampled is not None and self.sampled in self.terminals


class PromptRest(NamedTuple):
    """What follows an answer's sampled ids."""

    ids: Sequence[int] = ()
    reason: str = ""
    """Why that cannot be told; empty: it can."""


def rest_after(up_to: Sequence[int], in_full: Sequence[int], ending: AnswerEnding) -> PromptRest | None:
    """The rest where the answer is written in full as it is as last message; None: it is not, or ends otherwise."""
    end, *after = ending.of_template or (None,)
    cut = len(up_to) - len(after)
    if end is None or cut < 1 or up_to[cut - 1] != end or list(up_to[cut:]) != after:
        return None
    if list(in_full[:cut]) != list(up_to[:cut]):
        return None
    return PromptRest(_with_end(end, in_full[cut:], ending))


def rest_after_changed(
    before: Sequence[int], up_to: Sequence[int], in_full: Sequence[int], ending: AnswerEnding
) -> PromptRest:
    """The rest where the answer is written otherwise as last message.

    Args:
        before: what precedes the answer, rendered without a generation prompt.
    """
    start = len(before)
    if not list(before) == list(up_to[:start]) == list(in_full[:start]):
        return PromptRest(reason=Reason.HISTORY_DROPPED)
    answer, text = list(up_to[start:]), list(in_full[start:])
    sampled = ending.sampled if ending.was_sampled else None
    end = next((token for token in (sampled, *ending.of_template[:1]) if token is not None and token in answer), None)
    if end is None and ending.of_template:
        return PromptRest(reason=Reason.NO_END_OF_MESSAGE)
    if end is not None:
        answer = answer[: len(answer) - answer[::-1].index(end)]
    cut = _end_in(text, answer)
    if cut is None:
        return PromptRest(reason=Reason.ANSWER_DROPPED)
    rest = text[cut:]
    if end is not None:
        return PromptRest(_with_end(end, rest, ending))
    if sampled is None:
        return PromptRest(rest)
    return PromptRest(rest[1:]) if rest[:1] == [sampled] else PromptRest(reason=Reason.NO_END_OF_MESSAGE)


def _with_end(end: int, after: Sequence[int], ending: AnswerEnding) -> Sequence[int]:
    return after if ending.sampled == end else [end, *after]


def _end_in(text: Sequence[int], answer: Sequence[int]) -> int | None:
    """Where in a text the answer ends with which it begins, whole or without one stretch of it; None: nowhere, or in
    several places."""
    same = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, answer, strict=False)))
    if same == len(answer):
        return same
    ends = {
        same + len(answer) - at
        for at in range(same, len(answer))
        if text[same : same + 1] == answer[at : at + 1] and text[same : same + len(answer) - at] == answer[at:]
    }
    return ends.pop() if len(ends) == 1 else None


def end_of_message(one: Sequence[int], other: Sequence[int], terminals: Sequence[int] = ()) -> tuple[int, ...]:
    """What a template writes behind an answer, its end first, from the same conversation rendered with two answers
    that differ in their last letter.

    Args:
        terminals: tokens that ended sampled answers; one of them in the common tail is preferred as the end.
    """
    pairs = zip(reversed(one), reversed(other), strict=False)
    tail = [token for token, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)][::-1]
    at = next((i for i, token in enumerate(tail) if token in terminals), 0)
    return tuple(tail[at:])


class EndOfMessage:
    """How a template ends an assistant's message, found once by rendering two answers that differ."""

    def __init__(self) -> None:
        self._found: tuple[int, ...] | None = None
        self.refused = TemplateRefusals()
        """What else rendering has told of the template."""
        self.terminals: list[int] = []
        """Tokens that ended sampled answers, the last few."""

    def saw(self, terminal: int) -> None:
        """Notes a token that ended a sampled answer."""
        if terminal not in self.terminals:
            self.terminals = [*self.terminals[-7:], terminal]

    async def find(self, renderer: Renderer, waits: Waits) -> tuple[int, ...]:
        """What the template writes behind an answer, its end first; empty for one that writes nothing."""
        if self._found is None:
            answers = [Message(role="assistant", content=content) for content in ("a", "b")]
            probes = [ChatRequest(messages=(_ASK, answer)) for answer in answers]
            try:
                one, other = await asyncio.gather(*(renderer.ids(probe, waits, to_generate=False) for probe in probes))
            except EngineRefusal:
                # A template that refuses the probe; what has ended an answer so far is the best knowledge.
                return tuple(self.terminals[-1:])
            self._found = end_of_message(one.ids, other.ids, self.terminals)
        return self._found
