"""The page of a run, served until it is told to stop.

In: a run's folder, whose broker answers or is opened here. Out: HTTP at loopback. Invariant: it only reads, and the
run's index, which is made of its topics, is all that it writes. Failure: ConfigurationError where another reader holds
the broker of a run that has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import msgspec

from tracegrad.consumers.page.app import make_app
from tracegrad.consumers.page.board import About, Board
from tracegrad.consumers.page.reading import Reading
from tracegrad.producers.asgi import serve

from ..run.session import run_state
from ..run.wiring import Wiring

__all__ = ["board_of", "serve_page"]

_GRACE_S = 1
_SECRET = frozenset({"token", "client"})
"""Keys of the settings that may hold one."""


def board_of(wiring: Wiring, *, is_live: bool) -> Board:
    """What the views look at, empty."""
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
        log=wiring.log(),
        raw=wiring.kafka(),
        refusal=ring.refusal,
    )


def serve_page(wiring: Wiring, *, is_live: bool, port: int, fd: int | None = None, stop: threading.Event) -> None:
    """Serves until `stop` is set. Blocks. Raises UnavailableError when the address is taken."""
    board = board_of(wiring, is_live=is_live)
    reading = Reading(board, stop, starts=wiring.run_dir.starts)
    reading.start()
    try:
        app = make_app(board, token=wiring.page_token, port=port, stop=stop)
        serve(app, host="127.0.0.1", port=port, fd=fd, stop=stop, name="page", grace_s=_GRACE_S)
    finally:
        reading.close()


def _without_secrets(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_secrets(inner) for key, inner in value.items() if key not in _SECRET}
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value
