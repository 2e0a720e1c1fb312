"""`replay` under rules that do not parse: each is refused by its key before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compose.cli.recorded_run import runs as runs
from tracegrad.compose.cli.replay_command import replay
from tracegrad.schemas.errors import ConfigurationError

PAYS = "def pays(what): ..."
RULE = '"name": "early", "status": "succeeded", "value": 0.5'
RULES = [
    (
        f'[{{{RULE}, "shaping": "potential"}}]',
        r"\[air\.rules\.early\] shaping: expected true or false, got 'potential'",
    ),
    (f'[{{{RULE}, "shaping": 1}}]', r"\[air\.rules\.early\] shaping: expected true or false, got 1"),
    (f'[{{{RULE}, "shapng": true}}]', r"unknown key 'shapng' in \[air\.rules\.early\]; did you mean 'shaping'"),
    (f'[{{{RULE}, "shaping": true, "gamma": 0.9}}]', r"unknown key 'gamma' in \[air\.rules\.early\]"),
    ('[{"name": "early", "value": 0.5, "shaping": true}]', r"expected what is paid for, got nothing"),
    ('[{"name": "early", "status": "succeeded", "shaping": true}]', r"air\.rules\.early.*value"),
    (f"[{{{RULE}, ", r"air\.rules: expected JSON"),
    ("early", r"rules: expected list of table, got 'early'"),
]


@pytest.mark.parametrize(("rules", "message"), RULES)
def test_shaping_that_cannot_be_is_refused_by_a_replay(runs: Path, rules: str, message: str) -> None:
    """Another form of potential, a key that no rule has, a potential of nothing, no JSON."""
    with pytest.raises(ConfigurationError, match=message):
        replay(into="new", from_="run:mine", set_=[f"air.rules={rules}"], runs_dir=runs)
    assert not (runs / "new").exists()


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("air.function", "def pay(episode): ...", r"\[air\] function: no 'pays' in .*; it has: pay"),
        ("air.function", f"{PAYS}\nraise RuntimeError('no')", r"function: .*line 2: RuntimeError: no"),
        ("credit.strategy", f"{PAYS}\nraise RuntimeError('no')", r"strategy: .*line 2: RuntimeError: no"),
    ],
)
def test_a_function_that_cannot_be_imported_leaves_no_folder(runs: Path, key: str, text: str, message: str) -> None:
    """Said before the source is opened."""
    (runs / "rule.py").write_text(text)
    with pytest.raises(ConfigurationError, match=message):
        replay(into="new", from_="run:mine", set_=[f"{key}={runs / 'rule.py'}:pays"], runs_dir=runs)
    assert not (runs / "new").exists()
