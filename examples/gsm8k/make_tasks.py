"""Turns a GSM8K file ({question, answer} a line, gzip or not) into tasks ({id, input, expected}).

python make_tasks.py train.jsonl.gz tasks.jsonl [--limit 512]
"""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path


def main() -> None:
    """Writes one task a line; the expected answer is what follows '####'."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--skip", type=int, default=0, help="leave out the first N problems")
    parser.add_argument("--limit", type=int, default=None, help="at most so many problems")
    arguments = parser.parse_args()
    opener = gzip.open if arguments.source.suffix == ".gz" else open
    with opener(arguments.source, "rt", encoding="utf-8") as file:
        problems = [json.loads(line) for line in file if line.strip()]
    end = None if arguments.limit is None else arguments.skip + arguments.limit
    name = arguments.source.name.split(".")[0]
    with arguments.out.open("w", encoding="utf-8") as file:
        for index, problem in list(enumerate(problems))[arguments.skip : end]:
            expected = problem["answer"].rsplit("####", 1)[1].strip().replace(",", "")
            task = {"id": f"{name}-{index}", "input": problem["question"], "expected": expected}
            file.write(json.dumps(task, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
