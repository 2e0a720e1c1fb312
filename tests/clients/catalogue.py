"""The clients that are tried: each program with each of its ways."""

from __future__ import annotations

_WAYS = {
    "by_openai.py": (
        *("chat", "stream", "responses", "responses_stream"),
        *("async_chat", "async_stream", "async_responses", "async_responses_stream"),
    ),
    "by_anthropic.py": ("messages", "stream", "async_messages", "async_stream"),
    # Its client of Messages gives `temperature`, which anthropic 2 does not take.
    "by_autogen.py": ("chat",),
    "by_claude_agent_sdk.py": ("messages",),
    "by_langchain.py": ("chat", "responses", "messages"),
    "by_litellm.py": ("chat", "responses", "messages"),
    "by_openai_agents.py": ("chat", "responses", "stream"),
    "by_pydantic_ai.py": ("chat", "responses", "stored", "messages"),
    "by_ai_sdk.mjs": ("chat", "responses", "stream", "messages"),
    "by_anthropic.mjs": ("messages", "stream"),
    "by_openai.mjs": ("chat", "stream", "responses", "stored"),
}
CLIENTS = tuple((program, way) for program, ways in _WAYS.items() for way in ways)
"""(program under `agents/`, its argument)."""
