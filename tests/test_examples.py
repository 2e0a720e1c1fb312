"""What the examples bring besides settings: tasks, tools whose numbers keep their digits, taps that end."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
MATH = EXAMPLES / "math"


def load(name: str) -> Any:
    """A file of the example as a module."""
    spec = importlib.util.spec_from_file_location(f"math_{name}", MATH / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the example find those beside them, as in the runner's processes."""
    monkeypatch.syspath_prepend(str(MATH))
    monkeypatch.setenv("OPENAI_API_KEY", "none")


@pytest.mark.slow
def test_tools_keep_the_digits_of_a_number(beside: None) -> None:
    """The grader compares the last number of the text."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # LangGraph announces where its agents will move to.
        agent = load("langgraph_agent")
    assert agent.calculator.invoke({"expression": "1234567 * 10 + 0.5"}) == "12345670.5"
    for number in ("1234567", "--7"):
        with pytest.raises(ValueError, match="nothing to calculate"):
            agent.calculator.invoke({"expression": number})
    assert agent.answer.invoke({"number": 1234567}) == "1234567"
    assert load("grade").grade({"expected": "1234567"}, agent.answer.invoke({"number": 1234567}), {}) == 1.0


PROBLEMS = """Question,Numbers,Equation,Answer
Bryan has number0 books in each of number1 boxes . How many books does he have ?,56.0 9.0,* number0 number1,504.0
Mary has number0 books in each of number1 boxes . How many books does he have ?,5.0 7.0,* number0 number1,35.0
If number0 pens are put into number1 cups how many pens are in each cup ?,270 9,/ number0 number1,30.0
a baker had number0 rolls and sold number1 of them . how many rolls are left over ?,8.0 2.0,- number0 number1,6.0
a farmer had number0 sheep and number1 goats . what is twice the number of sheep ?,5.0 5.0,+ number1 number1,10.0
a clerk paid number0 dollars in number1 shops . what did he pay in all ?,2.5 4.0,* number0 number1,10.0
a driver went number0 miles and then number1 more . how far has she gone ?,3.0 4.0,+ number0 number1,8.0
a cook needs number0 eggs a day . how many eggs are needed in a week ?,3.0,* number0 7.0,21.0
"""
"""A template twice, a quotient, a difference; then two equal numbers, a broken one, a wrong answer, and a constant."""


def test_numbers_are_new_and_the_answer_is_the_equations(tmp_path: Path) -> None:
    """Three or four digits each, whole at each step; what cannot be given new numbers is left out."""
    (tmp_path / "train.csv").write_text(PROBLEMS)
    made = {task["id"]: task for task, _ in load("make_tasks").with_new_numbers(tmp_path / "train.csv", 0)}
    assert list(made) == ["mawps-0", "mawps-2", "mawps-3"]
    for name, value in (("0", int.__mul__), ("2", int.__floordiv__), ("3", int.__sub__)):
        task = made[f"mawps-{name}"]
        left, right = (int(number) for number in re.findall(r"\d+", task["input"]))
        assert min(left, right) >= 100 and max(left, right) <= 9999
        assert int(task["expected"]) == value(left, right) > 0
    assert int(made["mawps-2"]["expected"]) >= 10


def test_a_near_copy_is_known_whatever_its_names_and_numbers() -> None:
    """Half of the pairs of neighbouring words are those of one other problem."""
    make_tasks = load("make_tasks")
    known = [make_tasks.pairs("Tom had number0 nickels and number1 dimes in his bank . How many coins did he have ?")]
    assert make_tasks.is_near_copy("Ann had 12 nickels and 5 dimes in her bank. How many coins did she have?", known)
    assert not make_tasks.is_near_copy("A train left with 300 people. How many people got off?", known)


CLIENT = """
import time
TopicPartition = None
class Consumer:
    def __init__(self, settings): pass
    def subscribe(self, topics): pass
    def poll(self, timeout): print("polls", flush=True); time.sleep(0.01)
    def close(self):
        print("closes", flush=True)
        while True:
            try: time.sleep(60)
            except KeyboardInterrupt: pass
"""
"""Stands in for `confluent_kafka`: its broker is away, so that no record comes and a close never returns, whatever
signal comes, as of a call into C."""


@pytest.mark.parametrize(
    ("script", "arguments", "shown"),
    [("episodes", (), ["polls"]), ("webhook", ("http://127.0.0.1:9",), ["polls", "closes"])],
)
def test_a_tap_ends_by_ctrl_c_though_its_broker_is_away(
    script: str, arguments: tuple[str, ...], shown: list[str], tmp_path: Path
) -> None:
    """At once where nothing is to be committed; else by a second one."""
    (tmp_path / "confluent_kafka.py").write_text(CLIENT)
    command = [sys.executable, str(EXAMPLES / "taps" / f"{script}.py"), "127.0.0.1:9", "topic", *arguments]
    environ = os.environ | {"PYTHONPATH": str(tmp_path)}
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            for word in shown:
                assert any(line.strip() == word for line in process.stdout), word
                process.send_signal(signal.SIGINT)
            assert process.wait(60) == -signal.SIGINT
        finally:
            process.kill()
