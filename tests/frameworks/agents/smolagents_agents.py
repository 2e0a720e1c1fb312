"""smolagents: a planner that manages an expert."""

import harness

from smolagents import OpenAIServerModel, ToolCallingAgent, tool
import os


def main():
    """Each conversation."""
    harness.start()
    model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    expert = ToolCallingAgent(
        [tool(harness.convert)], model, name="expert", description="Knows money.", instructions=harness.EXPERT
    )
    tools = [tool(harness.get_weather), tool(harness.get_time)]
    planner = ToolCallingAgent(
        tools,
        model,
        name="planner",
        managed_agents=[expert],
        instructions=harness.PLANNER,
        stream_outputs=harness.STREAMS,
    )
    for prompt in harness.PROMPTS:
        print(planner.run(prompt))


main()
