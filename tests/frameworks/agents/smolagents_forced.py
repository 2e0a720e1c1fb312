"""smolagents, which demands a tool call of each answer, on a model that has learnt by heart what to say."""

import json
import os

from smolagents import OpenAIServerModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: one
        b: the other
    """
    return a + b


model = OpenAIServerModel("policy", api_base=os.environ["OPENAI_BASE_URL"], api_key=os.environ["OPENAI_API_KEY"])
agent = ToolCallingAgent([add], model, max_steps=3)
agent.prompt_templates["system_prompt"] = "Use the tools."
print(json.dumps(agent.run("What is 12 plus 30?")))
