"""Runs a user's grader in a process of its own, one judgement after another.

Started by path with the user's Python; imports only the standard library.
In: JSON lines on stdin: `{"id", "task": {id, input, expected}, "output", "attempt"}`. End of file ends it.
Out: JSON lines on stdout: `ready` or `unusable`, then for each line in `{"id", "rewards": {name: value}}`, a value
of null meaning that the grader gave none, or `{"id", "unscored": reason}`. What the grader prints goes to stderr.
Failure: an exception or a result of another kind is `unscored`; the time limit is the runner's.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import inspect
import json
import math
import os
import sys
from collections.abc import Callable
from typing import Any

__all__ = ["judge", "load_grader", "main"]

MAX_NAMES, MAX_NAME_CHARS = 100, 200


def load_grader(reference: str) -> Callable[..., Any]:
    """The function that `FILE.py:NAME` names; its folder becomes importable."""
    place, _, name = reference.rpartition(":")
    if not place.endswith(".py") or not os.path.exists(place):
        raise FileNotFoundError(f"expected FILE.py:NAME of a file that exists, got {reference!r}")
    path = os.path.abspath(place)
    sys.path.insert(0, os.path.dirname(path))
    spec = importlib.util.spec_from_file_location(os.path.basename(path)[:-3], path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found = getattr(module, name, None)
    if not callable(found):
        raise AttributeError(f"{place} has no callable {name!r}")
    return found  # type: ignore[no-any-return]


def _number(value: Any) -> float | None:
    if value is None:
        return None
    number = float(value)
    if isinstance(value, str) or not math.isfinite(number):
        raise ValueError(f"expected a finite number, got {value!r}"[:200])
    return number


def _is_name(name: Any) -> bool:
    return isinstance(name, str) and 0 < len(name) <= MAX_NAME_CHARS


def judge(grade: Callable[..., Any], request: dict[str, Any]) -> dict[str, Any]:
    """What the grader says of one attempt, with every way to say nothing told apart."""
    try:
        result = grade(request["task"], request["output"], request["attempt"])
        if inspect.isawaitable(result):
            result = asyncio.run(_resolve(result))
    except Exception as error:
        return {"unscored": f"grader raised {type(error).__name__}: {error}"[:300]}
    if result is None:
        return {"unscored": "grader returned None"}
    try:
        if not isinstance(result, dict):
            return {"rewards": {"reward": _number(result)}}
        if not result or len(result) > MAX_NAMES or not all(map(_is_name, result)):
            return {"unscored": f"expected 1 to {MAX_NAMES} rewards with short names, got {len(result)}"}
        return {"rewards": {name: _number(value) for name, value in result.items()}}
    except (TypeError, ValueError, OverflowError) as error:
        return {"unscored": f"grader returned no number: {error}"[:300]}


async def _resolve(awaitable: Any) -> Any:
    return await awaitable


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--grader", required=True, help="FILE.py:NAME")
    arguments = parser.parse_args()
    lines, out = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    sys.stdout = sys.stderr
    sys.path.remove(os.path.dirname(os.path.abspath(__file__)))  # it must not shadow the grader's modules

    def send(message: dict[str, Any]) -> None:
        out.write(json.dumps(message).encode() + b"\n")
        out.flush()

    try:
        grade = load_grader(arguments.grader)
    except BaseException as error:  # a file that exits when it is loaded is told from a host that died
        send({"op": "unusable", "error": f"{type(error).__name__}: {error}"[:500]})
        raise
    send({"op": "ready"})
    for line in lines:
        request = json.loads(line)
        send({"op": "result", "id": request["id"], **judge(grade, request)})


if __name__ == "__main__":
    main()
