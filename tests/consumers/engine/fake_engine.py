"""vLLM's weight routes as a state machine without a network, and version folders of a few bytes.

In: requests through `FakeEngine.client()`. Out: answers as vLLM's. It remembers what it would have sampled from: a load
that fails half-way leaves `weights` as "mixed", and `violations` lists each moment at which it was running on anything
but whole weights under their own label. Faults: `restart`, `down_for`, `fail_update`, `before_request`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tests.versions import label, manifest
from tracegrad.consumers.engine.engine_control import EngineControl
from tracegrad.schemas.records.weights import VersionManifest, WeightFile

__all__ = ["FakeEngine", "write_version"]

BASE = "base"


class FakeEngine:
    """One engine that serves `base` weights under the label `default` when it starts."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.requests: list[str] = []
        self.num_loads = 0
        self.down_for = 0
        """That many next requests find nobody listening."""
        self.fail_update: str | None = None
        """`clean`: refused before the weights are touched; `mixed`: fails half-way. For one load."""
        self.before_request: Callable[[str], None] = lambda path: None
        self.after_request: Callable[[str], None] = lambda path: None
        self.restart(down_for=0)

    def restart(self, *, down_for: int = 1) -> None:
        """As after SIGKILL: base weights, not paused, away for some requests."""
        self.label = "default"
        self.weights = BASE
        self.is_paused = False
        self.down_for = down_for

    def client(self) -> httpx.Client:
        """Speaks to this engine."""
        # verify=False saves the loading of certificates, 20 ms a client.
        return httpx.Client(base_url="http://engine", transport=httpx.MockTransport(self._handle), verify=False)

    def control(self) -> EngineControl:
        """What weight sync uses."""
        return EngineControl(self.client(), timeout_s=1.0, load_timeout_s=1.0)

    def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.before_request(path)
        if self.down_for:
            self.down_for -= 1
            raise httpx.ConnectError("refused", request=request)
        self.requests.append(path)
        body = json.loads(request.content) if request.content else {}
        response = self._answer(path, body, dict(request.url.params))
        self.look()
        self.after_request(path)
        return response

    def look(self) -> None:
        """Notes a violation when it would now sample from what its label does not say."""
        if not self.is_paused:
            expected = BASE if self.label == "default" else self.label
            if self.weights != expected:
                self.violations.append(f"running on {self.weights} under {self.label}")

    def _answer(self, path: str, body: dict[str, object], params: dict[str, str]) -> httpx.Response:
        match path:
            case "/weight_info":
                return httpx.Response(200, json={"weight_version": self.label})
            case "/is_paused":
                return httpx.Response(200, json={"is_paused": self.is_paused})
            case "/pause":
                assert params == {"mode": "keep", "clear_cache": "true"}
                self.is_paused = True
            case "/resume":
                self.is_paused = False
            case "/collective_rpc":
                return self._load(body)
            case "/update_weight_version":
                self.label = str(body["new_version"])
            case "/reset_prefix_cache" | "/health":
                pass
            case _:
                return httpx.Response(404)
        return httpx.Response(200, json={})

    def _load(self, body: dict[str, Any]) -> httpx.Response:
        assert body["method"] == "load_version"
        folder, names = body["args"]
        failure, self.fail_update = self.fail_update, None
        if failure is not None:
            if failure == "mixed":
                self.weights = "mixed"
            return _failure("expected the tensors of the engine's model, got another")
        self.weights = "".join((Path(folder) / name).read_text() for name in names)
        self.num_loads += 1
        return httpx.Response(200, json={})


def _failure(message: str) -> httpx.Response:
    return httpx.Response(500, json={"error": {"message": message}})


def write_version(root: Path, version: int, *, epoch: int = 1, policy: str = "policy") -> VersionManifest:
    """A version folder whose weights are its label, and its manifest."""
    folder = root / label(version, epoch)
    folder.mkdir(parents=True, exist_ok=True)
    files = []
    for name, text in (("config.json", "{}"), ("model.safetensors", label(version, epoch))):
        (folder / name).write_text(text)
        data = text.encode()
        files.append(WeightFile(name=name, bytes=len(data), sha256=hashlib.sha256(data).hexdigest()))
    return manifest(version, epoch, policy=policy, uri=str(folder), files=tuple(files))
