"""What the vLLM server loads: weights from a verified folder, a calm message queue, no orphans, bfloat16 on any CPU.

In: `update_weights {"update_info": {"path": ..., "files": [{"name", "bytes"}]}}` on the engine's development routes.
Out: the running model holds exactly the tensors of that folder, kernels and captured graphs kept.
Invariant: the folder lies under TRACEGRAD_WEIGHT_ROOT and holds the very names and shapes that the engine was started
with; that is checked before the model is touched, so a refused folder leaves the old weights serving.
Failure: an error in the middle of a load leaves a mixture of both versions; the caller keeps the engine paused until
a later load succeeds. Requests must be paused during a load.

Registered by the entry point `vllm.general_plugins`; vLLM calls `register` in each of its processes. Inert unless
TRACEGRAD_ENGINE=1. Imports nothing of ours, and torch, vllm and safetensors only when called, so that this one file
can be laid beside any vLLM installation (compose/engine/server.py does). Run as the main module it is vLLM's own API
server, with the difference that the processes which that spawns import this module first and so never outlive it.
"""

from __future__ import annotations

import functools
import importlib
import logging
import math
import multiprocessing
import os
import runpy
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["ACTIVATION", "BACKEND", "WEIGHT_ROOT", "register"]

logger = logging.getLogger("vllm.tracegrad")
"""Below vLLM's own, the only one that it gives a handler."""

ACTIVATION = "TRACEGRAD_ENGINE"
WEIGHT_ROOT = "TRACEGRAD_WEIGHT_ROOT"
BACKEND = "tracegrad_files"

_SERVER = "vllm.entrypoints.openai.api_server"
_SPIN_SLEEP_S = 50e-6
"""vLLM polls its message queue with sched_yield; on few cores that starves the other processes for seconds."""
_PARENT = "TRACEGRAD_ENGINE_PARENT"
"""Each process of the engine tells its children by this who their parent is."""
_PARENT_POLL_S = 0.5
_CHUNK_NUMEL = 1 << 20
"""Of a weight that is widened at a time: 4 MiB in float32, which a CPU's cache keeps for the product."""
_HEAD = "lm_head.weight"
_EMBEDDING = "model.embed_tokens.weight"

TensorIndex = dict[str, tuple[Path, tuple[int, ...]]]
"""Tensor name -> its file and shape."""


def register() -> None:
    """Called by vLLM in each of its processes, perhaps more than once."""
    if os.environ.get(ACTIVATION) != "1":
        return
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:
        _end_with_parent(parent.pid)
    _calm_message_queue()
    _widen_bfloat16_products()
    factory: Any = importlib.import_module("vllm.distributed.weight_transfer.factory")
    registry = factory.WeightTransferEngineFactory
    if BACKEND not in registry._registry:
        registry.register_engine(BACKEND, _make_transfer_engine())


def _end_with_parent(parent_pid: int) -> None:
    """An engine core whose API server was SIGKILLed would hold a model's memory, for minutes or for ever.

    The parent's number is polled, because the kernel's death signal looks at the thread that forked, not the process.
    """
    name = f"tracegrad-parent-{parent_pid}"
    if any(thread.name == name for thread in threading.enumerate()):
        return

    def watch() -> None:
        while os.getppid() == parent_pid:
            time.sleep(_PARENT_POLL_S)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=watch, name=name, daemon=True).start()


def _calm_message_queue() -> None:
    queue: Any = importlib.import_module("vllm.distributed.device_communicators.shm_broadcast")
    queue.sched_yield = lambda: time.sleep(_SPIN_SLEEP_S)


def _widen_bfloat16_products() -> None:
    """On a CPU without bfloat16 instructions, where a product in bfloat16 takes 7 times as long as in float32.

    The result is that of bfloat16 arithmetic with float32 sums: products of two bfloat16 numbers are exact in float32.
    Layers that are not plain bfloat16 matrices stay vLLM's.
    """
    torch: Any = importlib.import_module("torch")
    capabilities = torch.cpu.get_capabilities()
    has = any(capabilities.get(name) for name in ("avx512_bf16", "amx_bf16", "bf16"))
    if has or torch.accelerator.is_available():
        return
    utils: Any = importlib.import_module("vllm.model_executor.layers.utils")
    dispatch = getattr(utils, "dispatch_cpu_unquantized_gemm", None)
    if dispatch is None:
        logger.warning("this vLLM chooses its CPU kernels elsewhere: bfloat16 stays slow on this CPU")
    elif dispatch.__module__ == utils.__name__:  # else registered before
        utils.dispatch_cpu_unquantized_gemm = _make_dispatch(dispatch)


def _make_dispatch(dispatch: Callable[[Any, bool], None]) -> Callable[[Any, bool], None]:
    """vLLM's choice of a layer's kernel, but for bfloat16 matrices."""
    torch: Any = importlib.import_module("torch")
    widened_linear = make_widened_linear()
    say_once = functools.cache(logger.info)

    def dispatch_widened(layer: Any, remove_weight: bool) -> None:
        weight = layer.weight
        if weight.is_meta or weight.ndim != 2 or weight.dtype != torch.bfloat16:
            dispatch(layer, remove_weight)
        else:
            layer.cpu_linear = widened_linear
            say_once("this CPU has no bfloat16 instructions: products are computed in float32")

    return dispatch_widened


def make_widened_linear() -> Callable[[Any, Any, Any], Any]:
    """x [..., in], weight [out, in], bias [out] or None, in bfloat16 -> [..., out], summed in float32, rounded once."""
    torch: Any = importlib.import_module("torch")

    def widened_linear(x: Any, weight: Any, bias: Any) -> Any:
        wide, product = x.float(), x.new_empty(*x.shape[:-1], len(weight))
        rows = max(1, _CHUNK_NUMEL // weight.shape[1])
        for start in range(0, len(weight), rows):
            outputs = slice(start, start + rows)
            of_bias = None if bias is None else bias[outputs].float()
            product[..., outputs] = torch.nn.functional.linear(wide, weight[outputs].float(), of_bias)
        return product

    return widened_linear


def _use_all_threads() -> None:
    """On a CPU: the threads that OMP_NUM_THREADS asks for.

    vLLM's CPU worker forbids torch.set_num_threads while a caller holds it at 1 for the start, and so stays at 1.
    """
    torch: Any = importlib.import_module("torch")
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and not torch.accelerator.is_available() and torch.get_num_threads() != int(asked):
        logger.info("%d threads instead of %d", int(asked), torch.get_num_threads())
        torch._C.set_num_threads(int(asked))


def resolve_version(root: str, path: str) -> Path:
    """The real folder of a version. Raises ValueError unless it lies under the root, symbolic links followed."""
    if not root:
        raise ValueError(f"expected {WEIGHT_ROOT} to name the weights' folder, got nothing; set it for the engine")
    real_root = Path(os.path.realpath(root))
    folder = Path(os.path.realpath(path))
    if real_root not in folder.parents:
        raise ValueError(f"expected a version folder under {real_root}, got {folder}")
    if not folder.is_dir():
        raise ValueError(f"expected a version folder, got nothing at {folder}")
    return folder


def check_files(folder: Path, files: Sequence[Mapping[str, Any]]) -> list[Path]:
    """The safetensors files among these. Raises ValueError unless each file is inside the folder, in its full size.

    The caller has verified their bytes; this machine may see them later, or never, on a shared file system.
    """
    paths = []
    for file in files:
        path = Path(os.path.realpath(folder / str(file["name"])))
        if folder not in path.parents:
            raise ValueError(f"expected {file['name']} inside {folder}, got {path}")
        size = path.stat().st_size if path.is_file() else -1
        if size != file["bytes"]:
            raise ValueError(f"expected {file['bytes']} bytes, got {size}, in {path}")
        if path.suffix == ".safetensors":
            paths.append(path)
    return paths


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


def check_index(index: TensorIndex, expected: TensorIndex | None, *, is_tied: bool) -> None:
    """Raises ValueError unless names and shapes are those the engine was started with (a tied head aside)."""
    if expected is None:
        return
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


def _layers_not_loaded(model: Any, layerwise: Any) -> list[str]:
    """Layers that have parameters of their own but were given none; attention layers have none to load."""
    missing = []
    for name, layer in model.named_modules():
        info = layerwise.get_layerwise_info(layer)
        own = sum(math.prod(parameter.shape) for parameter in layer.parameters(recurse=False))
        if info.can_load() and info.load_numel <= 0 and own > 0:
            missing.append(name)
    return missing


def _restore(model: Any, layerwise: Any) -> None:
    """Puts the kernels' own tensors back after a failed load, so that the next load starts clean.

    vLLM would otherwise keep what the failed load had buffered and count it towards the next one.
    """
    for layer in model.modules():
        info = layerwise.get_layerwise_info(layer)
        if info.can_load() and info.kernel_tensors is not None:
            layerwise._place_kernel_tensors(layer, info)
        info.reset()


def _make_transfer_engine() -> Any:
    base: Any = importlib.import_module("vllm.distributed.weight_transfer.base")

    @dataclass
    class FileInit(base.WeightTransferInitInfo):  # type: ignore[misc]
        """Nothing: the root comes from the engine's own environment, never from a caller."""

    @dataclass
    class FileUpdate(base.WeightTransferUpdateInfo):  # type: ignore[misc]
        path: str
        files: list[dict[str, Any]] = field(default_factory=list)

    class FileTransferEngine(base.WeightTransferEngine):  # type: ignore[misc]
        """Loads a version folder; start and finish do nothing, so a caller that dies in between leaves no trace."""

        init_info_cls = FileInit
        update_info_cls = FileUpdate
        supports_draft_weight_update = False

        def init_transfer_engine(self, init_info: Any) -> None:
            """Not needed."""

        def start_weight_update(self) -> None:
            """All is done in update_weights."""

        def finish_weight_update(self) -> None:
            """All is done in update_weights."""

        def update_weights(self, update_info: dict[str, Any]) -> None:
            self.receive_weights(self.parse_update_info(update_info))
            _use_all_threads()
            accelerator: Any = importlib.import_module("torch").accelerator
            if accelerator.is_available():  # the base class takes one for granted
                accelerator.synchronize()

        def receive_weights(self, update_info: Any) -> None:
            _load_folder(self.model, self.model_config, update_info.path, update_info.files)

        def shutdown(self) -> None:
            """Nothing is held."""

    return FileTransferEngine


def _load_folder(model: Any, model_config: Any, path: str, files: Sequence[Mapping[str, Any]]) -> None:
    layerwise: Any = importlib.import_module("vllm.model_executor.model_loader.reload.layerwise")
    is_tied = bool(getattr(model_config.hf_text_config, "tie_word_embeddings", False))
    started = time.monotonic()
    folder = resolve_version(os.environ.get(WEIGHT_ROOT, ""), path)
    index = read_index(check_files(folder, files))
    base = sorted(Path(model_config.model).glob("*.safetensors"))  # empty for the name of a hub's model
    check_index(index, read_index(base) if base else None, is_tied=is_tied)
    try:
        layerwise.initialize_layerwise_reload(model)
        model.load_weights(read_tensors(index, is_tied=is_tied))
        if missing := _layers_not_loaded(model, layerwise):
            raise ValueError(f"expected weights for every layer, got none for {missing[:5]} in {folder}")
    except BaseException:
        _restore(model, layerwise)
        raise
    layerwise.finalize_layerwise_reload(model, model_config)
    logger.info("loaded %d tensors of %s in %.3f s", len(index), folder.name, time.monotonic() - started)


if __name__ == "__mp_main__":
    # Long before vLLM calls `register`. The parent's number comes from itself: it may be dead by now.
    _end_with_parent(int(os.environ.get(_PARENT, os.getppid())))
if __name__ in ("__main__", "__mp_main__"):
    os.environ[_PARENT] = str(os.getpid())
if __name__ == "__main__":
    # sys.modules["__main__"] stays this module: it is what a spawned process imports before anything else.
    runpy.run_module(_SERVER, run_name="__main__")
