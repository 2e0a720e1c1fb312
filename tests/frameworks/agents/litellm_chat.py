"""LiteLLM as a library: a loop of one's own, without any framework."""

import json
import os
import time

import harness

import litellm

TOOLS = {tool.__name__: tool for tool in (harness.get_weather, harness.get_time, harness.convert)}


def solve(prompt):
    """Until the model asks for no more tools."""
    tools = [{"type": "function", "function": harness.schema(tool)} for tool in TOOLS.values()]
    messages = [{"role": "system", "content": harness.PLANNER}, {"role": "user", "content": prompt}]
    while True:
        given = {"api_base": os.environ["OPENAI_BASE_URL"], "api_key": os.environ["OPENAI_API_KEY"]}
        answer = litellm.completion(model="openai/policy", messages=messages, tools=tools, **given)
        message = answer.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            return message.content
        for call in message.tool_calls:
            try:
                result = TOOLS[call.function.name](**json.loads(call.function.arguments))
            except ValueError as error:
                result = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def main():
    """Each conversation."""
    harness.start()
    if harness.INSTRUMENTATION == "builtin":
        litellm.callbacks = ["otel"]
    for prompt in harness.PROMPTS:
        print(solve(prompt))
    time.sleep(1)  # its callbacks run in threads of its own


main()
