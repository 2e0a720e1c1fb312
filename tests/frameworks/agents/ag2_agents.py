"""AG2: a planner whose tool runs the expert."""

import asyncio

import harness

from ag2 import Agent, tool
from ag2.config import OpenAIConfig
from ag2.middleware import TelemetryMiddleware


def agent(name, prompt, tools):
    """One that asks the gateway."""
    config = OpenAIConfig(model="policy", streaming=harness.STREAMS)
    return Agent(name, prompt=prompt, config=config, tools=tools, middleware=[TelemetryMiddleware(agent_name=name)])


async def solve(prompt):
    """One run."""
    expert = agent("expert", harness.EXPERT, [tool(harness.convert)])

    @tool
    async def ask_expert(request: str) -> str:
        """Asks the expert for money."""
        harness.executed("ask_expert", request=request)
        return (await expert.ask(request)).body

    planner = agent("planner", harness.PLANNER, [tool(harness.get_weather), tool(harness.get_time), ask_expert])
    return (await planner.ask(prompt)).body


async def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(await solve(prompt))


asyncio.run(main())
