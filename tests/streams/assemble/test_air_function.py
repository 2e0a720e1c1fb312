"""A user's own rule: what it pays, in a process of its own; raising, hanging and dying cost one episode its payment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.streams.assemble.test_air import made_of, turn
from tests.streams.assemble.test_air_rules import answer
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.metrics import AIR_FUNCTION_FAILED, AIR_PAYMENTS_LEFT_OUT, Metrics
from tracegrad.schemas.records.calls import CallOutcome
from tracegrad.schemas.records.episodes import Episode
from tracegrad.streams.assemble.air.apply import Rewarder
from tracegrad.streams.assemble.air.function import PayFunction
from tracegrad.streams.assemble.air.rules import AirConfig

SOURCE = """
import os, sys, time

def pay(episode):
    print("what user code prints breaks nothing")
    word = episode["calls"][0]["content"]
    if word == "raise":
        raise ValueError("bad word")
    if word == "hang":
        while True:
            pass
    if word == "die":
        os._exit(3)
    if word == "group":
        return [("c0", "alone", float(os.getpgrp() == os.getpid()))]
    if word == "nonsense":
        return 7
    if word == "odd":
        return [("c0", "x", float("nan")), ("c0", "x", 1e300), ("c9", "x", 1.0), ("c0", "", 1.0), ("c0", "ok", 0.5)]
    return [(call["call_id"], "even", 0.25) for call in episode["calls"] if len(call["content"]) % 2 == 0]

number = 7
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    """A user's file."""
    path = tmp_path / "mine.py"
    path.write_text(SOURCE)
    return str(path)


@pytest.fixture
def function(file: str) -> Iterator[PayFunction]:
    """Its rule, with a limit that a busy machine keeps."""
    made = PayFunction(f"{file}:pay", 10.0)
    yield made
    made.close()


def saying(*words: str) -> Episode:
    """An episode whose calls say so."""
    return made_of(*(answer(content=word) for word in words))


def test_it_pays_calls_by_their_ids(function: PayFunction) -> None:
    """Of each episode; a record larger than a pipe too."""
    assert function(saying("ab", "abc", "")).pays == [("c0", "even", 0.25), ("c2", "even", 0.25)]
    assert function(saying("a" * 3_000_000)).pays == [("c0", "even", 0.25)]


@pytest.mark.parametrize(
    ("word", "problem"),
    [("raise", "raised"), ("die", "died"), ("nonsense", "raised")],
    ids=["raise", "die", "nonsense"],
)
def test_one_that_fails_pays_nothing_and_goes_on(function: PayFunction, word: str, problem: str) -> None:
    """The next episode is paid."""
    got = function(saying(word))
    assert (got.pays, got.problem) == ((), problem)
    assert function(saying("ab")).pays == [("c0", "even", 0.25)]


def test_one_that_hangs_is_ended_by_the_limit(file: str) -> None:
    """And begun again."""
    function = PayFunction(f"{file}:pay", 1.0)
    begin = time.monotonic()
    assert function(saying("hang")).problem == "timeout"
    assert time.monotonic() - begin < 10.0
    function.close()
    assert function(saying("x" * 2)).problem in ("", "timeout")  # a second may not do for a start beside other work
    function.close()


def test_what_counts_of_it_is_capped_and_marked_and_counted(file: str) -> None:
    """Calls that are here, usable numbers, the earliest up to the cap; a failure is counted with its reason."""
    metrics = Metrics()
    reward = Rewarder(AirConfig(function=f"{file}:pay", function_cap=2, function_limit_s=10.0), metrics)
    paid = reward(saying("ab", "cd", "ef"))
    assert [[one.value for one in call.rewards] for call in paid.calls] == [[0.25], [0.25], []]
    assert paid.calls[0].rewards[0].rule == "air:even" and paid.air_rules
    assert metrics.value(AIR_PAYMENTS_LEFT_OUT) == 1
    (call,) = reward(saying("odd")).calls
    assert [(one.rule, one.value) for one in call.rewards] == [("air:ok", 0.5)]
    assert metrics.value(AIR_PAYMENTS_LEFT_OUT) == 1 + 4
    refused = made_of(answer(content="ab", outcome=CallOutcome.SUPERSEDED))
    assert reward(refused).calls[0].rewards == ()
    assert reward(saying("raise")).calls[0].rewards == ()
    assert metrics.value(AIR_FUNCTION_FAILED, "raised") == 1
    assert reward._function is not None
    reward._function.close()


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("nothing", "expected a function 'nothing' in .*; valid are pay"),
        ("number", "expected a function 'number' .* 7"),
    ],
)
def test_one_that_cannot_be_imported_is_refused_at_the_start(file: str, name: str, match: str) -> None:
    """With its own words."""
    with pytest.raises(ConfigurationError, match=f"function: {match}"):
        PayFunction(f"{file}:{name}", 5.0)
    with pytest.raises(ConfigurationError, match="function: no function 'pays'"):
        PayFunction("pays", 5.0)


def test_a_process_that_does_not_start_is_told(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends before it has said a word."""
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(ConfigurationError, match=r"mine\.py:pay cannot be used: EOFError"):
        PayFunction(f"{file}:pay", 5.0)


def test_what_the_function_prints_is_no_output(file: str) -> None:
    """`replay --json` has records alone on stdout."""
    code = (
        "import sys; from tests.streams.assemble.test_air_function import *; "
        f"function = PayFunction({file + ':pay'!r}, 10.0); function(saying('ab')); function.close()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "" and "breaks nothing" in done.stderr


def test_an_installed_package_declares_a_rule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By entry point; its process imports it from where this one does."""
    (tmp_path / "rule_of_a_package.py").write_text("def flat(episode):\n    return [('c0', 'flat', 2.0)]\n")
    info = tmp_path / "some_rules-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: some-rules\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[tracegrad.air]\nflat = rule_of_a_package:flat\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    function = PayFunction("flat", 10.0)
    assert function(saying("x")).pays == [("c0", "flat", 2.0)]
    function.close()


def test_none_is_started_where_air_is_off(file: str) -> None:
    """`--no-air` switches it off with the rules."""
    reward = Rewarder(AirConfig(function=f"{file}:nothing", enabled=False), Metrics())
    assert reward(made_of(turn("succeeded"))).air_rules == ""


def test_a_terminals_ctrl_c_is_not_for_the_function(function: PayFunction) -> None:
    """It goes to the terminal's process group; an episode whose function it had ended was written unpaid for good."""
    assert list(function(saying("group")).pays) == [("c0", "alone", 1.0)]
