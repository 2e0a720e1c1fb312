"""A real vLLM engine: a model's folder, our plug-in, updates from files.

    engine = RunningEngine(folder, model)
    with started(engine):                                            # mark the test `engine`
        manifest = engine.publish_version(state_dict, version=3)     # a folder under engine.weight_root, hashed
        engine.load(manifest)                                        # or let weight sync find it
        engine.generate([1, 2, 3], max_tokens=8)                     # ids, logprobs, version spans

A start takes about 20 s and 1.5 GB; `started` starts several at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.serving import ENGINE_TOKEN, free_port, until
from tests.tiny_models import save_version
from tests.versions import label, manifest
from tracegrad.compose.die_with_parent import guarded
from tracegrad.compose.engine.config import EngineConfig, EngineHandles
from tracegrad.compose.engine.failed_start import explain
from tracegrad.compose.engine.server import engine_argv, engine_environment, probe
from tracegrad.compose.loopback import answers
from tracegrad.consumers.engine.engine_control import VllmControl
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.records.weights import VersionManifest
from tracegrad.trainer.store.durable import describe_files

SMALL = EngineConfig(max_model_len=512, kv_cache_bytes=64 << 20, args=("--max-num-seqs", "32"))


class RunningEngine:
    """An engine process and what a test wants of it."""

    def __init__(self, folder: Path, model: Path, config: EngineConfig = SMALL) -> None:
        self.model = model
        self.config = config
        self.weight_root = folder / "weights"
        self.weight_root.mkdir(parents=True)
        self.log_path = folder / "engine.log"
        self.handles = EngineHandles(
            policy=PolicyConfig(model=str(model)),
            work_dir=str(folder),
            port=free_port(),
            token=ENGINE_TOKEN,
        )
        self.url = f"http://127.0.0.1:{self.handles.port}"
        self.client = httpx.Client(base_url=self.url, timeout=120.0, headers=bearer(ENGINE_TOKEN))
        self.control = VllmControl(self.client)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Of the API server, which leads a session of its own."""
        assert self._process is not None
        return self._process.pid

    def launch(self) -> None:
        """Starts the process, from the caller's thread, with which it would die."""
        is_cpu = probe(self.config)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                guarded(engine_argv(self.config, self.handles, is_cpu=is_cpu)),
                env=engine_environment(self.config, self.handles, os.environ, is_cpu=is_cpu),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Until it is healthy."""

        def is_healthy() -> bool:
            said = self.log_path.read_text(errors="replace")
            assert self._process is not None
            assert self._process.poll() is None, f"the engine ended: {explain(said)}\n{said[-3000:]}"
            return answers(f"{self.url}/health")

        until(is_healthy, 300, what=f"a healthy engine ({self.log_path})")

    def kill(self) -> None:
        """SIGKILL to the API server alone: its children must end by themselves."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)

    def stop(self) -> None:
        """SIGTERM, then whatever is left of its session."""
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(20)
        self._process = None

    def publish_version(self, state_dict: dict[str, Any], version: int, epoch: int = 1) -> VersionManifest:
        """Writes a version folder with exactly these tensors; the caller puts the manifest on `weights`."""
        folder = self.weight_root / label(version, epoch)
        save_version(self.model, folder, state_dict)
        return manifest(version, epoch, uri=str(folder), files=describe_files(folder))

    def load(self, manifest: VersionManifest) -> None:
        """What weight sync does, without its topics."""
        self.control.load(manifest, manifest.uri)
        self.control.resume()

    def generate(self, token_ids: list[int], **sampling: Any) -> dict[str, Any]:
        """The answer's first choice, its logprobs as `logprobs`: a list of floats."""
        response = self.client.post("/inference/v1/generate", json=generate_body(token_ids, **sampling))
        assert response.status_code == 200, response.text[:300]
        choice: dict[str, Any] = response.json()["choices"][0]
        choice["logprobs"] = [token["logprob"] for token in choice["logprobs"]["content"]]
        return choice


def generate_body(token_ids: list[int], **sampling: Any) -> dict[str, Any]:
    """A request of ids that samples at temperature 1 and gives logprobs."""
    parameters = {"temperature": 1.0, "max_tokens": 8, "logprobs": 0, "ignore_eos": True, **sampling}
    return {"model": "policy", "token_ids": token_ids, "sampling_params": parameters}


@contextlib.contextmanager
def started(*engines: RunningEngine) -> Iterator[None]:
    """They start at once, since each start keeps one core busy, and end at the end."""
    try:
        for engine in engines:
            engine.launch()
        for engine in engines:
            engine.wait()
        yield
    finally:
        for engine in engines:
            engine.stop()
            engine.client.close()
