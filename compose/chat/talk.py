"""A chat on the terminal: a question, what the agent does with it by one version or by two, the answers.

In: questions, an agent and who answers for its model. Out: lines as things happen; of two versions once both have
answered, side by side where the terminal is wide enough; or JSON lines. Invariants: a turn is one line, in which no
model can write a control character; an agent that fails ends no chat. Failure: ConfigurationError; else `ask` says
whether all answered.
"""

from __future__ import annotations

import json
import textwrap
import time
from collections.abc import Callable, Sequence
from itertools import zip_longest

import msgspec

from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.text import one_line

from .agent import ChatAgent
from .relay import Relay, Turn

MIN_COLUMN = 28
_GAP = "   "


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked."""

    name: str
    """For people."""
    version: int | None
    """None: the one that serves now."""
    choose: Callable[[], None]
    """Called before each question."""


class Reply(msgspec.Struct, kw_only=True):
    """What became of a question."""

    turns: list[Turn] = []
    answer: str | None = None
    error: str = ""
    seconds: float = 0.0


def turn_line(turn: Turn) -> str:
    """One turn."""
    text = one_line(turn.text)
    if turn.kind == "tool_call":
        return f"  {one_line(turn.name)}({text})"
    return f"    = {text}" if turn.kind == "tool_result" else f"  {text}"


def end_line(reply: Reply) -> str:
    """The last line of what became of it."""
    if reply.error:
        return f"no answer: {one_line(reply.error)}"
    return "no answer: the agent gave up" if reply.answer is None else f"answer: {one_line(reply.answer)}"


def reply_lines(reply: Reply) -> list[str]:
    """All of it; the text that is the answer stands there once."""
    turns = reply.turns
    if turns and turns[-1].kind == "text" and reply.answer is not None and turns[-1].text == reply.answer.strip():
        turns = turns[:-1]
    return [*map(turn_line, turns), end_line(reply)]


def side_by_side(names: Sequence[str], columns: Sequence[Sequence[str]], width: int) -> list[str]:
    """Two or more columns of equal width, each with its name and a rule on top; one below the other where they would be
    too narrow to be read."""
    each = (width - len(_GAP) * (len(columns) - 1)) // len(columns)
    if each < MIN_COLUMN:
        return [line for name, column in zip(names, columns, strict=True) for line in (f"{name}:", *column)]
    wrapped = [
        [piece for line in column for piece in textwrap.wrap(line, each, subsequent_indent="    ") or [""]]
        for column in ([name, "-" * min(each, len(name)), *lines] for name, lines in zip(names, columns, strict=True))
    ]
    rows = zip_longest(*wrapped, fillvalue="")
    return [_GAP.join(f"{cell:{each}}" for cell in row).rstrip() for row in rows]


class Talk:
    """Asks each side, and shows what it says."""

    def __init__(
        self, agent: ChatAgent, relay: Relay, sides: Sequence[Side], say: Callable[[str], None], *, width: int | None
    ) -> None:
        """`say` prints a line; `width`: of the terminal; None: JSON lines."""
        self._agent, self._relay, self._sides, self._say, self._width = agent, relay, sides, say, width
        self._side, self._reply = sides[0], Reply()
        self._held: Turn | None = None

    def show_turn(self, turn: Turn) -> None:
        """Of the relay: one that comes."""
        self._reply.turns.append(turn)
        if self._width is None:
            fields = {"kind": turn.kind, "version": self._side.version, "text": turn.text}
            self._say(json.dumps(fields | ({"name": turn.name} if turn.name else {})))
        elif len(self._sides) == 1:
            # The last text may be the answer, which is told once.
            if self._held is not None:
                self._say(turn_line(self._held))
            self._held = turn if turn.kind == "text" else None
            if self._held is None:
                self._say(turn_line(turn))

    def ask(self, question: str) -> bool:
        """Whether every side answered. Blocks for the agent's time, once a side."""
        replies = []
        for side in self._sides:
            replies.append(self._ask(side, question))
            if self._width is None:
                fields = {"kind": "answer", "version": side.version, "question": question}
                reply = self._reply
                told = {"answer": reply.answer, "error": reply.error, "seconds": round(reply.seconds, 3)}
                self._say(json.dumps(fields | told))
        if self._width is not None:
            columns = [reply_lines(reply) for reply in replies]
            names = [side.name for side in self._sides]
            lines = side_by_side(names, columns, self._width) if len(columns) > 1 else self._rest(columns[0])
            for line in lines:
                self._say(line)
        return all(said.answer is not None for said in replies)

    def _rest(self, lines: Sequence[str]) -> list[str]:
        """What was not said as it came: the text that is no answer, and the end."""
        return [*lines[-2:]] if self._held is not None and len(lines) > len(self._reply.turns) else [lines[-1]]

    def _ask(self, side: Side, question: str) -> Reply:
        self._side, self._reply, self._held = side, Reply(turns=[]), None
        began_s = time.monotonic()
        try:
            side.choose()
            self._relay.new_conversation()
            answer = self._agent.ask(question)
            self._reply.answer = answer if answer is None or isinstance(answer, str) else json.dumps(answer)
        except (UnavailableError, RecordError) as error:
            self._reply.error = str(error)
        self._reply.seconds = time.monotonic() - began_s
        return self._reply
