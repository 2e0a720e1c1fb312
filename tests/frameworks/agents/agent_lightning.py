"""Agent Lightning 0.3: a decorated agent with rewards, messages, operations and links, run by the page's own wrapper.

The wrapper is the block of docs/agent_lightning.md that imports `my_agent`, executed as it stands (with the recording's
tracer), in a process of its own for each conversation.
"""

import json
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import harness

PAGE = Path(__file__).parents[3] / "docs" / "agent_lightning.md"
TOOLS = {tool.__name__: tool for tool in (harness.get_weather, harness.get_time, harness.convert)}


def wrapper():
    """The page's program."""
    (text,) = (
        block for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL) if "my_agent" in block
    )
    return text.replace("AgentOpsTracer", "OtelTracer") if harness.INSTRUMENTATION == "otel" else text


def answer(client, messages, model):
    """Until the model asks for no more tools; the last answer's id too."""
    import agentlightning as agl

    tools = [{"type": "function", "function": harness.schema(tool)} for tool in TOOLS.values()]
    while True:
        told = client.chat.completions.create(model=model, messages=messages, tools=tools)
        message = told.choices[0].message.model_dump(exclude_none=True)
        messages.append(message)
        if not message.get("tool_calls"):
            return told.id
        for call in message["tool_calls"]:
            arguments = json.loads(call["function"]["arguments"])
            with agl.operation(name=call["function"]["name"]) as operation:
                operation.set_input(**arguments)
                try:
                    result = TOOLS[call["function"]["name"]](**arguments)
                except ValueError as error:
                    result = f"Error: {error}"
                operation.set_output(result)
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def agent():
    """As its users write one."""
    import agentlightning as agl
    from agentlightning.utils.otel import make_link_attributes
    from openai import OpenAI

    @agl.rollout
    def my_agent(task, llm: agl.LLM):
        client = OpenAI(base_url=llm.endpoint)
        messages = [{"role": "system", "content": harness.PLANNER}, {"role": "user", "content": task}]
        last = answer(client, messages, llm.model)
        agl.emit_message("planned")
        agl.emit_reward({"done": 0.25, "short": 0.1}, primary_key="done")
        agl.emit_reward(0.125, attributes=make_link_attributes({"gen_ai.response.id": last}))
        return 0.5

    return my_agent


def main():
    """One conversation by its task on stdin, or a process for each."""
    if len(sys.argv) > 1:
        sys.modules["my_agent"] = types.ModuleType("my_agent")
        sys.modules["my_agent"].my_agent = agent()
        exec(compile(wrapper(), "run_agent.py", "exec"), {"__name__": "__main__"})
        return
    for prompt in harness.PROMPTS:
        variables = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
        task = json.dumps({"id": "1", "input": prompt})
        subprocess.run([sys.executable, __file__, "one"], input=task, text=True, env=variables, check=True)


main()
