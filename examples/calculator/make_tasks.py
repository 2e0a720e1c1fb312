"""Writes tasks.jsonl (training) and eval.jsonl (held out, no question of the training file).

python make_tasks.py [--train 1024] [--eval 128] [--seed 7]
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path

from chain import draw_task

HERE = Path(__file__).parent


def main() -> None:
    """Draws distinct questions, so that the two files are disjoint."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=int, default=1024)
    parser.add_argument("--eval", type=int, default=128)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    questions: dict[str, str] = {}
    while len(questions) < arguments.train + arguments.eval:
        question, answer = draw_task(rng)
        questions[question] = answer
    rows = list(questions.items())
    for name, part in (("eval", rows[: arguments.eval]), ("tasks", rows[arguments.eval :])):
        lines = [
            json.dumps({"id": f"{name}-{index}", "input": question, "expected": answer})
            for index, (question, answer) in enumerate(part)
        ]
        (HERE / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="ascii")


if __name__ == "__main__":
    main()
