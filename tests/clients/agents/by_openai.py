"""OpenAI's client by `argv[1]`: chat, stream (of chat), responses, responses_stream, each also as async_*."""

import asyncio
import json
import sys

from openai import AsyncOpenAI, OpenAI
from task import PROMPT, SYSTEM, THEN, TOOLS, run, schema

IS_ASYNC = sys.argv[1].startswith("async_")
WAY = sys.argv[1].removeprefix("async_")


async def given(value):
    """What a client of either kind returns."""
    return await value if IS_ASYNC else value


async def streamed(stream):
    """The last event that bears the whole answer, and all text that came in pieces before it."""
    text, whole = "", None
    events = stream if IS_ASYNC else _each(stream)
    async for event in events:
        if event.type in ("content.delta", "response.output_text.delta"):
            text += event.delta
        elif event.type == "response.completed":
            whole = event.response
    return text, whole


async def _each(stream):
    for event in stream:
        yield event


async def chat(client, messages):
    """One completion, and its text as the client saw it."""
    tools = [{"type": "function", "function": schema(tool)} for tool in TOOLS]
    asked = {"model": "policy", "messages": messages, "tools": tools}
    if WAY == "chat":
        message = (await given(client.chat.completions.create(**asked))).choices[0].message
        return message, message.content
    if IS_ASYNC:
        async with client.chat.completions.stream(**asked) as stream:
            text, _ = await streamed(stream)
            return (await stream.get_final_completion()).choices[0].message, text
    with client.chat.completions.stream(**asked) as stream:
        text, _ = await streamed(stream)
        return stream.get_final_completion().choices[0].message, text


async def converse(client):
    """By chat completions."""
    messages, texts = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}], []
    then = list(THEN)
    while True:
        message, text = await chat(client, messages)
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        if not message.tool_calls:
            texts.append(text)
            if not then:
                return texts
            messages.append({"role": "user", "content": then.pop(0)})
        for call in message.tool_calls or ():
            said = run(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


async def respond(client):
    """By Responses; the whole conversation with each request."""
    items, texts, then = [{"role": "user", "content": PROMPT}], [], list(THEN)
    tools = [{"type": "function", "strict": False, **schema(tool)} for tool in TOOLS]
    while True:
        asked = {"model": "policy", "instructions": SYSTEM, "input": items, "tools": tools}
        if WAY == "responses":
            answer = await given(client.responses.create(**asked))
            text = answer.output_text
        else:
            text, answer = await streamed(await given(client.responses.create(stream=True, **asked)))
        items += [item.model_dump(exclude_none=True) for item in answer.output]
        calls = [item for item in answer.output if item.type == "function_call"]
        if not calls:
            texts.append(text)
            if not then:
                return texts
            items.append({"role": "user", "content": then.pop(0)})
        for call in calls:
            said = run(call.name, json.loads(call.arguments))
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": said})


agent = respond if WAY.startswith("responses") else converse
print(json.dumps(asyncio.run(agent(AsyncOpenAI() if IS_ASYNC else OpenAI()))))
