"""A chat on the terminal: a question, what the agent does with it by one version or by two, the answers.

In: questions, an agent and who answers for its model. Out: lines as things happen, of two versions one below the other;
or JSON lines. Invariants: a turn is one line, in which no model can write a control character; an agent that fails ends
no chat. Failure: ConfigurationError; else `ask` says
whether all answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence

import msgspec

from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.text import one_line

from .agent import ChatAgent
from .relay import Relay, Turn


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """Who is asked."""

    name: str
    """For people."""
    version: int | None
    """None: the one that serves now."""
    choose: Callable[[], None]
    """Called before each question."""


def turn_line(turn: Turn) -> str:
    """One turn."""
    text = one_line(turn.text)
    if turn.kind == "tool_call":
        return f"  {one_line(turn.name)}({text})"
    return f"    = {text}" if turn.kind == "tool_result" else f"  {text}"


def end_line(answer: str | None, error: str) -> str:
    """The last line of what became of a question."""
    if error:
        return f"no answer: {one_line(error)}"
    return "no answer: the agent gave up" if answer is None else f"answer: {one_line(answer)}"


class Talk:
    """Asks each side, and shows what it says."""

    def __init__(
        self, agent: ChatAgent, relay: Relay, sides: Sequence[Side], say: Callable[[str], None], *, is_json: bool
    ) -> None:
        """`say` prints a line."""
        self._agent, self._relay, self._sides, self._say, self._is_json = agent, relay, sides, say, is_json
        self._side = sides[0]
        self._held: Turn | None = None
        """The last text, which may be the answer, and that is told once."""

    def show_turn(self, turn: Turn) -> None:
        """Of the relay: one that comes."""
        if self._is_json:
            fields = {"kind": turn.kind, "version": self._side.version, "text": turn.text}
            self._say(json.dumps(fields | ({"name": turn.name} if turn.name else {})))
            return
        self._say_held()
        if turn.kind == "text":
            self._held = turn
        else:
            self._say(turn_line(turn))

    def _say_held(self, but: str | None = None) -> None:
        if self._held is not None and self._held.text != but:
            self._say(turn_line(self._held))
        self._held = None

    def ask(self, question: str) -> bool:
        """Whether every side answered. Blocks for the agent's time, once a side."""
        has_answered = [self._ask(side, question) for side in self._sides]
        return all(has_answered)

    def _ask(self, side: Side, question: str) -> bool:
        self._side, self._held = side, None
        answer, failed, began_s = None, "", time.monotonic()
        if len(self._sides) > 1 and not self._is_json:
            self._say(f"{side.name}:")
        try:
            side.choose()
            self._relay.new_conversation()
            found = self._agent.ask(question)
            answer = found if found is None or isinstance(found, str) else json.dumps(found)
        except (UnavailableError, RecordError) as error:
            failed = str(error)
        if self._is_json:
            fields = {"kind": "answer", "version": side.version, "question": question}
            seconds = round(time.monotonic() - began_s, 3)
            self._say(json.dumps(fields | {"answer": answer, "error": failed, "seconds": seconds}))
        else:
            self._say_held(but=answer and answer.strip())
            self._say(end_line(answer, failed))
        return answer is not None
