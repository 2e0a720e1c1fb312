"""The same agent in LangGraph: the tool, the words and the limit are those of agent.py; its instrumentation is
openinference-instrumentation-langchain (requirements_langgraph.txt).
"""

from __future__ import annotations

from typing import Any

from arithmetic import calculate
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent

SYSTEM = "Use calculator for each calculation, then give its result by answer."
MAX_STEPS = 12
"""Six calls and their results."""


@tool
def calculator(expression: str) -> str:
    """Evaluate 48/2 + 12"""
    return calculate(expression)


@tool(return_direct=True)
def answer(number: float) -> str:
    """Give the final number"""
    return f"{number:.15g}"


model = ChatOpenAI(model="policy", max_tokens=64, max_retries=0, timeout=600)  # type: ignore[call-arg]
graph = create_react_agent(model, [calculator, answer], prompt=SYSTEM)


async def solve(task: dict[str, Any]) -> str | None:
    """What was given by `answer`, or the text of the last message; None when the steps ran out."""
    try:
        state = await graph.ainvoke(
            {"messages": [{"role": "user", "content": task["input"]}]}, {"recursion_limit": MAX_STEPS}
        )
    except GraphRecursionError:
        return None
    return str(state["messages"][-1].content)
