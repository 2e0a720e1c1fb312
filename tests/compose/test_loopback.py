"""This machine's own addresses are reached without a proxy, by us and by agents; what an engine there has served."""

from __future__ import annotations

import os
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import httpx
import pytest

from tests.serving import free_port
from tracegrad.compose import cli
from tracegrad.compose.loopback import answers, num_served
from tracegrad.compose.run import serve

PAGE = b"""# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="policy"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="policy"} 1.2e+02
vllm:request_success_created{engine="0",finished_reason="stop",model_name="policy"} 1.7e+09
"""


class _Service(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path in ("/", "/metrics") else 404)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    """A service on loopback."""
    with HTTPServer(("127.0.0.1", 0), _Service) as server:
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
    monkeypatch.setattr("urllib.request._opener", None)  # it remembers the proxies of its first use
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


def test_requests_served_are_summed_over_how_they_ended(url: str) -> None:
    """An engine that does not answer, or not in time, says nothing."""
    assert num_served(url) == 123
    assert num_served(url + "/no") is None
    assert num_served(f"http://127.0.0.1:{free_port()}") is None
