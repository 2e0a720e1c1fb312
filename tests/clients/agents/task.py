"""The task of every client's agent, and its two tools; it prints the texts of its three answers. Imports nothing of
ours."""

from collections.abc import Callable
from typing import Any

SYSTEM = "You calculate. Use the tools."
PROMPT = "What is 12 plus 30, and that times 2?"
THEN = ("And in words?", "Thank you.")
"""What is said after the answer, one after the other."""


def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: one
        b: another
    """
    return str(a + b)


def multiply(a: int, b: int) -> str:
    """Multiplies two numbers.

    Args:
        a: one
        b: another
    """
    return str(a * b)


TOOLS = (add, multiply)


def schema(tool: Callable[[int, int], str]) -> dict[str, Any]:
    """A tool as its name, description and parameters."""
    numbers = {"a": {"type": "integer"}, "b": {"type": "integer"}}
    parameters = {"type": "object", "properties": numbers, "required": ["a", "b"]}
    return {"name": tool.__name__, "description": (tool.__doc__ or "").splitlines()[0], "parameters": parameters}


def run(name: str, arguments: dict[str, int]) -> str:
    """What a tool says."""
    return {tool.__name__: tool for tool in TOOLS}[name](**arguments)
