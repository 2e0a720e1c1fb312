"""vLLM's weight routes as a state machine without a network, and version folders of a few bytes.

In: requests through `client()`, or `answer` from a server around it. Out: answers as vLLM's. It remembers
what it would have sampled from: a load that fails half-way leaves `weights` as "mixed", and `violations` lists each
moment at which it was running on anything but whole weights under their own label. Faults: `restart`, `down_for`,
`fail_load`, `before_request`.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.versions import label, manifest
from tracegrad.consumers.engine.engine_control import VllmControl
from tracegrad.schemas.records.weights import VersionManifest
from tracegrad.trainer.store.durable import describe_files

BASE = "base"
_MAX_REQUESTS = 10_000


@dataclass(kw_only=True)
class FakeWeights:
    """One engine's weights: `base` under the label `default` when it starts."""

    label: str = "default"
    weights: str = BASE
    is_paused: bool = False
    num_loads: int = 0
    has_loaded: bool = False
    """This process, since its start."""
    requests: list[tuple[str, Any]] = field(default_factory=list)
    """(path, body) of everything asked, the last 10,000."""
    violations: list[str] = field(default_factory=list)
    down_for: int = 0
    """That many next requests find nobody listening."""
    fail_load: str | None = None
    """`clean`: refused before the weights are touched; `mixed`: fails half-way. For one load."""
    before_request: Callable[[str], None] = lambda path: None
    after_request: Callable[[str], None] = lambda path: None

    def restart(self, *, down_for: int = 1) -> None:
        """As after SIGKILL: base weights, not paused, away for some requests."""
        self.label, self.weights, self.is_paused, self.down_for = "default", BASE, False, down_for
        self.has_loaded = False

    @property
    def paths(self) -> list[str]:
        """What was asked for, without questions after its state."""
        return [path for path, _ in self.requests if path not in ("/weight_info", "/is_paused")]

    def client(self) -> httpx.Client:
        """Speaks to this engine."""
        # verify=False saves the loading of certificates, 20 ms a client.
        return httpx.Client(base_url="http://engine", transport=httpx.MockTransport(self._handle), verify=False)

    def control(self) -> VllmControl:
        """What weight sync uses."""
        return VllmControl(self.client())

    def _handle(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path
        self.before_request(path)
        if self.down_for:
            self.down_for -= 1
            raise httpx.ConnectError("refused", request=request)
        body = json.loads(request.content or b"{}")
        self.requests.append((path, body))
        if path == "/pause":
            assert dict(request.url.params) == {"mode": "keep", "clear_cache": "true"}
        status, answer = self.answer(path, body)
        self.look()
        self.after_request(path)
        return httpx.Response(status, json=answer)

    def look(self) -> None:
        """Notes a violation when it would now sample from what its label does not say."""
        expected = BASE if self.label == "default" else self.label
        if not self.is_paused and self.weights != expected:
            self.violations.append(f"running on {self.weights} under {self.label}")

    def answer(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        """Status and body."""
        match path:
            case "/weight_info":
                return 200, {"weight_version": self.label}
            case "/is_paused":
                return 200, {"is_paused": self.is_paused}
            case "/pause" | "/resume":
                self.is_paused = path == "/pause"
            case "/collective_rpc":
                return self._load(*body["args"]) if body["method"] == "load_version" else (200, {})
            case "/finish_weight_update":
                if not self.has_loaded:
                    return 500, {"error": {"message": "finish_weight_update called without a matching start"}}
                self.label = str(body["weight_version"])
            case "/reset_prefix_cache" | "/health":
                pass
            case _:
                return 404, {}
        return 200, {}

    def _load(self, folder: str, names: list[str]) -> tuple[int, dict[str, Any]]:
        failure, self.fail_load = self.fail_load, None
        if failure is not None:
            if failure == "mixed":
                self.weights = "mixed"
            return 500, {"error": {"message": "expected the tensors of the engine's model, got another"}}
        self.weights = b"".join((Path(folder) / name).read_bytes() for name in names).decode(errors="replace")
        self.num_loads += 1
        self.has_loaded = True
        return 200, {"results": [None]}


def write_version(root: Path, version: int, *, epoch: int = 1, policy: str = "policy") -> VersionManifest:
    """A version folder whose weights are its label, and its manifest."""
    folder = root / label(version, epoch)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_text(folder.name)
    return manifest(version, epoch, policy=policy, uri=str(folder), files=describe_files(folder))
