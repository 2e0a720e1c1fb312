"""The page of a run, served until it is told to stop.

In: a run's folder, whose broker answers or is opened here. Out: HTTP at loopback. Invariant: it only reads; the run's
index and `page.msgpack`, which are made of its topics, are all that it writes. Failure: ConfigurationError where
another reader holds the broker of a run that has ended and no page left what it needs.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from tracegrad.consumers.page.app import make_app
from tracegrad.consumers.page.board import About, Board
from tracegrad.consumers.page.kept import restore
from tracegrad.consumers.page.reading import Reading
from tracegrad.producers.asgi import serve
from tracegrad.schemas.errors import TracegradError

from ..run.session import run_state
from ..run.wiring import Wiring
from .broker import keep_broker
from .kept import current, leave
from .texts import explain_by, pieces_of

__all__ = ["serve_ended", "serve_live"]

logger = logging.getLogger(__name__)
_LEAVE_S = 3.0
"""The supervisor kills what has not stopped in ten."""
_GRACE_S = 1
_SECRET = frozenset({"token", "client"})
"""Keys of the settings that may hold one."""


def board_of(wiring: Wiring, *, is_live: bool) -> Board:
    """What the views look at, empty; of a run that has ended without its log, whose broker is not there yet."""
    settings = wiring.settings
    about = About(
        name=wiring.record.name,
        hash=wiring.record.hash,
        folder=str(wiring.run_dir.path),
        is_live=is_live,
        policy=settings.policy.name,
        bootstrap_servers=wiring.endpoints.bootstrap_servers,
        steps=settings.trainer.steps,
        groups_per_step=settings.trainer.groups_per_step,
        concurrency=settings.agent.concurrency if settings.agent else None,
        created_at=wiring.record.created_at,
        settings=_without_secrets(msgspec.to_builtins(settings)),
    )
    ring = wiring.ring
    return Board(
        about,
        wiring.topics,
        run_state(wiring),
        log=wiring.log() if is_live else None,
        raw=wiring.kafka() if is_live else None,
        refusal=ring.refusal,
        pieces=pieces_of(wiring),
        explain=explain_by(wiring),
    )


def serve_live(wiring: Wiring, *, port: int, fd: int | None = None, stop: threading.Event) -> None:
    """Serves a run whose broker others keep until `stop` is set, and leaves what it has read for the next page. Blocks.
    Raises UnavailableError when the address is taken."""
    board, done = board_of(wiring, is_live=True), threading.Event()
    reading = Reading(board, done, starts=wiring.run_dir.starts)
    reading.start()
    try:
        _serve(board, wiring, port=port, fd=fd, stop=stop)
    finally:
        try:
            if wiring.settings.kafka.bootstrap_servers is None:
                leave(wiring.run_dir, board, reading, timeout_s=_LEAVE_S)
        except TracegradError as error:
            logger.warning("page: the next page reads the topics again: %s", error)
        reading.close()


def serve_ended(wiring: Wiring, *, port: int, stop: threading.Event) -> None:
    """Serves a run that has ended until `stop` is set: at once, of what an earlier page left; else while its broker is
    started. Blocks.

    Raises ConfigurationError when another reader has its broker and no page left anything, UnavailableError when it
    does not start.
    """
    board, failed = board_of(wiring, is_live=False), list[TracegradError]()
    if (kept := current(wiring.run_dir)) is not None:
        restore(board, kept)

    def read() -> None:
        try:
            keep_broker(wiring.run_dir, board, stop)
        except TracegradError as error:
            failed.append(error)
            stop.set()

    # A broker dies with the thread that started it.
    keeper = threading.Thread(target=read, name="page-broker")
    keeper.start()
    try:
        _serve(board, wiring, port=port, fd=None, stop=stop)
    finally:
        stop.set()
        keeper.join()
    if failed:
        raise failed[0]


def _serve(board: Board, wiring: Wiring, *, port: int, fd: int | None, stop: threading.Event) -> None:
    app = make_app(board, token=wiring.page_token, port=port, stop=stop)
    serve(app, host="127.0.0.1", port=port, fd=fd, stop=stop, name="page", grace_s=_GRACE_S)


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(inner) for key, inner in value.items() if key not in _SECRET}
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value
