"""The socket that the supervisor holds for a gateway, with real processes."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.serving import free_port, until
from tracegrad.compose.run.process import ProcessSpec
from tracegrad.compose.run.supervisor import Backoff, OutcomeKind, Supervisor

pytestmark = pytest.mark.slow

GATEWAY = """
import os, signal, sys, threading
from tracegrad.compose.loopback import inherited_fd
from tracegrad.producers.asgi import serve
async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while True:
            kind = (await receive())["type"]
            await send({"type": kind + ".complete"})
            if kind == "lifespan.shutdown":
                return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
serve(app, host="127.0.0.1", port=int(sys.argv[1]), fd=inherited_fd(os.environ), stop=stop, name="test")
"""


def gateway(port: int) -> ProcessSpec:
    """A real server, started as gateways are."""
    argv = (sys.executable, "-c", GATEWAY, str(port))
    return ProcessSpec(name="gateway", argv=argv, listens_at=("127.0.0.1", port))


def answer(port: int) -> int:
    """The status of one request on a connection of its own, tried once."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}", timeout=30) as response:
        return int(response.status)


def test_who_connects_while_a_gateway_is_restarted_is_answered_by_its_successor(tmp_path: Path) -> None:
    """Nobody is refused between a SIGKILL and the new process; when the run has ended, the port is closed."""
    port, answered = free_port(), list[int]()
    supervisor = Supervisor([gateway(port)], logs=tmp_path)

    def ask_and_kill() -> None:
        try:
            for _ in range(2):
                pid = until(lambda: supervisor.statuses()[0].pid)
                answered.append(answer(port))
                os.kill(pid, signal.SIGKILL)
                until(lambda: supervisor.statuses()[0].pid is None)
                with ThreadPoolExecutor(20) as clients:
                    answered.extend(clients.map(answer, [port] * 40))
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    client = threading.Thread(target=ask_and_kill)
    client.start()
    outcome = supervisor.run()
    client.join(30)
    assert outcome.kind is OutcomeKind.STOPPED and answered == [200] * 82
    assert supervisor.statuses()[0].num_restarts == 2
    with pytest.raises(urllib.error.URLError, match="refused"):
        answer(port)


def test_an_address_that_is_taken_is_the_gateways_to_explain(tmp_path: Path) -> None:
    """The supervisor goes on; the child's own error is what people read."""
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        backoff = Backoff(first_s=0.01, greatest_s=0.02, max_in_a_row=2)
        outcome = Supervisor([gateway(port)], logs=tmp_path, backoff=backoff).run()
    assert outcome.kind is OutcomeKind.FATAL and f"expected a free port at 127.0.0.1:{port}" in outcome.why
