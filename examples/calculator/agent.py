"""A calculator agent as anyone would write it: the `openai` package, one tool, spans by OpenTelemetry.

It knows nothing of training. Where its model lives and where its spans go is told by OPENAI_BASE_URL and
OTEL_EXPORTER_OTLP_ENDPOINT; its model calls are traced by the published openai and httpx instrumentations.
"""

from __future__ import annotations

import json
from typing import Any

from chain import calculate
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletionMessageFunctionToolCall
from opentelemetry import trace

MAX_TURNS = 3
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": "calc",
            "description": "Evaluate one operation on two whole numbers, such as 12+34.",
            "parameters": {
                "type": "object",
                "properties": {"expr": {"type": "string"}},
                "required": ["expr"],
            },
        },
    }
]

client = AsyncOpenAI()
tracer = trace.get_tracer("calculator-agent")


async def solve(task: dict[str, Any]) -> str | None:
    """Answers `{id, input}`; None when the turns ran out."""
    messages: list[Any] = [{"role": "user", "content": task["input"]}]
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "calculator"}
    with tracer.start_as_current_span("invoke_agent calculator", attributes=attributes):
        for _ in range(MAX_TURNS):
            completion = await client.chat.completions.create(
                model="policy", messages=messages, tools=TOOLS, max_tokens=48
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            for call in message.tool_calls:
                if isinstance(call, ChatCompletionMessageFunctionToolCall):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": run_tool(call)})
    return None


def run_tool(call: ChatCompletionMessageFunctionToolCall) -> str:
    """What the model reads back. An exception marks the span as failed, the text tells the model."""
    try:
        with tracer.start_as_current_span(
            f"execute_tool {call.function.name}",
            attributes={
                "gen_ai.operation.name": "execute_tool",
                "gen_ai.tool.name": call.function.name,
                "gen_ai.tool.call.id": call.id,
            },
        ) as span:
            result = calculate(str(json.loads(call.function.arguments)["expr"]))
            span.set_attribute("gen_ai.tool.call.result", result)
            return result
    except (ValueError, KeyError, TypeError):
        return "error: syntax"
