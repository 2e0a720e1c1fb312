"""Google ADK: a planner that transfers to its sub-agent, by LiteLLM."""

import asyncio
import os

import harness

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types


def get_time(city: str) -> str:
    """The local time in a city."""
    try:
        return harness.get_time(city)
    except ValueError as error:
        return {"status": "error", "error_message": str(error)}


def model():
    """One that asks the gateway."""
    given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
    return LiteLlm(model="openai/policy", **given)


async def main():
    """Each conversation."""
    harness.start()
    expert = LlmAgent(
        name="expert", description="Knows money.", instruction=harness.EXPERT, model=model(), tools=[harness.convert]
    )
    planner = LlmAgent(
        name="planner",
        instruction=harness.PLANNER,
        model=model(),
        tools=[harness.get_weather, get_time],
        sub_agents=[expert],
    )
    runner = InMemoryRunner(agent=planner, app_name="trips")
    for prompt in harness.PROMPTS:
        session = await runner.session_service.create_session(app_name="trips", user_id="somebody")
        message = types.Content(role="user", parts=[types.Part(text=prompt)])
        async for event in runner.run_async(user_id="somebody", session_id=session.id, new_message=message):
            print(event.content)


asyncio.run(main())
