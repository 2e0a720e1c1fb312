"""A proxy in the environment: this machine is reached without it, by us and by the agents that we start."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tracegrad.compose import cli
from tracegrad.compose.answers import answers
from tracegrad.compose.run import serve


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """A service on loopback."""
    with HTTPServer(("127.0.0.1", 0), _Health) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def _by_command(look: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(cli, "app", lambda **_: look())
    with pytest.raises(SystemExit):
        cli.main()


def _by_process(look: Callable[[], None], patch: pytest.MonkeyPatch) -> None:
    patch.setattr(serve, "_check_name", lambda *_: look())
    patch.setattr(serve, "_set_up_logging", lambda *_: None)
    patch.setattr("signal.signal", lambda *_: None)
    serve.serve("otlp", Path("nowhere"))


@pytest.mark.parametrize("start", [_by_command, _by_process])
@pytest.mark.parametrize("excepted", ["", "example.org", "*"])
def test_a_proxy_does_not_stand_before_loopback(
    start: Callable[[Callable[[], None], pytest.MonkeyPatch], None],
    excepted: str,
    url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In neither client that we use, nor in what agents inherit; what the user excepted stays so."""
    for name in [name for name in os.environ if "proxy" in name.lower()]:
        monkeypatch.delenv(name)
    for name, value in {"http_proxy": "http://127.0.0.1:9", "NO_PROXY": excepted, "no_proxy": ""}.items():
        monkeypatch.setenv(name, value)
    found: list[bool] = []

    def look() -> None:
        with httpx.Client(timeout=1) as client:
            found.append(_is_ok(client, url))
        found.append(answers(url))
        found.append(bool(urllib.request.proxy_bypass("example.org")) == bool(excepted))

    start(look, monkeypatch)
    assert found == [True, True, True]


def _is_ok(client: httpx.Client, url: str) -> bool:
    try:
        return client.get(url).status_code == 200
    except httpx.HTTPError:
        return False
