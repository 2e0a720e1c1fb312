"""The user's dataset: a file of JSON lines `{id, input, expected?}`, and the order in which its tasks are run.

In: a path. Out: tasks. Invariant: the same file, seed and group number give the same task, after a restart too.
Failure: ConfigurationError that names the file, the line, what was expected and what is there.
"""

from __future__ import annotations

import random
import re
from functools import lru_cache
from pathlib import Path

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.tasks import Task

_DECODER = msgspec.json.Decoder(Task)
_EXPECTED = 'expected {"id": "...", "input": ..., "expected": ...}'
_AS_LINES = "write it as JSON lines: pandas.read_{}(FILE).to_json(OUT, orient='records', lines=True)"
_FORMS = (
    (b"PAR1", "a Parquet file", _AS_LINES.format("parquet")),
    (b"ARROW1", "an Arrow file", _AS_LINES.format("feather")),
    (b"\x1f\x8b", "a gzip file", "unpack it: gunzip FILE"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "unpack it: unzstd FILE"),
    (b"PK\x03\x04", "a zip archive, as Excel writes it", _AS_LINES.format("excel")),
    (b"\xef\xbb\xbf", "a byte order mark (BOM) before the first line", "save it as UTF-8 without BOM"),
    (b"\xff\xfe", "UTF-16 (a BOM says so)", "save it as UTF-8 without BOM"),
    (b"\xfe\xff", "UTF-16 (a BOM says so)", "save it as UTF-8 without BOM"),
)
"""How a file of another form begins, what it is, and what to do."""


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
            if form := _form_of(data) if not tasks else "":
                raise ConfigurationError(f"[tasks] {path}: {_EXPECTED}, one such object a line, got {form}") from None
            raise ConfigurationError(f"[tasks] {path}, line {number}: {_EXPECTED}, got: {error}") from error
        if task.id in lines_by_id:
            first = lines_by_id[task.id]
            raise ConfigurationError(f"[tasks] {path}, line {number}: id {task.id!r} stands in line {first} already")
        lines_by_id[task.id] = number
        tasks.append(task)
    if not tasks:
        raise ConfigurationError(f"[tasks] {path}: expected at least one task, got an empty file")
    return tuple(tasks)


def _form_of(data: bytes) -> str:
    """Of a file whose first task cannot be read what it is and the remedy; empty where that is not known."""
    for begin, form, remedy in _FORMS:
        if data.startswith(begin):
            return f"{form}; {remedy}"
    first = data.strip()[:4096].splitlines()[0].strip()
    if re.match(rb"\s*\[\s*\{", data):
        return f"a JSON array; {_AS_LINES.format('json')}"
    if first == b"{":
        return "an object over several lines; write each on one: jq -c . FILE"
    if not first.startswith(b"{") and any(mark in first for mark in b",;\t"):
        return f"a CSV file, whose first line is {first.decode('utf-8', 'replace')[:80]!r}; {_AS_LINES.format('csv')}"
    return ""


@lru_cache(maxsize=4)
def _order(num_tasks: int, seed: int, round_: int) -> tuple[int, ...]:
    order = list(range(num_tasks))
    random.Random(f"{seed}/{round_}").shuffle(order)
    return tuple(order)


def task_of_group(tasks: tuple[Task, ...], index: int, *, seed: int) -> Task:
    """The task of the index-th training group: each round through the file is a shuffle of its own."""
    round_, place = divmod(index, len(tasks))
    return tasks[_order(len(tasks), seed, round_)[place]]
