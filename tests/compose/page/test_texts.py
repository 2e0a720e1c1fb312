"""A run's tasks as the page finds them in files that may have changed since."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.streams.assemble.test_feedback import CALLS, episode_of, said
from tests.streams.make import call_id
from tracegrad.compose.page.texts import explain_by, find_task_in
from tracegrad.compose.run.pipeline import prepare_run
from tracegrad.compose.run.settings import RunSettings
from tracegrad.compose.run.wiring import Wiring
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.producers.tasks.config import TasksConfig
from tracegrad.schemas.errors import RequestError

LINE = '{"id": "a", "input": "1"}\n'


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """Of training and of evaluation."""
    train, held_out = tmp_path / "train.jsonl", tmp_path / "held_out.jsonl"
    train.write_text(LINE)
    held_out.write_text(LINE.replace("a", "b", 1))
    return train, held_out


def wiring_of(files: tuple[Path, Path]) -> Wiring:
    """Of a run that has both."""
    tasks = TasksConfig(file=str(files[0]), eval_file=str(files[1]))
    settings = RunSettings(run="own", policy=PolicyConfig(model="none"), tasks=tasks)
    return Wiring(prepare_run(settings, files[0].parent / "own"))


def test_what_a_call_is_worth_is_by_what_was_said_behind_the_close(files: tuple[Path, Path]) -> None:
    """As credit took it, and as `air explain` tells it: a rating of an answer is its calls'."""
    explain, episode = explain_by(wiring_of(files)), episode_of(*CALLS)
    assert {worth.return_ for worth in explain(episode, ()).values()} == {0.0}
    rated = explain(episode, [said(1.0, "anna", target=call_id("b"))])
    assert rated[call_id("b")].return_ == 1.0
    assert any(part[1] == 1.0 for part in rated[call_id("b")].parts)


def test_a_task_is_found_in_either_file(files: tuple[Path, Path]) -> None:
    """One that neither has is none."""
    find = find_task_in(wiring_of(files))
    assert [one and one.id for one in map(find, "abc")] == ["a", "b", None]


@pytest.mark.parametrize(("text", "why"), [(None, "cannot be read: No such file"), (LINE + "{}\n", "line 2: expected")])
def test_a_file_that_cannot_be_read_is_named_with_the_reason(
    files: tuple[Path, Path], text: str | None, why: str
) -> None:
    """Unless the other has the task."""
    find = find_task_in(wiring_of(files))
    files[0].unlink()
    if text is not None:
        files[0].write_text(text)
    found = find("b")
    assert found is not None and found.id == "b"
    with pytest.raises(RequestError, match=f"task 'a'.*train.jsonl.*{why}"):
        find("a")
