"""AgentScope 2: a planner whose tool runs the expert; it streams by default."""

import asyncio
import os

import harness

from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.middleware import TracingMiddleware
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit

ALLOWED = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="")


def agent(name, prompt, tools):
    """One that asks the gateway."""
    credential = OpenAICredential(api_key=os.environ["OPENAI_API_KEY"], base_url=os.environ["OPENAI_BASE_URL"])
    model = OpenAIChatModel(credential=credential, model="policy", stream=harness.STREAMS)
    kit = Toolkit(tools=[FunctionTool(tool, permission=ALLOWED) for tool in tools])
    return Agent(name=name, system_prompt=prompt, model=model, toolkit=kit, middlewares=[TracingMiddleware()])


async def solve(prompt):
    """One run."""
    expert = agent("expert", harness.EXPERT, [harness.convert])

    async def ask_expert(request: str) -> str:
        """Asks the expert for money.

        Args:
            request: what to ask
        """
        harness.executed("ask_expert", request=request)
        return (await expert.reply(UserMsg(name="user", content=request))).get_text_content()

    planner = agent("planner", harness.PLANNER, [harness.get_weather, harness.get_time, ask_expert])
    return (await planner.reply(UserMsg(name="user", content=prompt))).get_text_content()


async def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(await solve(prompt))


asyncio.run(main())
