"""An episode's task as a line for an agent's tasks file.

    GET /task/EPISODE    ->  {"id": .., "input": .., "expected": ..}, a file to save

In: an episode, the run's tasks, the policy's tokenizer. Out: a Task. Invariants: of a runner's attempt the task as its
file has it; of a captured conversation the first user message as the policy read it, with an id of the episode's and
without what would be right, which nobody said. Failure: RequestError that says what is missing.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.errors import RequestError
from tracegrad.schemas.records.tasks import Task

from ..board import Board
from .records import facts_of, read_episodes
from .transcript import first_user_message


def line_of(task: Task) -> bytes:
    """As a tasks file has it."""
    fields = {"id": task.id, "input": task.input}
    return msgspec.json.encode(fields if task.expected is None else {**fields, "expected": task.expected}) + b"\n"


def task_of(board: Board, id_: str) -> Task:
    """Of an episode. Blocks. Raises RequestError, UnavailableError."""
    with board.index() as connection:
        facts = facts_of(connection, id_)
    if facts["task"] is not None:
        found = board.find_task(facts["task"])
        if found is None:
            raise RequestError(
                f"task {facts['task']!r} stands in none of the run's files of tasks any more ([tasks] file, eval_file)",
                status=404,
            )
        return found
    if board.pieces is None:
        raise RequestError(
            "expected the policy's tokenizer on this machine, to read what was asked; got none", status=404
        )
    read = read_episodes(board.needed_log(), board.topics, [facts]).get(id_)
    said = first_user_message(read.episode, board.pieces) if read is not None else None
    if said is None:
        raise RequestError(
            "expected a user's message at the episode's beginning, got none that can be read", status=404
        )
    return Task(id=f"captured-{id_}", input=said)
