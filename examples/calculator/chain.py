"""The chain task: two verbs, left to right, in whole numbers: "what is 26 times 3 minus 6?" is 72."""

from __future__ import annotations

import random
import re

VERBS = {"plus": "+", "and": "+", "minus": "-", "less": "-", "times": "*", "by": "*", "over": "/", "per": "/"}


def calculate(expr: str) -> str:
    """The value of `<number><operator><number>`.

    Raises:
        ValueError: the expression has another form.
    Returns:
        The whole number as text, or "error: not whole", the way many real tools report: in the text only.
    """
    match = re.fullmatch(r"(-?\d{1,6})([-+*/])(\d{1,6})", expr)
    if match is None:
        raise ValueError("syntax")
    left, operator, right = int(match[1]), match[2], int(match[3])
    if operator == "/":
        return "error: not whole" if right == 0 or left % right else str(left // right)
    return str({"+": left + right, "-": left - right, "*": left * right}[operator])


def draw_task(rng: random.Random) -> tuple[str, str]:
    """A question and its answer; every intermediate result is a whole number >= 0."""
    while True:
        first, second = rng.choice(list(VERBS)), rng.choice(list(VERBS))
        a, b, c = rng.randint(2, 30), rng.randint(2, 9), rng.randint(2, 9)
        partial = calculate(f"{a}{VERBS[first]}{b}")
        answer = calculate(f"{partial}{VERBS[second]}{c}") if partial.isdigit() else "error"
        if answer.isdigit():
            return f"what is {a} {first} {b} {second} {c}?", answer
