"""Word problems whose numbers cannot be guessed: MAWPS and ASDiv-A with new operands, SVAMP and GSM8K as they are.

    python make_tasks.py train.csv --svamp SVAMP.json --gsm8k test.jsonl --out OUT

train.csv   data/mawps-asdiv-a_svamp/train.csv of https://github.com/arkilpatel/SVAMP (MIT)
SVAMP.json  SVAMP.json of the same repository
test.jsonl  grade_school_math/data/test.jsonl of https://github.com/openai/grade-school-math (MIT)

Each may be gzipped. Writes tasks.jsonl and eval.jsonl (problems of the same kind, none like a training problem), and
the transfer sets svamp.jsonl and gsm8k.jsonl, whose numbers stay as published.

A problem of train.csv has slots (`number0`) and an equation (`- number0 number1`). Each slot gets a number of three or
four digits, drawn anew until each step of the equation is a whole number above 0, and each quotient 10 or more; the
answer is the equation's. So no answer needs rounding. Left out are problems whose own numbers are not whole (a rate, a
price in cents), whose equation has a number of its own or no operation, whose equation does not give the answer beside
it, two of whose numbers are equal (the equation may then name the wrong one), and those for which no draw fits.

Of problems with one equation and the same first words (names and numbers aside) the first stays. A held-out problem,
and one of SVAMP (which varies problems of ASDiv-A) or GSM8K, is left out if half of its pairs of neighbouring words, or
more, are those of one training problem.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import itertools
import json
import operator
import random
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

TRIES = 20_000
"""Draws for one problem: of a quotient of two numbers one in some hundred fits."""
FIRST_WORDS = 6
ALIKE = 0.5
"""The share of pairs of neighbouring words from which on two problems are near copies."""
PLAIN: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
}
STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b if a > b else None,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a // b if a % b == 0 and a // b >= 10 else None,
}
"""The value of a step, or None where the problem would have none that is whole and large enough."""


def evaluate(tokens: Iterator[str], numbers: list[Any], steps: dict[str, Callable[[Any, Any], Any]]) -> Any:
    """The value of an equation in prefix form; None if one of its steps has none."""
    token = next(tokens)
    if token not in steps:
        return numbers[int(token.removeprefix("number"))]
    left, right = evaluate(tokens, numbers, steps), evaluate(tokens, numbers, steps)
    return None if left is None or right is None else steps[token](left, right)


def draw(equation: str, count: int, rng: random.Random) -> tuple[list[int], int] | None:
    """Numbers for the slots, and the answer; None: no draw of TRIES fits."""
    for _ in range(TRIES):
        numbers = [rng.randint(*rng.choice(((100, 999), (1000, 9999)))) for _ in range(count)]
        answer = evaluate(iter(equation.split()), numbers, STEPS)
        if answer is not None:
            return numbers, answer
    return None


def words(text: str) -> list[str]:
    """Without names, numbers and slots, in small letters: what two problems of one template share."""
    found = re.findall(r"[A-Za-z']+\d*", text)
    return [word.lower() for word in found if not word[0].isupper() and not word[-1].isdigit()]


def pairs(text: str) -> set[tuple[str, str]]:
    """Neighbouring words."""
    found = words(text)
    return set(itertools.pairwise(found))


def is_near_copy(text: str, others: Iterable[set[tuple[str, str]]]) -> bool:
    """Whether ALIKE of its pairs of words stand in one of the others."""
    own = pairs(text)
    return any(len(own & other) >= ALIKE * len(own) for other in others)


def clean(text: str) -> str:
    """Without the blanks that the files have before punctuation."""
    return re.sub(r"\s+([.,?!']|n't)", r"\1", re.sub(r"\s+", " ", text)).strip()


def opened(path: Path) -> TextIO:
    """The file as text, gzipped or not."""
    return gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8")


def is_usable(equation: str, numbers: list[float], answer: float) -> bool:
    """Whether new numbers can be put into the equation."""
    tokens = equation.split()
    if len(tokens) == 1 or not all(re.fullmatch(r"number\d|[-+*/]", token) for token in tokens):
        return False
    is_plain = len(set(numbers)) == len(numbers) and all(number.is_integer() for number in numbers)
    return is_plain and abs(evaluate(iter(tokens), numbers, PLAIN) - answer) < 1e-3


def templates(path: Path) -> Iterator[tuple[int, str, str]]:
    """The problems of train.csv that can be given new numbers, one of a template: line, text with slots, equation."""
    seen = set()
    with opened(path) as file:
        for line, row in enumerate(csv.DictReader(file)):
            text, equation = row["Question"], row["Equation"]
            key = (equation, *words(text)[:FIRST_WORDS])
            numbers = [float(number) for number in row["Numbers"].split()]
            is_complete = set(re.findall(r"number\d", text)) == {f"number{index}" for index in range(len(numbers))}
            if is_complete and key not in seen and is_usable(equation, numbers, float(row["Answer"])):
                seen.add(key)
                yield line, text, equation


def with_new_numbers(path: Path, seed: int) -> Iterator[tuple[dict[str, Any], str]]:
    """Tasks, each with the text whose slots it fills."""
    for line, text, equation in templates(path):
        drawn = draw(equation, len(set(re.findall(r"number\d", text))), random.Random(f"{seed}-{line}"))
        if drawn is not None:
            filled = text
            for index, number in enumerate(drawn[0]):
                filled = filled.replace(f"number{index}", str(number))
            yield {"id": f"mawps-{line}", "input": clean(filled), "expected": str(drawn[1])}, text


def svamp(path: Path) -> Iterator[dict[str, Any]]:
    """SVAMP as published."""
    with opened(path) as file:
        for one in json.load(file):
            text = f"{one['Body'].rstrip(' .')}. {one['Question']}"
            yield {"id": f"svamp-{one['ID']}", "input": clean(text), "expected": f"{one['Answer']:.15g}"}


def gsm8k(path: Path) -> Iterator[dict[str, Any]]:
    """GSM8K as published; the answer is what follows '####'."""
    with opened(path) as file:
        for line, text in enumerate(file):
            one = json.loads(text)
            expected = one["answer"].rsplit("####", 1)[1].strip().replace(",", "")
            yield {"id": f"gsm8k-{line}", "input": one["question"], "expected": expected}


def write(path: Path, tasks: list[dict[str, Any]]) -> None:
    """One task a line."""
    path.write_text("".join(json.dumps(task, ensure_ascii=False) + "\n" for task in tasks), encoding="utf-8")
    print(f"{len(tasks)} tasks in {path}")


def main() -> None:
    """Writes the files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="train.csv")
    parser.add_argument("--svamp", type=Path)
    parser.add_argument("--gsm8k", type=Path)
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--held-out", type=int, default=128, help="tasks of eval.jsonl, and of each transfer set")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    made = list(with_new_numbers(arguments.source, arguments.seed))
    rng.shuffle(made)
    # A fifth of the problems is tried, since many are near copies of one of the others.
    candidates, training = made[: len(made) // 5], made[len(made) // 5 :]
    known = [pairs(text) for _, text in training]
    held_out = [task for task, text in candidates if not is_near_copy(text, known)]
    arguments.out.mkdir(parents=True, exist_ok=True)
    write(arguments.out / "tasks.jsonl", [task for task, _ in training])
    write(arguments.out / "eval.jsonl", held_out[: arguments.held_out])
    for name, read, path in (("svamp", svamp, arguments.svamp), ("gsm8k", gsm8k, arguments.gsm8k)):
        if path is not None:
            tasks = [task for task in read(path) if not is_near_copy(task["input"], known)]
            rng.shuffle(tasks)
            write(arguments.out / f"{name}.jsonl", tasks[: arguments.held_out])


if __name__ == "__main__":
    main()
