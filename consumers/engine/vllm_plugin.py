"""What the vLLM server loads: versions from verified folders, a guard of its routes, the threads asked for, no orphans.

In: `load_version(path, names)` by the engine's `/collective_rpc`, of a folder that weight sync has verified. Out: the
running model holds exactly the tensors of those files, kernels and captured graphs kept; reading and placing them is
vLLM's own `reload_weights`. Invariant: names and shapes are those that the engine was started with; that is checked
before the model is touched, so a refused folder leaves the old weights serving.
Failure: an error in the middle of a load leaves a mixture of both versions; the caller keeps the engine paused until
a later load succeeds. Requests must be paused during a load.

vLLM takes `VersionLoader` by `--worker-extension-cls`, `Guard` by `--middleware`. Imports nothing of ours, and torch,
vllm and safetensors only when called, so that this one file can be laid beside any vLLM installation
(compose/engine/server.py does). Run as the main module it is vLLM's own API server, with the difference that the
processes which that spawns import this module first and so never outlive it.
"""

from __future__ import annotations

import hmac
import importlib
import logging
import os
import runpy
import signal
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

logger = logging.getLogger("vllm.tracegrad")
"""Below vLLM's own, the only one that it gives a handler."""

_SERVER = "vllm.entrypoints.openai.api_server"
_PARENT = "TRACEGRAD_ENGINE_PARENT"
"""Each process of the engine tells its children by this who their parent is."""
_PARENT_POLL_S = 0.5
TOKEN = "TRACEGRAD_ENGINE_TOKEN"
"""What `Guard` asks for. Not an argument: every user of a machine sees those."""
_OPEN = ("/health", "/metrics")
"""GET of these tells that the engine lives and how much it has served, to supervisors and scrapers without a token."""
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"

TensorIndex = dict[str, tuple[Path, tuple[int, ...]]]
"""Tensor name -> its file and shape."""


class VersionLoader:
    """Methods that vLLM adds to its worker, whose `vllm_config`, `model_runner` and `reload_weights` they use."""

    vllm_config: Any
    model_runner: Any
    reload_weights: Any
    finish_weight_update: Any

    def can_load_versions(self) -> bool:
        """For whoever asks whether this class was added."""
        return True

    def load_version(self, path: str, names: Sequence[str]) -> None:
        """Loads these safetensors files of a folder. Raises ValueError, OSError or safetensors' own."""
        started = time.monotonic()
        config = self.vllm_config.model_config
        is_tied = bool(getattr(config.hf_text_config, "tie_word_embeddings", False))
        index = read_index([Path(path) / name for name in names])
        base = sorted(Path(config.model).glob("*.safetensors"))  # empty for the name of a hub's model
        if base:
            check_index(index, read_index(base), is_tied=is_tied)
        try:
            self.reload_weights(weights_iterator=read_tensors(index, is_tied=is_tied))
        except BaseException:  # whatever ended it, vLLM has buffered some of it
            _restore(self.model_runner.get_model())
            raise
        # `/finish_weight_update` labels once the workers agree; vLLM's own refuse, since no transfer of theirs began.
        # So a process that did not load, a restarted engine, cannot get the label of one that did.
        self.finish_weight_update = _agree
        _use_all_threads()
        logger.info("loaded %d tensors of %s in %.3f s", len(index), Path(path).name, time.monotonic() - started)


class Guard:
    """ASGI middleware: whoever does not show the engine's token as a Bearer key gets 401, on every route but two.

    The development routes pause the engine and change its weights, and vLLM's own `--api-key` asks for nothing there.
    Without a token in the environment nothing is answered: ValueError at the first request.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        token = os.environ.get(TOKEN, "")
        if not token:
            raise ValueError(f"expected the engine's token in {TOKEN}, got none; set it, or leave this middleware out")
        self._app = app
        self._token = token.encode()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self._admits(scope):
            await self._app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            headers = [(b"content-type", b"application/json"), (b"www-authenticate", b"Bearer")]
            await send({"type": "http.response.start", "status": 401, "headers": headers})
            await send({"type": "http.response.body", "body": b'{"error": "expected the token of this engine"}'})

    def _admits(self, scope: dict[str, Any]) -> bool:
        if scope.get("method") == "GET" and scope["path"] in _OPEN:
            return True
        shown = [value.partition(b" ") for name, value in scope["headers"] if name == b"authorization"]
        return any(kind.lower() == b"bearer" and hmac.compare_digest(key, self._token) for kind, _, key in shown)


def _agree() -> None:
    """The weights are those of the last load."""


def _end_with_parent(parent_pid: int) -> None:
    """An engine core whose API server was SIGKILLed would hold a model's memory, for minutes or for ever.

    The parent's number is polled, because the kernel's death signal looks at the thread that forked, not the process.
    """

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name="tracegrad-parent", daemon=True).start()


def _use_all_threads() -> None:
    """On a CPU: the threads that OMP_NUM_THREADS asks for.

    vLLM's CPU worker forbids torch.set_num_threads while a caller holds it at 1 for the start, and so stays at 1.
    """
    torch: Any = importlib.import_module("torch")
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and not torch.accelerator.is_available() and torch.get_num_threads() != int(asked):
        logger.info("%d threads instead of %d", int(asked), torch.get_num_threads())
        torch._C.set_num_threads(int(asked))


def read_index(paths: Sequence[Path]) -> TensorIndex:
    """Names, files and shapes of all tensors in safetensors files; only headers are read."""
    safetensors: Any = importlib.import_module("safetensors")
    index: TensorIndex = {}
    for path in sorted(paths):
        with safetensors.safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                index[name] = (path, tuple(file.get_slice(name).get_shape()))
    if not index:
        raise ValueError(f"expected tensors in safetensors files, got none in {[path.name for path in paths]}")
    return index


def check_index(index: TensorIndex, expected: TensorIndex, *, is_tied: bool) -> None:
    """Raises ValueError unless names and shapes are those the engine was started with (a tied head aside)."""
    aside = {_HEAD} if is_tied else set()
    missing = sorted(expected.keys() - index.keys() - aside)
    unknown = sorted(index.keys() - expected.keys() - aside)
    if missing or unknown:
        raise ValueError(
            f"expected the {len(expected)} tensors of the engine's model, got {len(missing)} missing "
            f"{missing[:3]} and {len(unknown)} unknown {unknown[:3]}"
        )
    for name, (_, shape) in index.items():
        if name in expected and shape != expected[name][1]:
            raise ValueError(f"expected shape {expected[name][1]}, got {shape}, tensor {name}")


def read_tensors(index: TensorIndex, *, is_tied: bool) -> Iterator[tuple[str, Any]]:
    """The tensors one by one, mapped from their files.

    A tied head is always given under its own name: the CPU build keeps a packed copy of it that a load of the
    embedding alone leaves stale.
    """
    safetensors: Any = importlib.import_module("safetensors")
    for path in sorted({path for path, _ in index.values()}):
        with safetensors.safe_open(str(path), framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - safe_open is no mapping
                yield name, file.get_tensor(name)
    if is_tied and _HEAD not in index and _EMBEDDING in index:
        with safetensors.safe_open(str(index[_EMBEDDING][0]), framework="pt") as file:
            yield _HEAD, file.get_tensor(_EMBEDDING)


def _restore(model: Any) -> None:
    """Puts the kernels' own tensors back after a failed load, so that the next load starts clean.

    vLLM would otherwise keep what the failed load had buffered and count it towards the next one.
    """
    layerwise: Any = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()


if __name__ == "__mp_main__":
    # The parent's number comes from itself: it may be dead by now.
    _end_with_parent(int(os.environ.get(_PARENT, os.getppid())))
if __name__ in ("__main__", "__mp_main__"):
    os.environ[_PARENT] = str(os.getpid())
if __name__ == "__main__":
    # sys.modules["__main__"] stays this module: it is what a spawned process imports before anything else.
    runpy.run_module(_SERVER, run_name="__main__")
