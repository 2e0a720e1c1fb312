"""Conversations of agents whose models write by published chat templates; and the table of docs/templates.md: in how
many segments they lie under each template of a folder.

    python -m tests.producers.llm_gateway.families FOLDER [FOLDER ..]
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tests.producers.llm_gateway.real_templates import NOW, RealTemplate, load
from tracegrad.producers.llm_gateway.api.openai_chat import OPENAI_CHAT
from tracegrad.producers.llm_gateway.render.answer_end import EndOfMessage
from tracegrad.producers.llm_gateway.render.splice import (
    EarlierCall,
    Prompt,
    SpliceHistory,
    build_prompt,
    conversation_digest,
    splice_context,
)
from tracegrad.schemas.errors import EngineRefusal
from tracegrad.schemas.ids import CallId

TOOLS = [{"type": "function", "function": {"name": "calc", "description": "adds", "parameters": {"type": "object"}}}]
ENDS = {
    "qwen3": ("<|im_end|>", "<|im_end|>"),
    "qwen3_5_think": ("<|im_end|>", "<|im_end|>"),
    "phi3_5": ("<|end|>", "<|end|>"),
    "glm4moe": ("<|user|>", "<|observation|>"),
    "gptoss": ("<|return|>", "<|call|>"),
}
"""Template -> what its model samples as the end of an answer, and of one that calls a tool."""


class Turn(NamedTuple):
    """What the agent says, and the answer to it."""

    says: str
    answer: str
    calls_tool: bool = False
    thought: str = ""
    tells_thought: bool = False
    """The agent repeats the thought in later requests."""
    ends: bool = True
    """The end was sampled."""


class Talk:
    """A conversation of an agent, whose answers are what a model might sample."""

    def __init__(self, name: str, *, ends: tuple[str, str] | None = None, template: Any = None, **fields: Any) -> None:
        self.template: Any = template or load(name)
        self._ends = ends or ENDS[name]
        self._fields = fields
        self.history, self.known = SpliceHistory(), EndOfMessage()
        self.messages: list[dict[str, Any]] = []
        self.prompts: list[Prompt] = []
        self.sampled: list[int] = []

    async def ask(self, turn: Turn) -> tuple[Prompt, list[int]]:
        """The prompt for a turn, and the same conversation as the template renders it."""
        calls = self.messages[-1].get("tool_calls") if self.messages else None
        if calls:
            self.messages.append({"role": "tool", "tool_call_id": calls[0]["id"], "content": turn.says})
        else:
            self.messages.append({"role": "user", "content": turn.says})
        request = OPENAI_CHAT.read({"messages": self.messages, "tools": TOOLS, **self._fields})
        prompt, _ = await build_prompt(self.template, self.known, self.history, request, NOW)
        self.prompts.append(prompt)
        return prompt, (await self.template.ids(request, NOW)).ids

    def answer(self, turn: Turn) -> None:
        """Remembers what was sampled, and says it as the agent repeats it."""
        number = len(self.prompts)
        request = OPENAI_CHAT.read({"messages": self.messages, "tools": TOOLS, **self._fields})
        message: dict[str, Any] = {"role": "assistant", "content": turn.answer}
        if turn.calls_tool:
            function = {"name": "calc", "arguments": '{"expr": "1+2"}'}
            message["tool_calls"] = [{"id": f"call{number:05}", "type": "function", "function": function}]
        if turn.tells_thought:
            message["reasoning_content"] = turn.thought
        text = f"<think>\n{turn.thought}\n</think>\n\n{turn.answer}" if turn.thought else turn.answer
        self.sampled = self.template.encode(text) or [0]
        if turn.ends:
            self.sampled.append(self.template.special(self._ends[turn.calls_tool]))
            self.known.saw(self.sampled[-1])
        read = OPENAI_CHAT.read({"messages": [message]}).messages[0]
        call = EarlierCall(
            call_id=CallId(f"c{number}"),
            prompt_ids=self.prompts[-1].ids,
            sampled_ids=np.asarray(self.sampled, np.int32),
            tool_call_ids=tuple(call.id for call in read.tool_calls),
            is_cut=False,
        )
        self.history.remember(conversation_digest(splice_context(request), request.messages), read, call)
        self.messages.append(message)

    async def play(self, turns: list[Turn]) -> list[str]:
        """All turns; how each prompt after the first one came about."""
        for turn in turns:
            await self.ask(turn)
            self.answer(turn)
        return [prompt.outcome.reason or prompt.outcome.kind for prompt in self.prompts[1:]]


SAMPLED = ENDS | {"gemma4": ("<turn|>", "<|tool_response>"), "diffusion_gemma": ("<turn|>", "<|tool_response>")}
"""Models that end an answer that calls a tool otherwise than one that does not."""
CALLS = Turn("1+2?", "", calls_tool=True)
SCENES = {
    "chat": [Turn("hi", "hello"), Turn("and?", "yes"), Turn("so?", "3")],
    "tools": [CALLS, CALLS, CALLS, Turn("3", "3")],
    "thoughts kept back": [turn._replace(thought="I add.") for turn in (CALLS, CALLS, CALLS, Turn("3", "3"))],
    "thoughts sent back": [
        turn._replace(thought="I add.", tells_thought=True) for turn in (CALLS, CALLS, CALLS, Turn("3", "3"))
    ],
    "then a user again": [
        *(turn._replace(thought="I add.", tells_thought=True) for turn in (CALLS, CALLS, Turn("3", "3"))),
        Turn("thanks", "bye"),
    ],
}


async def segments(source: str, name: str, turns: list[Turn]) -> str:
    """In how many the turns lie, or what the template says."""
    template = RealTemplate(source)
    family = next((ends for begin, ends in SAMPLED.items() if name.startswith(begin)), None)
    try:
        if family is None:
            renderer: Any = template
            written = await EndOfMessage().find(renderer, NOW)
            family = (template.decode(written[:1]),) * 2
        reasons = await Talk(name, ends=family, template=template).play(turns)
    except (EngineRefusal, AssertionError):
        return "refused"
    return str(1 + sum(reason != "extended" for reason in reasons))


def main(folders: list[str]) -> None:
    """Prints the table; templates with equal rows, whatever their name, are one."""
    print(f"| template | {' | '.join(SCENES)} |\n|---|{'---|' * len(SCENES)}")
    rows: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(path for folder in folders for path in Path(folder).glob("*.jinja")):
        source = path.read_text()
        cells = (asyncio.run(segments(source, path.stem, turns)) for turns in SCENES.values())
        rows.setdefault(tuple(cells), []).append(path.stem)
    for cells_, names in sorted(rows.items(), key=lambda row: row[1]):
        print(f"| {', '.join(names)} | {' | '.join(cells_)} |")


if __name__ == "__main__":
    main(sys.argv[1:])
