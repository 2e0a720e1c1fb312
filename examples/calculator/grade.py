"""The grader: 1 when the answer is exactly the expected number, else 0."""

from __future__ import annotations

from typing import Any


def grade(task: dict[str, Any], output: Any, attempt: dict[str, Any]) -> float:
    """`output` is what the agent returned, None when it gave no answer."""
    return float(isinstance(output, str) and output.strip() == task["expected"])
