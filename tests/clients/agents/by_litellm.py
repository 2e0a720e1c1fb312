"""LiteLLM by `argv[1]`: chat, responses, messages."""

import json
import os
import sys

import litellm
from task import PROMPT, SYSTEM, THEN, TOOLS, run, schema

MODELS = {"chat": "openai/policy", "messages": "anthropic/policy"}


def converse(model):
    """A loop over completions, which LiteLLM puts into each provider's form."""
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": PROMPT}]
    texts, then = [], list(THEN)
    tools = [{"type": "function", "function": schema(tool)} for tool in TOOLS]
    bases = {"messages": os.environ["ANTHROPIC_BASE_URL"], "chat": os.environ["OPENAI_BASE_URL"]}
    while True:
        given = {"model": MODELS[model], "api_base": bases[model], "messages": messages, "tools": tools}
        message = litellm.completion(max_tokens=500, **given).choices[0].message
        messages.append(message.model_dump())
        if not message.tool_calls:
            texts.append(message.content)
            if not then:
                return texts
            messages.append({"role": "user", "content": then.pop(0)})
        for call in message.tool_calls or ():
            said = run(call.function.name, json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


def respond():
    """A loop over responses."""
    items, before = [{"role": "user", "content": PROMPT}], None
    texts, then = [], list(THEN)
    tools = [{"type": "function", **schema(tool)} for tool in TOOLS]
    while True:
        answer = litellm.responses(
            model="openai/policy",
            api_base=os.environ["OPENAI_BASE_URL"],
            instructions=SYSTEM,
            input=items,
            tools=tools,
            previous_response_id=before,
        )
        before, items = answer.id, []
        for item in answer.output:
            if item.type == "function_call":
                said = run(item.name, json.loads(item.arguments))
                items.append({"type": "function_call_output", "call_id": item.call_id, "output": said})
        if not items:
            texts.append(answer.output[-1].content[0].text)
            if not then:
                return texts
            items.append({"role": "user", "content": then.pop(0)})


print(json.dumps(respond() if sys.argv[1] == "responses" else converse(sys.argv[1])))
