"""Serves `/metrics` of this process on loopback, and tells Prometheus where (its file_sd).

    runs/_metrics/NAME.trainer.json    [{"targets": ["127.0.0.1:40123"], "labels": {"run": ..., "process": "trainer"}}]

In: the process's Metrics. Out: its text, from threads of their own, at a free port; the file, replaced at each start,
so that a target follows its process. Invariants: the work loop is never waited for and never waits; the text is made
once a second at most, however often it is asked for; who sends nothing holds nobody else up; other sites' pages are
refused (Host). Failure: where it cannot listen or write, the process goes on, and its log says so.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import socketserver
import threading
import time
from collections import deque
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import urlsplit

from tracegrad.schemas.metrics import Metrics

from ..files import write_atomically
from ..loopback import LOOPBACK

_logger = logging.getLogger(__name__)
_HOSTS = {LOOPBACK, "localhost"}
_PORT = 0
"""Any that is free."""
_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_EVERY_S = 1.0
_TIMEOUT_S = 5.0
"""For each read and write of a connection."""
_PAUSE_S = 0.5
_MAX_CONNECTIONS = 8
"""At once; one more takes the place of the oldest, which a scrape is not: it is over in milliseconds."""


@contextlib.contextmanager
def serving_metrics(folder: Path, *, run: str, process: str, metrics: Metrics) -> Iterator[None]:
    """Serves and announces them while the block runs."""
    file = target_file(folder, run, process)
    server: _Server | None = None
    try:
        server = _Server(metrics)
        announce(file, f"http://{LOOPBACK}:{server.server_address[1]}", run=run, process=process)
    except OSError as error:
        _logger.warning("no /metrics of this process: %s", error)
    try:
        yield
    finally:
        withdraw(file)
        if server is not None:
            server.close()


def target_file(folder: Path, run: str, process: str) -> Path:
    """Of a process, in the folder that several runs share."""
    return folder / f"{run}.{process}.json"


def announce(file: Path, url: str, *, run: str, process: str) -> None:
    """Writes the file of one target; `instance` does not change with the port, so that its series go on. OSError."""
    parts = urlsplit(url)
    labels = {"run": run, "process": process, "instance": f"{run}/{process}"}
    if parts.scheme != "http":
        labels["__scheme__"] = parts.scheme
    if parts.path.strip("/"):
        labels["__metrics_path__"] = f"{parts.path.rstrip('/')}/metrics"
    file.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(file, json.dumps([{"targets": [parts.netloc], "labels": labels}]).encode() + b"\n")


def withdraw(file: Path) -> None:
    """Its port may soon be another program's."""
    with contextlib.suppress(OSError):
        file.unlink(missing_ok=True)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 64

    def __init__(self, metrics: Metrics) -> None:
        super().__init__((LOOPBACK, _PORT), _Handler)
        self._metrics = metrics
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        self._text = b""
        self._made_at = -_EVERY_S
        threading.Thread(target=self.serve_forever, name="metrics", daemon=True).start()

    def close(self) -> None:
        """Nobody is answered any more."""
        self.shutdown()
        self.server_close()

    def get_request(self) -> tuple[socket.socket, object]:
        try:
            return super().get_request()
        except OSError:
            # Out of files: who waits is still there, and would be asked for at once.
            time.sleep(_PAUSE_S)
            raise

    def text(self) -> bytes:
        from .exposition import exposition

        with self._lock:
            if time.monotonic() - self._made_at >= _EVERY_S:
                self._text, self._made_at = exposition(self._metrics), time.monotonic()
            return self._text

    def process_request(self, request: socket.socket | tuple[bytes, socket.socket], address: object) -> None:
        assert isinstance(request, socket.socket)
        self._open.append(request)
        while len(self._open) > _MAX_CONNECTIONS:
            with contextlib.suppress(OSError, IndexError):
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        super().process_request(request, address)

    def shutdown_request(self, request: socket.socket | tuple[bytes, socket.socket]) -> None:
        with contextlib.suppress(ValueError):
            self._open.remove(request)  # type: ignore[arg-type]
        super().shutdown_request(request)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that leaves is no error of ours."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S
    server: _Server
    server_version, sys_version = "tracegrad", ""

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or LOOPBACK).rpartition(":")[0] or self.headers.get("Host", LOOPBACK)
        if host not in _HOSTS:
            self.send_error(403, "expected a Host on loopback")
        elif urlsplit(self.path).path != "/metrics":
            self.send_error(404, "expected /metrics")
        else:
            body = self.server.text()
            self.send_response(200)
            self.send_header("Content-Type", _CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not in the process's log."""
