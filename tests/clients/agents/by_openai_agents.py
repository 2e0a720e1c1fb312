"""OpenAI Agents by `argv[1]`: chat, responses, stream (of responses)."""

import asyncio
import json
import sys

import agents
from openai import AsyncOpenAI
from task import PROMPT, SYSTEM, THEN, add, multiply


async def main(way):
    """One conversation."""
    agents.set_tracing_disabled(True)
    api = agents.OpenAIChatCompletionsModel if way == "chat" else agents.OpenAIResponsesModel
    model = api(model="policy", openai_client=AsyncOpenAI())
    tools = [agents.function_tool(add), agents.function_tool(multiply)]
    agent = agents.Agent(name="planner", instructions=SYSTEM, model=model, tools=tools)
    items, texts = [], []
    for content in (PROMPT, *THEN):
        items.append({"role": "user", "content": content})
        if way == "stream":
            result = agents.Runner.run_streamed(agent, items)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, items)
        texts.append(result.final_output)
        items = result.to_input_list()
    return texts


print(json.dumps(asyncio.run(main(sys.argv[1]))))
