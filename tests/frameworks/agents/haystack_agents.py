"""Haystack: a planner that has the expert as a component tool, traced by Haystack's own OpenTelemetry tracer."""

import harness

from haystack import tracing
from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function


def agent(prompt, tools):
    """One that asks the gateway."""
    tools = [create_tool_from_function(tool) for tool in tools]
    return Agent(chat_generator=OpenAIChatGenerator(model="policy"), tools=tools, system_prompt=prompt)


def solve(prompt):
    """One run."""
    expert = agent(harness.EXPERT, [harness.convert])

    def ask_expert(request: str) -> str:
        """Asks the expert for money."""
        harness.executed("ask_expert", request=request)
        return expert.run(messages=[ChatMessage.from_user(request)])["messages"][-1].text

    planner = agent(harness.PLANNER, [harness.get_weather, harness.get_time, ask_expert])
    return planner.run(messages=[ChatMessage.from_user(prompt)])["messages"][-1].text


def main():
    """Each conversation."""
    harness.start()
    if harness.INSTRUMENTATION == "builtin":
        from opentelemetry import trace

        from haystack.tracing import OpenTelemetryTracer

        tracing.tracer.is_content_tracing_enabled = True
        tracing.enable_tracing(OpenTelemetryTracer(trace.get_tracer("haystack")))
    for prompt in harness.PROMPTS:
        print(solve(prompt))


main()
