"""Semantic Kernel: a planner that has the expert as a plug-in."""

import asyncio
import logging
import os

os.environ["SEMANTICKERNEL_EXPERIMENTAL_GENAI_ENABLE_OTEL_DIAGNOSTICS"] = "true"

import harness

from semantic_kernel.agents import ChatCompletionAgent
from semantic_kernel.connectors.ai.open_ai import OpenAIChatCompletion
from semantic_kernel.functions import kernel_function


class Trips:
    """The planner's tools."""

    get_weather = staticmethod(kernel_function(harness.get_weather, name="get_weather"))
    get_time = staticmethod(kernel_function(harness.get_time, name="get_time"))


class Money:
    """The expert's tool."""

    convert = staticmethod(kernel_function(harness.convert, name="convert"))


async def main():
    """Each conversation."""
    harness.start()
    if os.environ.get("RECORDED_LOGS") == "1":
        from opentelemetry.sdk._logs import LoggingHandler

        logger = logging.getLogger("semantic_kernel")
        logger.addHandler(LoggingHandler())
        logger.setLevel(logging.INFO)
    service = OpenAIChatCompletion(ai_model_id="policy")
    expert = ChatCompletionAgent(service=service, name="expert", instructions=harness.EXPERT, plugins=[Money()])
    planner = ChatCompletionAgent(
        service=service, name="planner", instructions=harness.PLANNER, plugins=[Trips(), expert]
    )
    for prompt in harness.PROMPTS:
        print(await planner.get_response(prompt))


asyncio.run(main())
