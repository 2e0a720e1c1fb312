"""OpenAI Agents whose tools run in another process, with MCP's own spans on both sides; a planner hands off.

With an argument it is the server of those tools.
"""

import asyncio
import os
import sys

import harness


def serve(names):
    """The tools, over standard input and output."""
    from mcp.server.mcpserver import MCPServer

    harness.start()
    server = MCPServer("tools")
    for name in names:
        server.add_tool(getattr(harness, name))
    server.run()


async def main():
    """Each conversation."""
    from agents import Agent, OpenAIChatCompletionsModel, Runner
    from agents.mcp import MCPServerStdio
    from openai import AsyncOpenAI

    harness.start()
    model = OpenAIChatCompletionsModel(model="policy", openai_client=AsyncOpenAI())

    def server(*names):
        given = {"command": sys.executable, "args": [__file__, *names], "env": dict(os.environ)}
        return MCPServerStdio(given, client_session_timeout_seconds=60)

    async with server("get_weather", "get_time") as world, server("convert") as money:
        expert = Agent(name="expert", instructions=harness.EXPERT, model=model, mcp_servers=[money])
        planner = Agent(
            name="planner", instructions=harness.PLANNER, model=model, mcp_servers=[world], handoffs=[expert]
        )
        for prompt in harness.PROMPTS:
            print((await Runner.run(planner, prompt)).final_output)


if len(sys.argv) > 1:
    serve(sys.argv[1:])
else:
    asyncio.run(main())
