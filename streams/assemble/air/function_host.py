"""Runs a user's rule in a process of its own, one episode after another.

    python -m tracegrad.streams.assemble.air.function_host FD FILE.py:NAME | NAME

In: the number of an open connection; over it JSON, each an episode's record; its end ends the process. Out: over it
JSON: first `{"error": reason}`, empty where the rule can be asked, then for each episode
`{"pays": [[call id, name, value], ...]}`, null for what is not finite, or `{"error": reason}`. Failure: an exception is
an answer; the time limit is the caller's.
"""

from __future__ import annotations

import ctypes
import json
import math
import signal
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from tracegrad.schemas.section import function_named

GROUP = "tracegrad.air"
_PR_SET_PDEATHSIG = 1


def _answer(pay: Callable[[dict[str, Any]], Any], line: bytes) -> dict[str, Any]:
    try:
        pays = [(str(call), str(name), float(value)) for call, name, value in pay(json.loads(line)) or ()]
        return {"pays": [one if math.isfinite(one[2]) else (*one[:2], None) for one in pays]}  # JSON has no NaN
    except Exception as error:  # the user's code
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def main() -> None:
    """Serves until nobody asks any more."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # a loop that hangs would never see the end
    told: dict[str, Any] = {"error": ""}
    with Connection(int(sys.argv[1])) as asked:
        try:
            pay = function_named(sys.argv[2], GROUP, "function")
        except Exception as error:  # the user's file
            told = {"error": str(error)}
        while True:
            asked.send_bytes(json.dumps(told).encode())
            try:
                told = _answer(pay, asked.recv_bytes())
            except EOFError:
                return


if __name__ == "__main__":
    main()
