"""Anthropic's Agent SDK, which is Claude Code: Messages, streamed; it has a session named, too."""

import asyncio
import json

from claude_agent_sdk import ClaudeAgentOptions, ClaudeSDKClient, ResultMessage, create_sdk_mcp_server, tool
from task import PROMPT, SYSTEM, THEN, TOOLS, run, schema


def made(function):
    """A tool of an in-process server."""
    told = schema(function)

    @tool(told["name"], told["description"], told["parameters"])
    async def execute(given):
        return {"content": [{"type": "text", "text": run(told["name"], given)}]}

    return execute


async def main():
    """One conversation."""
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
    texts = []
    async with ClaudeSDKClient(options) as client:
        for prompt in (PROMPT, *THEN):
            await client.query(prompt)
            async for message in client.receive_response():
                if isinstance(message, ResultMessage):
                    texts.append(message.result)
    return texts


print(json.dumps(asyncio.run(main())))
