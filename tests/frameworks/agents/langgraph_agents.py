"""LangGraph: create_agent twice; the planner asks the expert by a tool."""

import os

import harness

if harness.INSTRUMENTATION == "langsmith":
    os.environ |= {"LANGSMITH_TRACING": "true", "LANGSMITH_OTEL_ENABLED": "true", "LANGSMITH_OTEL_ONLY": "true"}
    os.environ["LANGSMITH_API_KEY"] = "none"

from langchain.agents import create_agent
from langchain.agents.middleware import wrap_tool_call
from langchain_core.messages import ToolMessage
from langchain_core.tools import tool
from langchain_core.tracers.langchain import wait_for_all_tracers
from langchain_openai import ChatOpenAI


@wrap_tool_call
def tell_errors(request, handler):
    """What LangChain's own documentation shows for a tool that fails."""
    try:
        return handler(request)
    except ValueError as error:
        return ToolMessage(content=f"Tool error: {error}", tool_call_id=request.tool_call["id"], status="error")


def main():
    """Each conversation."""
    harness.start()
    model = ChatOpenAI(model="policy", streaming=harness.STREAMS)
    expert = create_agent(model, [tool(harness.convert)], system_prompt=harness.EXPERT, name="expert")

    @tool
    def ask_expert(request: str) -> str:
        """Asks the expert for money."""
        harness.executed("ask_expert", request=request)
        return expert.invoke({"messages": [{"role": "user", "content": request}]})["messages"][-1].content

    tools = [tool(harness.get_weather), tool(harness.get_time), ask_expert]
    planner = create_agent(model, tools, system_prompt=harness.PLANNER, name="planner", middleware=[tell_errors])
    for prompt in harness.PROMPTS:
        messages = {"messages": [{"role": "user", "content": prompt}]}
        if harness.STREAMS:
            for _ in planner.stream(messages, stream_mode="messages"):
                pass
        else:
            print(planner.invoke(messages)["messages"][-1].content)
    wait_for_all_tracers()


main()
