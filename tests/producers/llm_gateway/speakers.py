"""An agent's conversation in each API: what it says, and how it sends back what it was answered.

Each speaker keeps its history as clients of its API do. `habits` are a random stream of ways in which frameworks write
an answer anew: texts split into parts or messages, thoughts dropped, arguments with other spaces and numbers, each call
before its own result, ids of items left out.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any, Protocol

from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig

PATH = f"/rollout/{ROLLOUT}/attempt/{ATTEMPT}/v1"
SCHEMA = {"type": "object", "properties": {"expr": {"type": "string"}}}
SYSTEM = "be brief"
Spoken = tuple[str, list[str]]
"""What the agent takes from an answer: its text, and the ids of its tool calls."""


class Speaker(Protocol):
    """One conversation of the attempt."""

    async def ask(self, text: str) -> Spoken:
        """The user says something."""

    async def tell(self, results: dict[str, str]) -> Spoken:
        """The tools have run."""

    def remind(self, text: str) -> None:
        """The developer says something before the next request."""


def rewritten(arguments: str, habits: random.Random) -> str:
    """Arguments as another serialiser would write them."""
    try:
        value = json.loads(arguments)
    except ValueError:
        return arguments
    return json.dumps(value, indent=habits.choice([None, 2]), sort_keys=habits.random() < 0.5)


def split(text: str, habits: random.Random) -> list[str]:
    """A text in two pieces, or one."""
    at = habits.randint(0, len(text))
    return [text[:at], text[at:]] if habits.random() < 0.5 else [text]


def result_beside_call(call_rows: list[Any], result_rows: list[Any], habits: random.Random) -> list[Any]:
    """All calls before all results, or each before its own."""
    if habits.random() < 0.5:
        return [*call_rows, *result_rows]
    return [row for pair in zip(call_rows, result_rows, strict=True) for row in pair]


async def _post(r: Rig, path: str, body: Any) -> Any:
    status, answer = await r.post(PATH + path, body)
    assert status == 200, answer
    return answer


class Chat:
    """OpenAI's chat completions."""

    def __init__(self, rig: Rig, habits: random.Random) -> None:
        self._rig, self._habits = rig, habits
        self._messages: list[Any] = [{"role": "system", "content": SYSTEM}]

    async def ask(self, text: str) -> Spoken:
        """See Speaker."""
        self._messages.append({"role": "user", "content": text})
        return await self._answer()

    async def tell(self, results: dict[str, str]) -> Spoken:
        """See Speaker."""
        told = [
            {
                "role": "tool",
                "tool_call_id": it,
                "content": self._habits.choice([text, [{"type": "text", "text": text}]]),
            }
            for it, text in results.items()
        ]
        turn = self._messages[-1]
        if len(told) > 1 and self._habits.random() < 0.5:
            first, *others = turn["tool_calls"]
            calls = [{**turn, "tool_calls": [first]}]
            calls += [{"role": "assistant", "content": None, "tool_calls": [call]} for call in others]
            self._messages[-1:] = result_beside_call(calls, told, self._habits)
        else:
            self._messages += told
        return await self._answer()

    def remind(self, text: str) -> None:
        """See Speaker."""
        self._messages.append({"role": self._habits.choice(["developer", "system"]), "content": text})

    async def _answer(self) -> Spoken:
        tools = [{"type": "function", "function": {"name": "calc", "description": "d", "parameters": SCHEMA}}]
        body = {"model": "policy", "messages": self._messages, "tools": tools}
        message = (await _post(self._rig, "/chat/completions", body))["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        text = message["content"] or ""
        for call in calls:
            call["function"]["arguments"] = rewritten(call["function"]["arguments"], self._habits)
        if self._habits.random() < 0.5:
            message = {name: message[name] for name in ("role", "content", "tool_calls") if name in message}
        parts = [{"type": "text", "text": piece} for piece in split(text, self._habits)]
        self._messages.append({**message, "content": self._habits.choice([message["content"], parts])})
        return text, [call["id"] for call in calls]


class Messages:
    """Anthropic's."""

    def __init__(self, rig: Rig, habits: random.Random) -> None:
        self._rig, self._habits = rig, habits
        self._messages: list[Any] = []

    async def ask(self, text: str) -> Spoken:
        """See Speaker."""
        blocks = [{"type": "text", "text": text, "cache_control": {"type": "ephemeral"}}]
        self._messages.append({"role": "user", "content": self._habits.choice([text, blocks])})
        return await self._answer()

    async def tell(self, results: dict[str, str]) -> Spoken:
        """See Speaker."""
        blocks = [{"type": "tool_result", "tool_use_id": it, "content": text} for it, text in results.items()]
        if len(blocks) > 1 and self._habits.random() < 0.5:
            turn = self._messages.pop()["content"]
            calls = [[block] for block in turn if block["type"] == "tool_use"]
            calls[0] = [*(block for block in turn if block["type"] != "tool_use"), *calls[0]]
            said = [{"role": "assistant", "content": call} for call in calls]
            told = [{"role": "user", "content": [block]} for block in blocks]
            self._messages += result_beside_call(said, told, self._habits)
        else:
            self._messages.append({"role": "user", "content": blocks})
        return await self._answer()

    def remind(self, text: str) -> None:
        """See Speaker."""
        self._messages.append(
            {"role": "system", "content": self._habits.choice([text, [{"type": "text", "text": text}]])}
        )

    async def _answer(self) -> Spoken:
        body = {
            "model": "policy",
            "max_tokens": 1000,
            "system": self._habits.choice([SYSTEM, [{"type": "text", "text": SYSTEM}]]),
            "messages": self._messages,
            "tools": [{"name": "calc", "description": "d", "input_schema": SCHEMA}],
        }
        blocks = (await _post(self._rig, "/messages", body))["content"]
        kept: list[Any] = []
        for block in blocks:
            if block["type"] == "text":
                kept += [{"type": "text", "text": piece} for piece in split(block["text"], self._habits)]
            elif block["type"] != "thinking" or self._habits.random() < 0.5:
                kept.append(block)
        self._messages.append({"role": "assistant", "content": kept})
        texts = [block["text"] for block in blocks if block["type"] == "text"]
        return "".join(texts), [block["id"] for block in blocks if block["type"] == "tool_use"]


class Responses:
    """OpenAI's, the whole input sent again."""

    def __init__(self, rig: Rig, habits: random.Random) -> None:
        self._rig, self._habits = rig, habits
        self._input: list[Any] = []

    async def ask(self, text: str) -> Spoken:
        """See Speaker."""
        parts = [{"type": "input_text", "text": text}]
        typed = {"type": "message"} if self._habits.random() < 0.5 else {}
        self._input.append({"role": "user", "content": self._habits.choice([text, parts]), **typed})
        return await self._answer()

    async def tell(self, results: dict[str, str]) -> Spoken:
        """See Speaker."""
        told = [{"type": "function_call_output", "call_id": it, "output": text} for it, text in results.items()]
        kept = self._input[-len(told) :]
        if [item["type"] for item in kept] == ["function_call"] * len(told):
            self._input[-len(told) :] = result_beside_call(kept, told, self._habits)
        else:
            self._input += told
        return await self._answer()

    def remind(self, text: str) -> None:
        """See Speaker."""
        self._input.append({"role": self._habits.choice(["developer", "system"]), "content": text})

    async def _answer(self) -> Spoken:
        output = (await self._post(self._input))["output"]
        self._input += [kept for item in output for kept in self._kept(item)]
        return self._spoken(output)

    async def _post(self, items: Any, **fields: Any) -> Any:
        body = {
            "model": "policy",
            "instructions": SYSTEM,
            "input": items,
            "tools": [{"type": "function", "name": "calc", "description": "d", "parameters": SCHEMA, "strict": False}],
            **fields,
        }
        return await _post(self._rig, "/responses", body)

    def _kept(self, item: Any) -> list[Any]:
        match item["type"]:
            case "reasoning":
                return self._habits.choice([[item], []])
            case "message":
                texts = split(item["content"][0]["text"], self._habits)
                easy = {"role": "assistant", "content": "".join(texts)}
                parts = [{"type": "output_text", "text": text, "annotations": []} for text in texts]
                return [self._habits.choice([easy, {**item, "content": parts}])]
        call = {**item, "arguments": rewritten(item["arguments"], self._habits)}
        return [self._habits.choice([call, {name: value for name, value in call.items() if name != "id"}])]

    def _spoken(self, output: list[Any]) -> Spoken:
        texts = [item["content"][0]["text"] for item in output if item["type"] == "message"]
        return "".join(texts), [item["call_id"] for item in output if item["type"] == "function_call"]


class References(Responses):
    """The same, each item of an answer by its id."""

    def _kept(self, item: Any) -> list[Any]:
        return [{"type": "item_reference", "id": item["id"]}]


class Continued(Responses):
    """The same, only what is new sent, after the response before."""

    _before: str | None = None

    async def _answer(self) -> Spoken:
        items, self._input = self._input, []
        answer = await self._post(items, previous_response_id=self._before)
        self._before = answer["id"]
        return self._spoken(answer["output"])


SPEAKERS: dict[str, Callable[[Rig, random.Random], Speaker]] = {
    "chat": Chat,
    "messages": Messages,
    "responses": Responses,
    "references": References,
    "continued": Continued,
}
