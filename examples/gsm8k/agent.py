"""A calculator agent in LangGraph; nothing of ours and no tracing code: its published instrumentation is found
by the environment (openinference-instrumentation-langchain, installed).
"""

from __future__ import annotations

import ast
import operator
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.prebuilt import create_react_agent

SYSTEM = """You solve a problem with tools. Answer with one tool call and nothing else, such as
```json
{"name": "calculator", "arguments": {"expression": "48/2 + 12"}}
```
You then read its result. Repeat this for each calculation. When a result is what the problem asks for, give it:
```json
{"name": "answer", "arguments": {"number": 36}}
```"""
OPERATORS: dict[type, Any] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
}
MAX_STEPS = 8


def evaluate(node: ast.AST) -> float:
    """The value of an arithmetic expression of numbers and + - * /."""
    if isinstance(node, ast.Expression):
        return evaluate(node.body)
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        return node.value
    if isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        value: float = OPERATORS[type(node.op)](evaluate(node.left), evaluate(node.right))
        return value
    if isinstance(node, ast.UnaryOp) and type(node.op) in OPERATORS:
        return -evaluate(node.operand)
    raise ValueError("only numbers and + - * / are understood")


@tool
def calculator(expression: str) -> str:
    """Evaluate an arithmetic expression such as 48/2 + 12."""
    parsed = ast.parse(expression, mode="eval")
    if not any(isinstance(node, ast.BinOp) for node in ast.walk(parsed)):
        raise ValueError("nothing to calculate: expected an operation")
    return f"{evaluate(parsed):.15g}"


@tool(return_direct=True)
def answer(number: float) -> str:
    """Give the final answer. This ends the problem."""
    return f"{number:.15g}"


model = ChatOpenAI(model="policy", max_tokens=96, max_retries=0, timeout=600)  # type: ignore[call-arg]
graph = create_react_agent(model, [calculator, answer], prompt=SYSTEM)


async def solve(task: dict[str, Any]) -> str | None:
    """The text of the last message, or of the answer given; None when the steps ran out."""
    try:
        state = await graph.ainvoke(
            {"messages": [{"role": "user", "content": task["input"]}]}, {"recursion_limit": MAX_STEPS}
        )
    except GraphRecursionError:
        return None
    return str(state["messages"][-1].content)
