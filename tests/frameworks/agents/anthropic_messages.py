"""Plain anthropic: a loop of one's own, without any framework."""

import os

import harness

from anthropic import Anthropic

TOOLS = {tool.__name__: tool for tool in (harness.get_weather, harness.get_time, harness.convert)}


def ask(client, messages):
    """One answer."""
    tools = []
    for tool in TOOLS.values():
        schema = harness.schema(tool)
        schema["input_schema"] = schema.pop("parameters")
        tools.append(schema)
    given = {"model": "policy", "max_tokens": 1000, "system": harness.PLANNER, "messages": messages, "tools": tools}
    if not harness.STREAMS:
        return client.messages.create(**given)
    with client.messages.stream(**given) as stream:
        return stream.get_final_message()


def solve(prompt):
    """Until the model asks for no more tools."""
    base = os.environ["OPENAI_BASE_URL"].removesuffix("/v1")
    client = Anthropic(base_url=base, api_key=os.environ["OPENAI_API_KEY"])
    messages = [{"role": "user", "content": prompt}]
    while True:
        answer = ask(client, messages)
        messages.append({"role": "assistant", "content": [block.model_dump() for block in answer.content]})
        calls = [block for block in answer.content if block.type == "tool_use"]
        if not calls:
            return answer.content[-1].text
        results = []
        for call in calls:
            result = {"type": "tool_result", "tool_use_id": call.id}
            try:
                results.append(result | {"content": TOOLS[call.name](**call.input)})
            except ValueError as error:
                results.append(result | {"content": f"Error: {error}", "is_error": True})
        messages.append({"role": "user", "content": results})


def main():
    """Each conversation."""
    harness.start()
    for prompt in harness.PROMPTS:
        print(solve(prompt))


main()
