"""An episode's task as a line that a tasks file can hold."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pytest

from tests.consumers.audit.rated_run import rated_run
from tests.consumers.audit.small_run import long_run, memory_log
from tests.consumers.page.boards import browser
from tests.consumers.page.looking import board_over
from tracegrad.consumers.page.board import Board
from tracegrad.consumers.page.episodes.task import line_of, task_of
from tracegrad.producers.tasks.dataset import read_tasks
from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.tasks import Task

SAID = 'what is "7 by 8"?\n</script>\u2028'


def chat(ids: Sequence[int]) -> list[str]:
    """A tokenizer whose first token is a whole conversation."""
    text = f"<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\n{SAID}<|im_end|>\n<|im_start|>assistant\n"
    return [text if place == 0 else "" for place, _ in enumerate(ids)]


def id_in(board: Board, where: str = "1") -> str:
    """Of the first episode."""
    with board.index() as connection:
        id_: str = connection.execute(f"SELECT id FROM episodes WHERE {where} ORDER BY n LIMIT 1").fetchone()[0]
    return id_


@pytest.fixture
def captured(tmp_path: Path) -> Board:
    """Of an agent that no runner started."""
    return board_over(memory_log(rated_run()), tmp_path, pieces=chat)


@pytest.fixture
def trained(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Board:
    """Of a run with tasks."""
    return board_over(memory_log(long_run(tmp_path_factory.mktemp("weights"))), tmp_path)


def test_of_a_captured_conversation_it_is_what_the_user_said_first(captured: Board, tmp_path: Path) -> None:
    """Word for word, and the line can be read as a file of tasks."""
    id_ = id_in(captured)
    found = task_of(captured, id_)
    assert found == Task(id=f"captured-{id_}", input=SAID)
    line = line_of(found)
    assert line.count(b"\n") == 1 and set(msgspec.json.decode(line)) == {"id", "input"}
    (tmp_path / "tasks.jsonl").write_bytes(line)
    assert read_tasks(tmp_path / "tasks.jsonl") == (found,)


def test_of_a_runners_attempt_it_is_that_of_the_runs_file(trained: Board) -> None:
    """With what is right; one that the file lacks is said to be gone."""
    id_ = id_in(trained, "task IS NOT NULL")
    trained.find_task = lambda task: Task(id=task, input={"a": 1}, expected="2")
    found = task_of(trained, id_)
    assert msgspec.json.decode(line_of(found)) == {"id": found.id, "input": {"a": 1}, "expected": "2"}
    trained.find_task = lambda task: None
    with pytest.raises(RequestError, match="any more"):
        task_of(trained, id_)


def test_what_nobody_can_read_is_no_task(captured: Board) -> None:
    """Without a tokenizer, or of a prompt without a user's message."""
    for pieces in (None, lambda ids: ["?" for _ in ids]):
        captured.pieces = pieces
        with pytest.raises(RequestError, match="expected"):
            task_of(captured, id_in(captured))


async def test_it_is_saved_as_a_file(captured: Board) -> None:
    """Of an episode that is not known there is none."""
    id_ = id_in(captured)
    async with browser(captured) as client:
        answer = await client.get(f"/task/{id_}")
        assert answer.status_code == 200 and msgspec.json.decode(answer.content)["input"] == SAID
        assert answer.headers["content-disposition"] == f'attachment; filename="task-{id_}.jsonl"'
        assert answer.headers["content-type"].startswith("application/jsonl")
        gone = await client.get('/task/none"x')
        assert gone.status_code == 404 and "content-disposition" not in gone.headers
        assert f'href="/task/{id_}"' in (await client.get(f"/episode/{id_}")).text
