"""Anthropic's Agent SDK, which is Claude Code: Messages, streamed; it has a session named, too."""

import asyncio

from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, create_sdk_mcp_server, query, tool
from task import PROMPT, SYSTEM, TOOLS, run, schema


def made(function):
    """A tool of an in-process server."""
    told = schema(function)

    @tool(told["name"], told["description"], told["parameters"])
    async def execute(given):
        return {"content": [{"type": "text", "text": run(told["name"], given)}]}

    return execute


async def main():
    """One run."""
    server = create_sdk_mcp_server("calc", tools=[made(function) for function in TOOLS])
    options = ClaudeAgentOptions(
        model="policy",
        system_prompt=SYSTEM,
        mcp_servers={"calc": server},
        tools=[],
        allowed_tools=["mcp__calc__add", "mcp__calc__multiply"],
        setting_sources=[],
        max_turns=5,
    )
    async for message in query(prompt=PROMPT, options=options):
        if isinstance(message, ResultMessage):
            return message.result


print(asyncio.run(main()))
