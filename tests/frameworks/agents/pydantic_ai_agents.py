"""pydantic-ai: a planner whose tool runs the expert."""

import harness

from opentelemetry import trace
from pydantic_ai import Agent, InstrumentationSettings, ModelRetry
from pydantic_ai.models.openai import OpenAIChatModel


def get_time(city: str) -> str:
    """The local time in a city."""
    try:
        return harness.get_time(city)
    except ValueError as error:
        raise ModelRetry(str(error)) from error


def solve(planner, prompt):
    """One run."""
    if not harness.STREAMS:
        return planner.run_sync(prompt).output
    return planner.run_stream_sync(prompt).get_output()


def main():
    """Each conversation."""
    if harness.INSTRUMENTATION == "logfire":
        import logfire

        logfire.configure(send_to_logfire=False, console=False)
        logfire.instrument_pydantic_ai()
        provider = harness.start(trace.get_tracer_provider())
    else:
        provider = harness.start()
    if harness.INSTRUMENTATION.startswith("builtin"):
        version = harness.INSTRUMENTATION.partition("v")[2]
        Agent.instrument_all(InstrumentationSettings(version=int(version)) if version else True)
    model = OpenAIChatModel("policy")
    expert = Agent(model, name="expert", instructions=harness.EXPERT, tools=[harness.convert])

    async def ask_expert(request: str) -> str:
        """Asks the expert for money."""
        harness.executed("ask_expert", request=request)
        return (await expert.run(request)).output

    tools = [harness.get_weather, get_time, ask_expert]
    planner = Agent(model, name="planner", instructions=harness.PLANNER, tools=tools)
    for prompt in harness.PROMPTS:
        print(solve(planner, prompt))
    provider.shutdown()


main()
