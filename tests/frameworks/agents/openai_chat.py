"""Plain openai: a loop of one's own, without any framework."""

import json
import os

import harness

if harness.INSTRUMENTATION == "langfuse":
    from langfuse.openai import OpenAI
else:
    from openai import OpenAI

TOOLS = {tool.__name__: tool for tool in (harness.get_weather, harness.get_time, harness.convert)}


def ask(client, messages):
    """One answer as a message."""
    tools = [{"type": "function", "function": harness.schema(tool)} for tool in TOOLS.values()]
    if not harness.STREAMS:
        answer = client.chat.completions.create(model="policy", messages=messages, tools=tools)
        return answer.choices[0].message.model_dump(exclude_none=True)
    message = {"role": "assistant", "content": "", "tool_calls": []}
    for chunk in client.chat.completions.create(model="policy", messages=messages, tools=tools, stream=True):
        for choice in chunk.choices:
            message["content"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                if call.index == len(message["tool_calls"]):
                    empty = {"id": call.id, "type": "function", "function": {"name": "", "arguments": ""}}
                    message["tool_calls"].append(empty)
                function = message["tool_calls"][call.index]["function"]
                function["name"] += call.function.name or ""
                function["arguments"] += call.function.arguments or ""
    return {name: value for name, value in message.items() if value}


def solve(prompt):
    """Until the model asks for no more tools."""
    client = OpenAI()
    messages = [{"role": "system", "content": harness.PLANNER}, {"role": "user", "content": prompt}]
    while True:
        message = ask(client, messages)
        messages.append(message)
        if not message.get("tool_calls"):
            return message["content"]
        for call in message["tool_calls"]:
            try:
                result = TOOLS[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
            except ValueError as error:
                result = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def main():
    """Each conversation; with a span of one's own where the variant says so."""
    provider = harness.start()
    if harness.INSTRUMENTATION == "mlflow":
        os.environ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"] = os.environ["OTEL_EXPORTER_OTLP_ENDPOINT"] + "/v1/traces"
        import mlflow

        mlflow.openai.autolog()
    elif harness.INSTRUMENTATION == "events":
        harness.logs()
    elif harness.INSTRUMENTATION == "langfuse":
        from langfuse import Langfuse

        Langfuse(public_key="pk", secret_key="sk", host="http://127.0.0.1:9", tracer_provider=provider)
    for prompt in harness.PROMPTS:
        print(solve(prompt))
    if harness.INSTRUMENTATION == "mlflow":
        mlflow.flush_trace_async_logging()
    provider.shutdown()


main()
