"""The page of any run: `page`. It reads the run's topics, and writes beside them nothing but the run's index."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from tracegrad.schemas.errors import ConfigurationError

from ..local_kafka.node import free_port, is_free
from ..run.wiring import Wiring, port_of
from .common import RUNS, RunDirOption, RunsDirOption, echo, find_run, reachable_log

__all__ = ["page"]


def page(
    run: Annotated[str | None, typer.Argument(help="The run's name; else the newest.", show_default=False)] = None,
    port: Annotated[int | None, typer.Option(min=1, max=65_535, help="Else a free one.", show_default=False)] = None,
    run_dir: RunDirOption = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Show a run in a browser, live or ended, until Ctrl-C.

    Example: tracegrad page demo-20260102-030405
    """
    wiring = find_run(run, run_dir, runs_dir)
    if wiring.run_dir.is_locked() or wiring.settings.kafka.bootstrap_servers is not None:
        if wiring.page_link and port is None and not is_free(port_of(wiring.endpoints.page_url)):
            echo(f"run {wiring.record.name} serves its page by itself: {wiring.page_link}")
            return
        reachable_log(wiring)
        _serve(wiring, port, is_live=True)
        return
    from ..history.broker import open_broker

    try:
        with open_broker(wiring.run_dir) as servers:
            _serve(Wiring(wiring.run_dir, bootstrap_servers=servers), port, is_live=False)
    except ConfigurationError as error:
        raise ConfigurationError(
            f"run {wiring.record.name} has ended, and one at a time may open its topics: {error}"
        ) from error


def _serve(wiring: Wiring, port: int | None, *, is_live: bool) -> None:
    from ..page.serve import serve_page

    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    port = port or free_port()
    echo(f"http://127.0.0.1:{port}/?token={wiring.page_token}")
    serve_page(wiring, is_live=is_live, port=port, stop=stop)
