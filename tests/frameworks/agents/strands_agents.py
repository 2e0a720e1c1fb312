"""Strands: a planner whose tool runs the expert; it streams by default."""

import os

import harness

from strands import Agent, tool
from strands.models.openai import OpenAIModel


def model():
    """One that asks the gateway."""
    given = {"base_url": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    return OpenAIModel(client_args=given, model_id="policy")


def solve(prompt):
    """One run."""
    expert = Agent(model(), tools=[tool(harness.convert)], system_prompt=harness.EXPERT, name="expert")

    @tool
    def ask_expert(request: str) -> str:
        """Asks the expert for money."""
        harness.executed("ask_expert", request=request)
        return str(expert(request))

    tools = [tool(harness.get_weather), tool(harness.get_time), ask_expert]
    return Agent(model(), tools=tools, system_prompt=harness.PLANNER, name="planner")(prompt)


def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(solve(prompt))


main()
