"""Anthropic's client by `argv[1]`: messages, stream, each also as async_*."""

import asyncio
import json
import sys

from anthropic import Anthropic, AsyncAnthropic
from task import PROMPT, SYSTEM, THEN, TOOLS, run, schema

IS_ASYNC = sys.argv[1].startswith("async_")
WAY = sys.argv[1].removeprefix("async_")


async def ask(client, messages):
    """One message, and its text as the client saw it."""
    tools = [
        {"name": told["name"], "description": told["description"], "input_schema": told["parameters"]}
        for told in map(schema, TOOLS)
    ]
    asked = {"model": "policy", "max_tokens": 500, "system": SYSTEM, "messages": messages, "tools": tools}
    if WAY == "messages":
        message = await client.messages.create(**asked) if IS_ASYNC else client.messages.create(**asked)
        return message, "".join(block.text for block in message.content if block.type == "text")
    if IS_ASYNC:
        async with client.messages.stream(**asked) as stream:
            text = "".join([piece async for piece in stream.text_stream])
            return await stream.get_final_message(), text
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        return stream.get_final_message(), text


async def main(client):
    """One conversation."""
    messages, texts, then = [{"role": "user", "content": PROMPT}], [], list(THEN)
    while True:
        message, text = await ask(client, messages)
        messages.append({"role": "assistant", "content": message.content})
        calls = [block for block in message.content if block.type == "tool_use"]
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": run(call.name, call.input)} for call in calls
        ]
        if not calls:
            texts.append(text)
            if not then:
                return texts
        messages.append({"role": "user", "content": results or then.pop(0)})


print(json.dumps(asyncio.run(main(AsyncAnthropic() if IS_ASYNC else Anthropic()))))
