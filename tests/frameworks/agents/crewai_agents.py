"""CrewAI: a crew of two, the planner delegates to the expert."""

import os

os.environ |= {"CREWAI_DISABLE_TELEMETRY": "true", "CREWAI_TRACING_ENABLED": "false", "OTEL_SDK_DISABLED": "false"}

import harness

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool


def solve(prompt):
    """One crew."""
    llm = LLM(model="openai/policy", base_url=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
    given = {"llm": llm, "verbose": False}
    tools = [tool("get_weather")(harness.get_weather), tool("get_time")(harness.get_time)]
    planner = Agent(role="planner", goal="plan", backstory=harness.PLANNER, tools=tools, allow_delegation=True, **given)
    money = [tool("convert")(harness.convert)]
    expert = Agent(role="expert", goal="convert", backstory=harness.EXPERT, tools=money, **given)
    task = Task(description=prompt, expected_output="a plan", agent=planner)
    return Crew(agents=[planner, expert], tasks=[task], verbose=False).kickoff().raw


def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(solve(prompt))


main()
