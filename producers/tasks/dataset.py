"""The user's dataset: a file of JSON lines `{id, input, expected?}`, and the order in which its tasks are run.

In: a path. Out: tasks. Invariant: the same file, seed and group number give the same task, after a restart too.
Failure: ConfigurationError that names the file, the line, what was expected and what is there.
"""

from __future__ import annotations

import random
from functools import lru_cache
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.tasks import Task

_DECODER = msgspec.json.Decoder(Task)
_EXPECTED = 'expected {"id": "...", "input": ..., "expected": ...}'
_OTHER_FORM = "; of a table: pandas.read_csv(FILE).to_json(OUT, orient='records', lines=True)"
"""Of a file whose first line is no task: CSV, Parquet, an array, packed."""


def read_tasks(path: str | Path) -> tuple[Task, ...]:
    """All tasks of a file, in its order; blank lines are skipped.

    Raises:
        ConfigurationError: unreadable, empty, of another form, a malformed line, or an id that occurs twice.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(f"[tasks] {path}: cannot be read: {error.strerror}") from error
    tasks: list[Task] = []
    lines_by_id: dict[str, int] = {}
    for number, line in enumerate(data.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            task = _DECODER.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            hint = "" if tasks else _OTHER_FORM
            raise ConfigurationError(f"[tasks] {path}, line {number}: {_EXPECTED}, got: {error}{hint}") from error
        if task.id in lines_by_id:
            first = lines_by_id[task.id]
            raise ConfigurationError(f"[tasks] {path}, line {number}: id {task.id!r} stands in line {first} already")
        lines_by_id[task.id] = number
        tasks.append(task)
    if not tasks:
        raise ConfigurationError(f"[tasks] {path}: expected at least one task, got an empty file")
    return tuple(tasks)


@lru_cache(maxsize=4)
def _order(num_tasks: int, seed: int, round_: int) -> tuple[int, ...]:
    order = list(range(num_tasks))
    random.Random(f"{seed}/{round_}").shuffle(order)
    return tuple(order)


def task_of_group(tasks: tuple[Task, ...], index: int, *, seed: int) -> Task:
    """The task of the index-th training group: each round through the file is a shuffle of its own."""
    round_, place = divmod(index, len(tasks))
    return tasks[_order(len(tasks), seed, round_)[place]]
