"""Runs a user's rule in a process of its own, one episode after another. Started by path; standard library alone.

    function_host.py FILE.py:NAME | MODULE:NAME

In: JSON lines on stdin, each an episode's record; their end ends it. Out: JSON lines on stdout: first `{"ready": true}`
or `{"error": reason}`, then for each episode `{"pays": [[call id, name, value], ...]}`, null for what is not finite, or
`{"error": reason}`. What the user's code prints goes to stderr. Failure: an exception is an answer; the time limit is
the caller's.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import math
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

_PR_SET_PDEATHSIG = 1


def _load(reference: str) -> Callable[[dict[str, Any]], Any]:
    place, _, name = reference.rpartition(":")
    if place.endswith(".py"):
        sys.path.insert(0, os.path.dirname(os.path.abspath(place)))
        spec = importlib.util.spec_from_file_location("tracegrad_user_rule", place)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
    else:
        module = importlib.import_module(place)
    found = getattr(module, name)
    if not callable(found):
        raise TypeError(f"{name} is no function")
    return found  # type: ignore[no-any-return]


def _answer(pay: Callable[[dict[str, Any]], Any], line: bytes) -> dict[str, Any]:
    try:
        pays = [(str(call), str(name), float(value)) for call, name, value in pay(json.loads(line)) or ()]
        return {"pays": [one if math.isfinite(one[2]) else (*one[:2], None) for one in pays]}  # JSON has no NaN
    except Exception as error:  # the user's code
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Serves until stdin ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a loop that hangs would never see stdin's end
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    lines = os.fdopen(os.dup(0), "rb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        pay = _load(sys.argv[1])
    except BaseException as error:  # SystemExit of the user's file too
        out.write(json.dumps({"error": f"{type(error).__name__}: {error}"[:300]}).encode() + b"\n")
        return
    out.write(b'{"ready": true}\n')
    for line in lines:
        out.write(json.dumps(_answer(pay, line)).encode() + b"\n")


if __name__ == "__main__":
    main()
