"""The dataset's reader and the order of its tasks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tracegrad.producers.tasks.dataset import read_tasks, task_of_group
from tracegrad.schemas.errors import ConfigurationError


def test_tasks_are_read_in_order(tmp_path: Path) -> None:
    """Blank lines are skipped; `expected` may be absent; input may be any JSON."""
    file = tmp_path / "t.jsonl"
    file.write_text('{"id":"a","input":"x","expected":"1"}\n\n{"id":"b","input":{"q":[1]}}\n')
    first, second = read_tasks(file)
    assert (first.id, first.input, first.expected) == ("a", "x", "1")
    assert (second.id, second.input, second.expected) == ("b", {"q": [1]}, None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            b'{"id":"a","input":1}\n{"id":"b"}\n', "line 2: expected .* missing required field", id="no input"
        ),
        pytest.param(b'{"id":7,"input":1}\n', "line 1: .*Expected `str`, got `int`", id="id is a number"),
        pytest.param(b'{"id":"a","input":1,"answer":2}\n', "line 1: .*unknown field `answer`", id="unknown field"),
        pytest.param(b'{"id":"a","input":1}\n{"id":"a","input":2}\n', "line 2: id 'a' stands in line 1", id="twice"),
        pytest.param(b"not json\n", "line 1", id="not json"),
        pytest.param(b'{"id":"\xff","input":1}\n', "line 1", id="not utf-8"),
        pytest.param(b"[" * 100_000, "line 1", id="nested too deep"),
        pytest.param(b"\n\n", "at least one task", id="empty"),
    ],
)
def test_a_bad_file_names_line_and_cause(tmp_path: Path, text: bytes, message: str) -> None:
    """Expected, got, where."""
    file = tmp_path / "t.jsonl"
    file.write_bytes(text)
    with pytest.raises(ConfigurationError, match=message):
        read_tasks(file)


@pytest.mark.parametrize("data", [b"PAR1\x15\x04", b"id,input\na,x\n", b'[{"id": "a", "input": "x"}]'])
def test_a_file_of_another_form_is_told_how_to_become_lines(tmp_path: Path, data: bytes) -> None:
    """A table, an array: its first line is no task. A later one is a mistake in that line."""
    file = tmp_path / "tasks"
    file.write_bytes(data)
    with pytest.raises(ConfigurationError, match=r"line 1: expected .*; of a table: pandas\..*lines=True"):
        read_tasks(file)
    file.write_bytes(b'{"id": "a", "input": "x"}\n' + data)
    with pytest.raises(ConfigurationError, match="line 2: expected ") as error:
        read_tasks(file)
    assert "pandas" not in str(error.value)


def test_a_missing_file_is_a_configuration_error(tmp_path: Path) -> None:
    """Not a traceback."""
    with pytest.raises(ConfigurationError, match="No such file"):
        read_tasks(tmp_path / "none.jsonl")


def test_each_round_is_a_shuffle_that_seed_and_number_decide(tmp_path: Path) -> None:
    """Every task once a round, in another order each; the same after a restart."""
    file = tmp_path / "t.jsonl"
    file.write_text("".join(f'{{"id":"{i}","input":{i}}}\n' for i in range(20)))
    tasks = read_tasks(file)
    order = [task_of_group(tasks, index, seed=1).id for index in range(60)]
    rounds = [order[0:20], order[20:40], order[40:60]]
    assert all(sorted(round_, key=int) == [str(i) for i in range(20)] for round_ in rounds)
    assert rounds[0] != rounds[1] != rounds[2]
    assert [task_of_group(read_tasks(file), index, seed=1).id for index in range(60)] == order
    assert [task_of_group(tasks, index, seed=2).id for index in range(60)] != order
