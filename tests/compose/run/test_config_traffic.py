"""Settings of runs that learn from captured traffic or hold tasks out: what goes together, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.compose.run.config_files import GOOD, folder, write
from tracegrad.compose.run.load import load
from tracegrad.schemas.errors import ConfigurationError

__all__ = ["folder"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"\[select\] train: nobody could rate what is captured"),
        ("[feedback]\n", r"recipe = \"rloo_batch\""),
        ('[feedback]\n[algorithm]\nrecipe = "dapo"\nover = "batch"\n', r"recipe = \"rloo_batch\""),
        ('[feedback]\n[algorithm]\nrecipe = "rloo_batch"\n', ""),
        (
            '[feedback]\n[algorithm]\nrecipe = "rloo_batch"\n[trainer]\ngroups_per_step = 1\n',
            r"groups_per_step = 1: .* with no other",
        ),
        ('[feedback]\n[algorithm]\nbaseline = "running_mean"\n', ""),
        (
            '[feedback]\n[algorithm]\nrecipe = "rloo_batch"\n[credit]\nstrategy = "agent"\n',
            r"\[credit\] strategy, gamma: expected the defaults .*leave both out",
        ),
    ],
    ids=["nobody-rates", "groups", "spread", "batch", "alone", "running-mean", "strategy"],
)
def test_training_on_captured_traffic_needs_raters_and_a_baseline_without_groups(
    tmp_path: Path, text: str, message: str
) -> None:
    """What would train nothing for ever is refused."""
    file = tmp_path / "tracegrad.toml"
    file.write_text(f'run = "x"\n[select]\ntrain = true\n{text}')
    if not message:
        assert load(file, environ={}, flags={}).select.train
        return
    with pytest.raises(ConfigurationError, match=message):
        load(file, environ={}, flags={})


TRAFFIC = """
run = "x"
select.train = true
feedback.names = {}
algorithm.recipe = "rloo_batch"
"""
AGENT, GRADER = 'agent.callable = "agent.py:solve"\n', 'reward.grader = "grade.py:grade"\n'
HELD_OUT = 'tasks.eval_file = "tasks.jsonl"\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (HELD_OUT, r"\[tasks\] eval_file: .* add \[agent\] and \[reward\], or leave \[tasks\] out"),
        (HELD_OUT + AGENT, r"\[tasks\] eval_file: .* add \[reward\], or leave"),
        (HELD_OUT + GRADER, r"\[tasks\] eval_file: .* add \[agent\], or leave"),
        ("tasks.eval_every = 5\n" + AGENT + GRADER, r"held-out tasks alone: set \[tasks\] eval_file, or leave"),
        (HELD_OUT + 'tasks.file = "tasks.jsonl"\n' + AGENT + GRADER, r"leave one .* out \(held-out .* may stay\)"),
        (HELD_OUT + "tasks.eval_samples = 2\n" + AGENT + GRADER, r"eval_samples = 2: greedy.*validation_temperature"),
        (AGENT + GRADER, ""),
        (HELD_OUT + AGENT + GRADER, ""),
    ],
    ids=["no-agent-no-grader", "no-grader", "no-agent", "no-file", "both", "alike", "none", "all"],
)
def test_held_out_tasks_beside_captured_traffic_need_who_runs_and_who_grades_them(
    folder: Path, text: str, message: str
) -> None:
    """What is lacking is named; with all of it there, and with no held-out tasks, the file loads."""
    file = write(folder, TRAFFIC + text)
    if not message:
        assert load(file, environ={}, flags={}).only_holds_out == (HELD_OUT in text)
        return
    with pytest.raises(ConfigurationError, match=message):
        load(file, environ={}, flags={})


def test_training_tasks_are_asked_for_where_they_are_trained_on(folder: Path) -> None:
    """By `up` too, as ever; and `train` refuses a run that trains on its traffic."""
    with pytest.raises(ConfigurationError, match=r"\[tasks\] file is missing; add it, or pass --tasks FILE"):
        load(write(folder, 'run = "x"\n' + HELD_OUT), environ={}, flags={})
    with pytest.raises(ConfigurationError, match=r"\[select\] train: .* start it by `tracegrad up`"):
        load(write(folder, TRAFFIC), environ={}, flags={}, for_training=True)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"tasks.eval_every": 5}, r"\[tasks\] eval_every, eval_samples: expected .* got none; set \[tasks\] eval_file"),
        (
            {"tasks.eval_samples": 2},
            r"\[tasks\] eval_every, eval_samples: expected .* got none; set \[tasks\] eval_file",
        ),
        ({"tasks.eval_samples": 2, "tasks.eval_file": "tasks.jsonl"}, r"eval_samples = 2: greedy.*validation_temp"),
        (
            {"tasks.eval_every": 5, "tasks.eval_file": "tasks.jsonl", "trainer.keep_versions": 4},
            r"keep_versions = 4: .*raise it to 5 at least, or set 0",
        ),
    ],
)
def test_held_out_passes_that_cannot_be_are_refused(folder: Path, keys: dict[str, object], message: str) -> None:
    """With what is missing; and with all of it there they are taken."""
    flags = {name: str(folder / value) if isinstance(value, str) else value for name, value in keys.items()}
    with pytest.raises(ConfigurationError, match=message):
        load(write(folder, GOOD), environ={}, flags=flags)
    flags |= {"tasks.eval_file": str(folder / "tasks.jsonl"), "policy.validation_temperature": 0.7}
    tasks = load(write(folder, GOOD), environ={}, flags=flags | {"trainer.keep_versions": 5}).tasks
    assert tasks is not None and (tasks.eval_every or tasks.eval_samples) > 1
