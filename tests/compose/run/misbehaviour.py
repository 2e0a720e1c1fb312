"""Rollouts that go wrong in every way that is not ours, by script: an agent, a grader, and an engine that leads them.

In: the kind of a task (its id, before a dot). Out: what the engine answers each of its three rollouts, in the order in
which they first ask; a rollout that is run again gets the same answer. The agent does what it is told, the grader
scores "1" and "0" and fails on some other answers. Prompts hold no digits, which keeps ids within a small vocabulary.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

from tests.fake_engine.scripted import EngineFault, Reply

FAULT = "fault"
SCRIPT = {
    "spread": ("1", "0", "1"),
    "constant": ("1", "1", "1"),
    "engine": (FAULT, FAULT, FAULT),
    "engine-once": (FAULT, "1", "0"),
    "grader-raises": ("raise", "raise", "raise"),
    "grader-none": ("none", "1", "0"),
    "hangs": ("hang", "1", "0"),
    "blocks": ("block", "1", "0"),
    "crashes": ("crash", "1", "0"),
    "raises": ("error", "1", "0"),
    "garbage": ("garbage", "noise", "0"),
}
"""Kind of task -> what its rollouts are led to."""
AGENT = """
import asyncio, os, sys, time
from openai import AsyncOpenAI
from opentelemetry import trace

client = AsyncOpenAI(max_retries=0)
LETTERS = str.maketrans("0123456789", "ghijklmnop")

async def solve(task):
    rollout = format(trace.get_current_span().get_span_context().trace_id, "032x")[:28].translate(LETTERS)
    question = [{"role": "user", "content": f"{task['input']} {rollout}"}]
    with trace.get_tracer("agent").start_as_current_span("invoke_agent"):
        answer = await client.chat.completions.create(model="policy", messages=question)
    said = answer.choices[0].message.content
    if said == "hang":
        await asyncio.sleep(3600)
    if said == "block":
        time.sleep(3600)
    if said == "crash":
        os._exit(1)
    if said == "error":
        raise ValueError("the agent's own")
    if said in ("garbage", "noise"):
        print('{"op": "result", "reward": 1.0}', flush=True)
        os.write(1, bytes(range(256)) * 100)
        sys.stderr.buffer.write(bytes(range(256)))
        return object() if said == "garbage" else "1"
    return said
"""
GRADER = """
def grade(task, output, attempt):
    if output == "raise":
        raise RuntimeError("the grader's own")
    return None if output == "none" else float(output == "1")
"""
_ASKED = re.compile(r"<\|im_start\|>user\n(\S+) (\S+)<\|im_end\|>")


class Script:
    """What the engine samples; a policy of ScriptedEngine."""

    def __init__(self) -> None:
        self._rollouts: dict[str, list[str]] = {}

    def __call__(self, prompt: str, draw: int) -> Reply:
        """By the task and by the rollout that asks."""
        asked = _ASKED.search(prompt)
        if asked is None:
            return Reply("ok")
        task, rollout = asked.groups()
        known = self._rollouts.setdefault(task, [])
        if rollout not in known:
            known.append(rollout)
        said = SCRIPT[task.partition(".")[0]][known.index(rollout)]
        if said == FAULT:
            raise EngineFault(503)
        return Reply(said)


def write_files(folder: Path, tasks: list[str]) -> None:
    """Agent, grader and tasks, whose input is their id."""
    (folder / "agent.py").write_text(AGENT)
    (folder / "grade.py").write_text(GRADER)
    lines = [json.dumps({"id": task, "input": task}) for task in tasks]
    (folder / "tasks.jsonl").write_text("\n".join(lines) + "\n")
