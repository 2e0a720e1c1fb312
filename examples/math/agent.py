"""A calculator agent in AutoGen AgentChat; nothing of ours and no tracing code: its published instrumentations are
found by the environment (requirements.txt).
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Any

from arithmetic import calculate
from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import TextMessage, ToolCallExecutionEvent
from autogen_core.models import ModelInfo
from autogen_core.tools import FunctionTool, ToolSchema
from autogen_ext.models.openai import OpenAIChatCompletionClient

SYSTEM = "Use calculator for each calculation, then give its result by answer."
INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)
MAX_CALLS = 6
"""AutoGen's own default is 1: one call, and its result is the answer."""


class ShortTool(FunctionTool):
    """A tool told in few tokens: AutoGen's schema has titles and flags, which each prompt would carry."""

    @property
    def schema(self) -> ToolSchema:
        """Name, description, and of each parameter its type."""
        told = super().schema["parameters"]
        types = {name: {"type": value["type"]} for name, value in told["properties"].items()}
        parameters: Any = {"type": "object", "properties": types, "required": list(types)}
        return {"name": self.name, "description": self.description, "parameters": parameters}


def calculator(expression: str) -> str:
    """Raises what `calculate` raises: AutoGen tells the model, and its instrumentation the trace."""
    return calculate(expression)


def answer(number: float) -> str:
    """The run ends by it."""
    return f"{number:.15g}"


client = OpenAIChatCompletionClient(model="policy", model_info=INFO, max_tokens=64, max_retries=0, timeout=600)
tools = [ShortTool(calculator, "Evaluate 48/2 + 12"), ShortTool(answer, "Give the final number")]


async def solve(task: dict[str, Any]) -> str | None:
    """What was given by `answer`, or the text of the last message; None where the calls ran out."""
    agent = AssistantAgent("solver", client, tools=tools, system_message=SYSTEM, max_tool_iterations=MAX_CALLS)
    async with aclosing(agent.run_stream(task=task["input"])) as messages:
        async for message in messages:
            if isinstance(message, ToolCallExecutionEvent):
                for result in message.content:
                    if result.name == "answer" and not result.is_error:
                        return result.content
            if isinstance(message, TextMessage) and message.source == agent.name:
                return message.content
    return None
