"""The calculator agent with a head that changes: before each call it writes anew how many calls it has left.

So no prompt extends the one before, and every call is a segment of its own: what `[algorithm] rows` is about. The
demo's policy hardly minds the number. `tracegrad train examples/calculator --set agent.callable=PATH/counting.py:solve`
"""

from __future__ import annotations

from typing import Any

from agent import MAX_TURNS, TOOLS, client, run_tool, tracer
from openai.types.chat import ChatCompletionMessageFunctionToolCall


async def solve(task: dict[str, Any]) -> str | None:
    """Answers `{id, input}`; None when the turns ran out."""
    messages: list[Any] = [{"role": "user", "content": task["input"]}]
    attributes = {"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": "calculator"}
    with tracer.start_as_current_span("invoke_agent calculator", attributes=attributes):
        for left in range(MAX_TURNS, 0, -1):
            completion = await client.chat.completions.create(
                model="policy",
                messages=[{"role": "system", "content": str(left)}, *messages],
                tools=TOOLS,
                max_tokens=48,
            )
            message = completion.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message.model_dump(include={"role", "content", "tool_calls"}, exclude_none=True))
            for call in message.tool_calls:
                if isinstance(call, ChatCompletionMessageFunctionToolCall):
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": run_tool(call)})
    return None
