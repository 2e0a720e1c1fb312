"""Stands between an agent and who answers for its model, and tells what passes: the tools that are asked for, what they
gave, and what is said.

In: an agent's requests, on loopback, with the key that it was given. Out: the same answers; `Turn`s, as they come.
Invariants: nothing is kept; a body that is no chat completion passes as it is and tells nothing. Failure: who does not
show the key gets 401, too long a body 413, and where nobody answers 502: the agent says what it makes of that.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import msgspec

from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.text import decode_json

from ..loopback import LOOPBACK

_MAX_BYTES = 8 << 20
_TIMEOUT = httpx.Timeout(300.0, connect=5.0)
_PASSED_ON = ("content-type", "accept", "traceparent", "tracestate", "baggage", "anthropic-version")
_CHAT = "/chat/completions"


class Turn(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that was said. Example: Turn(kind="tool_call", name="calc", text='{"expr": "14*2"}')."""

    kind: str
    """`tool_call`, `tool_result`, or `text`."""
    text: str
    name: str = ""
    """The tool's, of a call."""


def tool_results(request: Any) -> list[Turn]:
    """What tools gave since the model spoke last."""
    messages = request.get("messages") if isinstance(request, dict) else None
    found: list[Turn] = []
    for message in reversed(messages if isinstance(messages, list) else []):
        if not isinstance(message, dict) or message.get("role") != "tool":
            break
        found.append(Turn(kind="tool_result", text=_text(message.get("content"))))
    return found[::-1]


def said(answer: Any) -> list[Turn]:
    """What the model says in an answer: text, then the tools that it asks for."""
    try:
        message = answer["choices"][0]["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        turns = [Turn(kind="tool_call", name=_text(call["name"]), text=_text(call["arguments"])) for call in calls]
        content = _text(message.get("content")).strip()
    except (KeyError, IndexError, TypeError, AttributeError):
        return []
    return [*([Turn(kind="text", text=content)] if content else []), *turns]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value)


class Relay:
    """One listener, as a context manager; `base_url` and `key` are the agent's."""

    def __init__(self, url: str, token: str | None, show: Callable[[Turn], None], *, greedy: bool) -> None:
        """
        Args:
            url: of who answers, without `/v1`.
            token: what it asks for.
            show: called with each turn, by one thread at a time.
            greedy: asks for the likeliest tokens where the agent asks for no temperature.
        """
        self.key = secrets.token_hex(16)
        self._conversation = ""
        self._greedy, self._show, self._lock = greedy, show, threading.Lock()
        self._client = httpx.Client(base_url=url, timeout=_TIMEOUT, headers=bearer(token), trust_env=False)
        self._server = ThreadingHTTPServer((LOOPBACK, 0), _handler(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, name="relay", daemon=True)
        self.new_conversation()
        self.base_url = f"http://{LOOPBACK}:{self._server.server_port}"

    def __enter__(self) -> Relay:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._client.close()

    def new_conversation(self) -> None:
        """What comes from now on answers another question: calls of one are one episode at the gateway."""
        self._conversation = secrets.token_hex(16)

    def pass_on(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, str, bytes]:
        """Status, content type and body of the answer."""
        is_chat = path.partition("?")[0].endswith(_CHAT)
        request = _decoded(body) if is_chat else None
        if isinstance(request, dict) and self._greedy:
            body = json.dumps({"temperature": 0.0} | request).encode()
        self._tell(tool_results(request))
        passed = {name: value for name, value in headers.items() if name in _PASSED_ON}
        passed["x-conversation-id"] = self._conversation
        try:
            answer = self._client.request(method, path, content=body, headers=passed)
        except httpx.HTTPError as error:
            told = {"error": {"message": f"nobody answers for the model: {type(error).__name__}"}}
            return 502, "application/json", json.dumps(told).encode()
        if is_chat and answer.status_code == 200:
            self._tell(said(_decoded(answer.content)))
        return answer.status_code, answer.headers.get("content-type", "application/json"), answer.content

    def _tell(self, turns: list[Turn]) -> None:
        with self._lock:
            for turn in turns:
                self._show(turn)


def _decoded(body: bytes) -> Any:
    try:
        return decode_json(body)
    except (ValueError, RecursionError):
        return None


def _handler(relay: Relay) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 300.0

        def _any(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            shown = headers.get("x-api-key") or headers.get("authorization", "").partition(" ")[2]
            length = headers.get("content-length", "0")
            num_bytes = int(length) if length.isascii() and length.isdigit() else _MAX_BYTES + 1
            if num_bytes > _MAX_BYTES or not hmac.compare_digest(shown.encode(), relay.key.encode()):
                self.close_connection = True
                told = (413 if num_bytes > _MAX_BYTES else 401, "application/json", b"{}")
            else:
                told = relay.pass_on(self.command, self.path, headers, self.rfile.read(num_bytes))
            self.send_response(told[0])
            self.send_header("content-type", told[1])
            self.send_header("content-length", str(len(told[2])))
            self.end_headers()
            self.wfile.write(told[2])

        do_GET = do_POST = _any

        def log_message(self, *_: object) -> None:
            """Not on the terminal."""

    return Handler
