"""LangChain by `argv[1]`: chat, responses, messages."""

import sys

from langchain.agents import create_agent
from langchain_anthropic import ChatAnthropic
from langchain_openai import ChatOpenAI
from task import PROMPT, SYSTEM, add, multiply

MODELS = {
    "chat": lambda: ChatOpenAI(model="policy"),
    "responses": lambda: ChatOpenAI(model="policy", use_responses_api=True),
    "messages": lambda: ChatAnthropic(model="policy", max_tokens=500),
}
agent = create_agent(MODELS[sys.argv[1]](), tools=[add, multiply], system_prompt=SYSTEM)
print(agent.invoke({"messages": [{"role": "user", "content": PROMPT}]})["messages"][-1].text)
