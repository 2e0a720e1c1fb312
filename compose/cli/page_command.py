"""The page of any run: `page`. It reads the run's topics, and writes nothing but what is made of them: the run's index,
and a file for the next page."""

from __future__ import annotations

import signal
import threading
from typing import Annotated

import typer

from tracegrad.schemas.errors import ConfigurationError

from ..loopback import LOOPBACK, free_port, is_free
from ..run.wiring import Wiring, port_of
from .common import RUNS, RunArgument, RunsDirOption, echo, find_run, reachable_log


def page(
    run: RunArgument = None,
    port: Annotated[
        int | None, typer.Option(min=1, max=65_535, help="Port to listen on; without it a free one.")
    ] = None,
    runs_dir: RunsDirOption = RUNS,
) -> None:
    """Show a run in a browser until Ctrl-C.

    Example: tracegrad page demo-20260102-030405
    """
    wiring = find_run(run, runs_dir)
    folder, name = wiring.run_dir, wiring.record.name
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    at = port or free_port()
    link = f"http://{LOOPBACK}:{at}/?token={wiring.page_token}"
    from ..history.run_broker import open_broker

    try:
        if _is_over(wiring):
            _tell(link)
            from ..page.serve import serve_ended

            serve_ended(wiring, port=at, stop=stop)
            return
        with open_broker(folder):
            pass  # it is not another reader's
    except ConfigurationError as error:
        raise ConfigurationError(f"run {name} has ended, and one at a time may open its topics: {error}") from error
    if wiring.page_link and port is None and not is_free(port_of(wiring.endpoints.page_url)):
        echo(f"run {name} serves its page by itself: {wiring.page_link}")
        return
    reachable_log(wiring)
    _tell(link)
    from ..page.serve import serve_live

    serve_live(wiring, port=at, stop=stop)


def _tell(link: str) -> None:
    echo(link)
    echo("open it in a browser; Ctrl-C ends it", is_error=True)


def _is_over(wiring: Wiring) -> bool:
    """Whether the run has ended and can be shown: its broker is free, or another reader's and not needed at first."""
    from ..history.run_broker import is_opened
    from ..page.page_file import read_page_file

    folder = wiring.run_dir
    if wiring.settings.kafka.bootstrap_servers is not None:
        return False
    return not folder.is_locked() or (is_opened(folder) and read_page_file(folder) is not None)
