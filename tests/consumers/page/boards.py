"""A board over a log in memory, and its application as a browser meets it."""

from __future__ import annotations

from pathlib import Path

import httpx

from tests.memory_log import MemoryLog
from tests.versions import training_step
from tracegrad.consumers.page.app import make_app
from tracegrad.consumers.page.board import Board, RunInfo
from tracegrad.consumers.views.run_state import RunState
from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.follow import read_to_end
from tracegrad.schemas.records.training import TrainingStep
from tracegrad.schemas.topics import Topic, Topics

TOKEN = "rp-00000000.0123456789abcdef"
PORT = 8123
RUN = RunHash("00000000")
TOPICS = Topics(run=RunName("small"))


def new_board(folder: Path, log: MemoryLog, *, is_live: bool = True) -> Board:
    """Of a run without a record; its topics are there."""
    log.create_topics(TOPICS, policies=["policy"], partitions=1)
    about = RunInfo(
        name="small",
        hash=RUN,
        folder=str(folder),
        is_live=is_live,
        policy="policy",
        steps=80,
        groups_per_step=8,
        concurrency=8,
    )
    return Board(about, TOPICS, RunState(TOPICS, RUN, "policy"), log=log)


def fold_topics(board: Board, log: MemoryLog) -> None:
    """All that lies on the topics, without the threads."""
    for topic in Topic:
        for record in read_to_end(log, TOPICS.name(topic)):
            board.fold(record)
    board.is_read = True
    board.changed()


def browser(board: Board, *, is_let_in: bool = True) -> httpx.AsyncClient:
    """A client that has opened the URL with the token, or not."""
    app = make_app(board, token=TOKEN, port=PORT)
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(app=app),
        base_url=f"http://127.0.0.1:{PORT}",
        cookies={f"tracegrad_page_{PORT}": TOKEN} if is_let_in else {},
    )


def step(number: int, *, alarms: tuple[str, ...] = (), reward: float | None = 0.5) -> TrainingStep:
    """One batch."""
    return training_step(
        number,
        run=RUN,
        reward=reward,
        reward_parts={"rule": 0.1 * number},
        num_rollouts=1,
        num_tokens=30,
        seconds={"wait": 1.0},
        started_at_ms=1_000,
        ended_at_ms=3_000,
        alarms=alarms,
    )
