"""What an engine says it has served, by its own metrics page."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.serving import free_port
from tracegrad.compose.answers import num_served

PAGE = b"""# HELP vllm:request_success_total Count of successfully processed requests.
# TYPE vllm:request_success_total counter
vllm:request_success_total{engine="0",finished_reason="stop",model_name="policy"} 3.0
vllm:request_success_total{engine="0",finished_reason="length",model_name="policy"} 1.2e+02
vllm:request_success_created{engine="0",finished_reason="stop",model_name="policy"} 1.7e+09
"""


class _Metrics(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/metrics" else 404)
        self.end_headers()
        self.wfile.write(PAGE)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def engine() -> Iterator[str]:
    """Serves vLLM's page."""
    with HTTPServer(("127.0.0.1", 0), _Metrics) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_requests_served_are_summed_over_how_they_ended(engine: str) -> None:
    """An engine that does not answer, or not in time, says nothing."""
    assert num_served(engine) == 123
    assert num_served(engine + "/no") is None
    assert num_served(f"http://127.0.0.1:{free_port()}") is None
