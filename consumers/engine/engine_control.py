"""What weight sync asks of an engine, a protocol; and vLLM's, by its development routes.

In: a VersionManifest. Out: the engine holds it under its label, still paused. Errors: UnavailableError when the engine
is away, dead or too slow (its state is then unknown: look again); RecordError (reason `load_failed`) when it lives and
refused the version (its weights may then be a mixture: it must stay paused until another load succeeds).
"""

from __future__ import annotations

import contextlib
from typing import Any, Protocol

import httpx
import msgspec

from tracegrad.schemas.beat import WITHIN_S, waiting
from tracegrad.schemas.errors import RecordError, UnavailableError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.weights import VersionManifest, WeightKind

_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
"""For a question, or a pause (which waits for the engine's present step)."""
_LOAD_TIMEOUT = httpx.Timeout(600.0, connect=5.0)
"""For reading the weights."""


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """What an engine says of itself. Example: EngineStatus(label="7c1f3e9a-v18-e4", is_paused=False)."""

    label: str
    """`default` after its start."""
    is_paused: bool


class EngineControl(Protocol):
    """Which weights one engine serves, whether it is paused, and how to change both. Blocking; one caller at a time."""

    @property
    def kinds(self) -> frozenset[WeightKind]:
        """Of versions, those that it loads."""

    def status(self) -> EngineStatus:
        """Label and pause, from the engine's own core."""

    def load(self, manifest: VersionManifest, folder: str) -> None:
        """Pauses (requests in flight are kept and go on later), loads, labels. The engine stays paused."""

    def resume(self) -> None:
        """Lets requests go on."""


class VllmControl:
    """The control of a vLLM server that has `vllm_plugin.py`; methods as `EngineControl`'s.

    Args:
        client: an HTTP client whose base URL is the engine's; owned by the caller.
    """

    kinds: frozenset[WeightKind] = frozenset({"full"})

    def __init__(self, client: httpx.Client) -> None:
        self._client = client

    def status(self) -> EngineStatus:
        try:
            return EngineStatus(
                label=self._request("GET", "/weight_info").json()["weight_version"],
                is_paused=self._request("GET", "/is_paused").json()["is_paused"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UnavailableError(f"expected weight_info and is_paused of a vLLM server, got {error!r}") from error

    def load(self, manifest: VersionManifest, folder: str) -> None:
        self._request("POST", "/pause", params={"mode": "keep", "clear_cache": "true"})
        names = [file.name for file in manifest.files if file.name.endswith(".safetensors")]
        call = {"method": "load_version", "args": [folder, names]}
        self._request("POST", "/collective_rpc", json=call, is_load=True)
        # Restarted after its pause, it was serving while it loaded, and may have cached what the old weights made.
        if not self.status().is_paused:
            raise UnavailableError(f"engine: restarted before it loaded {manifest.label}")
        # Restarted after the load, it refuses: unlike /update_weight_version this labels only what a load went before.
        self._request("POST", "/finish_weight_update", json={"weight_version": manifest.label})
        self._request("POST", "/reset_prefix_cache")

    def resume(self) -> None:
        self._request("POST", "/resume")

    def _request(self, method: str, path: str, *, is_load: bool = False, **content: Any) -> httpx.Response:
        timeout = _LOAD_TIMEOUT if is_load else _TIMEOUT
        waiting(f"the engine: {path}", WITHIN_S + (timeout.read or 0.0))
        try:
            response = self._client.request(method, path, timeout=timeout, **content)
        except httpx.HTTPError as error:
            raise UnavailableError(f"engine: {path} gave {type(error).__name__}") from error
        if response.status_code == 200:
            return response
        if response.status_code in (401, 403):
            raise UnavailableError(f"engine: {path} gave status {response.status_code}; see [engine] token")
        if response.status_code in (404, 405):
            raise UnavailableError(
                f"engine: {path} gave status {response.status_code}; start it with VLLM_SERVER_DEV_MODE=1"
            )
        refusal = f"engine: {path} gave status {response.status_code}: {_reason(response)}"
        # Only the load is about the version; another refusal says that the engine is not as it was left.
        if is_load and self._is_alive():
            raise RecordError(refusal, reason=Reason.LOAD_FAILED)
        raise UnavailableError(refusal)

    def _is_alive(self) -> bool:
        """Asked after a 500, when uvicorn closes the connection: a first try may be made on the closed one."""
        # Not by `retry`: no wait cures it, and the second failure is an answer.
        for _ in range(2):
            with contextlib.suppress(httpx.HTTPError):
                response = self._client.get("/health", timeout=_TIMEOUT)
                return response.status_code == 200
        return False


def _reason(response: httpx.Response) -> str:
    """The engine's own words about a version; they name files and tensors, never prompts."""
    try:
        error = response.json()["error"]
        text = error["message"] if isinstance(error, dict) else error
    except (KeyError, TypeError, ValueError):
        text = response.text
    return str(text)[:500]
