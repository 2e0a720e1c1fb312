"""pydantic-ai by `argv[1]`: chat, responses, stored (the next request names the response before), messages."""

import json
import sys

from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel, OpenAIResponsesModelSettings
from task import PROMPT, SYSTEM, THEN, add, multiply

MODELS = {
    "chat": lambda: OpenAIChatModel("policy"),
    "responses": lambda: OpenAIResponsesModel("policy"),
    "stored": lambda: OpenAIResponsesModel(
        "policy", settings=OpenAIResponsesModelSettings(openai_previous_response_id="auto")
    ),
    "messages": lambda: AnthropicModel("policy"),
}
agent = Agent(MODELS[sys.argv[1]](), instructions=SYSTEM, tools=[add, multiply])
history, texts = [], []
for prompt in (PROMPT, *THEN):
    result = agent.run_sync(prompt, message_history=history)
    history = result.all_messages()
    texts.append(result.output)
print(json.dumps(texts))
