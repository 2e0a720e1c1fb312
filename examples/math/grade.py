"""The grader: 1 when the last number of the answer is the expected one."""

import re


def grade(task, output, attempt):  # type: ignore[no-untyped-def]
    """`expected` is the number as text; the tasks of make_tasks.py have whole numbers, so nothing is rounded."""
    numbers = re.findall(r"-?\d[\d,]*\.?\d*", output or "")
    return float(bool(numbers) and float(numbers[-1].replace(",", "")) == float(task["expected"]))
