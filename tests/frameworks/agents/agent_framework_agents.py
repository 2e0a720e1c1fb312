"""Microsoft Agent Framework: a planner that has the expert as a tool."""

import asyncio

import harness

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient


async def main():
    """Each conversation."""
    harness.start()
    api = OpenAIChatClient if harness.INSTRUMENTATION.endswith("responses") else OpenAIChatCompletionClient
    client = api(model="policy")
    expert = Agent(client=client, name="expert", instructions=harness.EXPERT, tools=[harness.convert])
    ask = expert.as_tool(name="ask_expert", description="Asks the expert for money.", arg_name="request")
    tools = [harness.get_weather, harness.get_time, ask]
    planner = Agent(client=client, name="planner", instructions=harness.PLANNER, tools=tools)
    for prompt in harness.PROMPTS:
        if harness.STREAMS:
            async for _ in planner.run(prompt, stream=True):
                pass
        else:
            print(await planner.run(prompt))


asyncio.run(main())
