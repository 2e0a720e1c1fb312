"""OpenAI Agents: a planner that hands off to an expert."""

import asyncio

import agents
import harness
from agents import Agent, OpenAIChatCompletionsModel, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI


async def solve(planner, prompt):
    """One run."""
    if harness.STREAMS:
        result = Runner.run_streamed(planner, prompt)
        async for _ in result.stream_events():
            pass
        return result.final_output
    return (await Runner.run(planner, prompt)).final_output


async def main():
    """Each conversation."""
    harness.start()
    api = OpenAIResponsesModel if harness.INSTRUMENTATION.endswith("responses") else OpenAIChatCompletionsModel
    if not harness.INSTRUMENTATION.startswith(("openinference", "traceloop", "otel")):
        agents.set_tracing_disabled(True)
    model = api(model="policy", openai_client=AsyncOpenAI())
    expert = Agent(name="expert", instructions=harness.EXPERT, model=model, tools=[function_tool(harness.convert)])
    tools = [function_tool(harness.get_weather), function_tool(harness.get_time)]
    planner = Agent(name="planner", instructions=harness.PLANNER, model=model, tools=tools, handoffs=[expert])
    for prompt in harness.PROMPTS:
        print(await solve(planner, prompt))


asyncio.run(main())
