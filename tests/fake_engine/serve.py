"""The scripted engine as a process of its own: `python -m tests.fake_engine.serve --port 8000`.

In: a port. Out: vLLM's routes on loopback until it is killed. It starts with base weights, as vLLM does, and
keeps nothing: what it had loaded is gone with it.
"""

from __future__ import annotations

import argparse
import json
import re

import uvicorn

from tests.fake_engine.scripted import Reply, ScriptedEngine

_TURNS = re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>", re.DOTALL)


def calculator_policy(prompt: str, draw: int) -> Reply:
    """Adds the question's first two numbers, one time in four divides them, and answers what the tool gave.

    In so few tokens of one byte that the agent, which asks for 48, gets whole calls.
    """
    role, text = _TURNS.findall(prompt)[-1]
    if role == "tool":
        return Reply(text if draw % 4 else "unknown")
    left, right, *_ = re.findall(r"\d+", text)
    call = {"name": "calc", "arguments": {"expr": f"{left}{'+' if draw % 4 else '/'}{right}"}}
    return Reply(f"<tool_call>{json.dumps(call, separators=(',', ':'))}</tool_call>")


def main() -> None:
    """Serves until a signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--delay-s", type=float, default=0.0, help="of each answer")
    arguments = parser.parse_args()
    engine = ScriptedEngine(policy=calculator_policy, delay_s=arguments.delay_s)
    uvicorn.run(engine.app, host="127.0.0.1", port=arguments.port, log_level="warning", timeout_graceful_shutdown=1)


if __name__ == "__main__":
    main()
