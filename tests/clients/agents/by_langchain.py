"""LangChain by `argv[1]`: chat, responses, messages."""

import json
import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from task import PROMPT, SYSTEM, THEN, add, multiply

MODELS = {
    "chat": lambda: ChatOpenAI(model="policy"),
    "responses": lambda: ChatOpenAI(model="policy", use_responses_api=True),
    "messages": lambda: ChatAnthropic(model="policy", max_tokens=500),
}
agent = create_agent(MODELS[sys.argv[1]](), tools=[add, multiply], system_prompt=SYSTEM)
messages, texts = [], []
for content in (PROMPT, *THEN):
    messages = agent.invoke({"messages": [*messages, {"role": "user", "content": content}]})["messages"]
    texts.append(messages[-1].text)
print(json.dumps(texts))
