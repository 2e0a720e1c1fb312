"""LlamaIndex: a workflow of two function agents, the planner hands off to the expert; it streams by default."""

import asyncio
import os

import harness

from llama_index.core.agent.workflow import AgentWorkflow, FunctionAgent
from llama_index.llms.openai_like import OpenAILike


async def main():
    """Each conversation."""
    harness.start()
    given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    llm = OpenAILike(
        model="policy", is_chat_model=True, is_function_calling_model=True, context_window=100_000, **given
    )
    planner = FunctionAgent(
        name="planner",
        description="Plans trips.",
        system_prompt=harness.PLANNER,
        tools=[harness.get_weather, harness.get_time],
        llm=llm,
        can_handoff_to=["expert"],
        streaming=harness.STREAMS,
    )
    expert = FunctionAgent(
        name="expert",
        description="Knows money.",
        system_prompt=harness.EXPERT,
        tools=[harness.convert],
        llm=llm,
        streaming=harness.STREAMS,
    )
    for prompt in harness.PROMPTS:
        print(await AgentWorkflow(agents=[planner, expert], root_agent="planner").run(user_msg=prompt))


asyncio.run(main())
