"""Runs a user's grader in a process of its own, one judgement after another.

Loaded by `host_main.py` with the user's Python; imports only the standard library.
In: JSON lines: `{"id", "task": {id, input, expected}, "output", "attempt"}`. Out: for each `{"id", "rewards": {name:
value}, "calls": {name: {call id: value}}}`, a value of null meaning that the grader gave none, or `{"id", "unscored":
reason}`.
Failure: an exception or a result of another kind is `unscored`; the time limit is the runner's.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import math
from collections.abc import Callable, Iterable
from typing import Any

MAX_NAMES, MAX_NAME_CHARS = 100, 200
MAX_OF_CALLS = 10_000
"""Rewards of calls that one attempt is given, each a record."""


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {value!r}"[:200])
    return number


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS


def judge(grade: Callable[..., Any], request: dict[str, Any], raised: Callable[..., str]) -> dict[str, Any]:
    """What the grader says of one attempt, with every way to say nothing told apart."""
    try:
        result = grade(request["task"], request["output"], request["attempt"])
        if inspect.isawaitable(result):
            result = asyncio.run(_resolve(result))
    except Exception as error:  # the user's code
        return {"unscored": raised("grader", error, 300)}
    if result is None:
        return {"unscored": "grader returned None"}
    try:
        if not isinstance(result, dict):
            return {"rewards": {"reward": _number(result)}}
        if not result or len(result) > MAX_NAMES or not all(map(_is_name, result)):
            return {"unscored": f"expected 1 to {MAX_NAMES} rewards with short names, got {len(result)}"}
        calls = {name: _of_calls(value) for name, value in result.items() if isinstance(value, dict)}
        if (num := sum(map(len, calls.values()))) > MAX_OF_CALLS:
            return {"unscored": f"expected at most {MAX_OF_CALLS} rewards of calls, got {num}"}
        return {
            "rewards": {name: _number(value) for name, value in result.items() if name not in calls},
            "calls": calls,
        }
    except (TypeError, ValueError, OverflowError) as error:
        return {"unscored": f"grader returned no number: {error}"[:300]}


def _of_calls(values: dict[Any, Any]) -> dict[str, float]:
    """By call id; a value of None is none."""
    if not all(map(_is_name, values)):
        raise ValueError("expected ids of calls")
    numbers = {id_: _number(value) for id_, value in values.items()}
    return {id_: number for id_, number in numbers.items() if number is not None}


async def _resolve(awaitable: Any) -> Any:
    return await awaitable


def prepare(
    load: Callable[[], Callable[..., Any]], load_file: object, send: Callable[..., None], raised: Callable[..., str]
) -> tuple[dict[str, Any], Callable[[Iterable[bytes]], None]]:
    """For `host_main.py`: what `ready` says, and what serves the lines."""
    grade = load()

    def serve(lines: Iterable[bytes]) -> None:
        for line in lines:
            request = json.loads(line)
            send("result", id=request["id"], **judge(grade, request, raised))

    return {}, serve
