"""AutoGen: a swarm of two assistants, the planner hands over to the expert."""

import asyncio

import harness

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.conditions import TextMessageTermination
from autogen_agentchat.teams import Swarm
from autogen_ext.models.openai import OpenAIChatCompletionClient

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "family": "unknown",
    "structured_output": False,
}


async def solve(prompt):
    """One team."""
    client = OpenAIChatCompletionClient(model="policy", model_info=INFO)
    planner = AssistantAgent(
        "planner",
        client,
        tools=[harness.get_weather, harness.get_time],
        handoffs=["expert"],
        system_message=harness.PLANNER,
        max_tool_iterations=3,
        model_client_stream=harness.STREAMS,
    )
    expert = AssistantAgent(
        "expert", client, tools=[harness.convert], system_message=harness.EXPERT, max_tool_iterations=3
    )
    team = Swarm([planner, expert], termination_condition=TextMessageTermination("expert"))
    result = await team.run(task=prompt)
    await client.close()
    return result.messages[-1]


async def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(await solve(prompt))


asyncio.run(main())
