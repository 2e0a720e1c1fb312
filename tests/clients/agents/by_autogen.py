"""AutoGen by chat completions."""

import asyncio
import json

from autogen_agentchat.agents import AssistantAgent
from autogen_core.models import ModelInfo
from autogen_ext.models.openai import OpenAIChatCompletionClient
from task import PROMPT, SYSTEM, THEN, add, multiply

INFO = ModelInfo(vision=False, function_calling=True, json_output=False, family="unknown", structured_output=False)


async def main():
    """One conversation; AutoGen stops after a tool unless it is told to go on."""
    client = OpenAIChatCompletionClient(model="policy", model_info=INFO)
    agent = AssistantAgent("planner", client, tools=[add, multiply], system_message=SYSTEM, max_tool_iterations=5)
    texts = [(await agent.run(task=task)).messages[-1].content for task in (PROMPT, *THEN)]
    await client.close()
    return texts


print(json.dumps(asyncio.run(main())))
