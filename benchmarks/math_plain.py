"""What the untrained model of examples/math solves in plain words, without tools: the other way to ask it.

    vllm serve MODEL_DIR --served-model-name plain --port 8000 --max-model-len 1024
    PYTHONPATH=. python benchmarks/math_plain.py http://127.0.0.1:8000/v1 TASKS.jsonl [--model plain] [--max-tokens 256]

In: an endpoint of OpenAI's chat completions and tasks. Out: tasks right by examples/math/grade.py, with Wilson's 95 %
interval, of one greedy answer each, asked to reason step by step and to end with the number; and how many were cut.
"""

from __future__ import annotations

import argparse
import json
import runpy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx

from tracegrad.producers.tasks.score import wilson

GRADE = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "math" / "grade.py"))["grade"]
QUESTION = "{}\n\nReason step by step. End with the answer as a number alone on the last line."
BESIDE, TIMEOUT_S = 16, 600


def main() -> None:
    """Prints it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("tasks", type=Path)
    parser.add_argument("--model", default="plain")
    parser.add_argument("--max-tokens", type=int, default=256)
    asked = parser.parse_args()
    tasks = [json.loads(line) for line in asked.tasks.read_text().splitlines()]
    given = {"model": asked.model, "temperature": 0, "max_tokens": asked.max_tokens}
    with httpx.Client(timeout=TIMEOUT_S) as client, ThreadPoolExecutor(BESIDE) as threads:

        def choice(task: dict[str, Any]) -> Any:
            messages = [{"role": "user", "content": QUESTION.format(task["input"])}]
            answer = client.post(f"{asked.url}/chat/completions", json={**given, "messages": messages})
            return answer.raise_for_status().json()["choices"][0]

        choices = [*threads.map(choice, tasks)]
    right = sum(GRADE(task, one["message"]["content"], {}) == 1 for task, one in zip(tasks, choices, strict=True))
    low, high = wilson(right, len(tasks))
    num_cut = sum(one["finish_reason"] == "length" for one in choices)
    print(f"{right} of {len(tasks)}: {right / len(tasks):.3f} ({low:.3f} to {high:.3f}); {num_cut} cut")


if __name__ == "__main__":
    main()
