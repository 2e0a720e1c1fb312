"""OpenAI Agents by `argv[1]`: chat, responses, stream (of responses)."""

import asyncio
import sys

import agents
from openai import AsyncOpenAI
from task import PROMPT, SYSTEM, add, multiply


async def main(way):
    """One run."""
    agents.set_tracing_disabled(True)
    api = agents.OpenAIChatCompletionsModel if way == "chat" else agents.OpenAIResponsesModel
    model = api(model="policy", openai_client=AsyncOpenAI())
    tools = [agents.function_tool(add), agents.function_tool(multiply)]
    agent = agents.Agent(name="planner", instructions=SYSTEM, model=model, tools=tools)
    if way != "stream":
        return (await agents.Runner.run(agent, PROMPT)).final_output
    result = agents.Runner.run_streamed(agent, PROMPT)
    async for _ in result.stream_events():
        pass
    return result.final_output


print(asyncio.run(main(sys.argv[1])))
