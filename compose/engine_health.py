"""Whether an engine is up and fit for training, and why one that did not start did not.

In: an engine's URL, or the end of its log. Out: progress while it loads, ConfigurationError when it can never serve
us (a flag or the plug-in is missing), UnavailableError when it is not there in time, one clear sentence for a known
failure. Failure of a probe itself never raises anything else.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tracegrad.schemas.errors import ConfigurationError, UnavailableError

__all__ = ["check_engine", "explain", "progress", "wait_ready"]

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_PAUSE_S = 0.25

_PHASES = (
    ("importing vLLM", re.compile(r"")),
    ("reading the model's configuration", re.compile(r"non-default args|Resolved architecture")),
    ("starting the engine core", re.compile(r"Initializing a V1 LLM engine")),
    ("loading weights", re.compile(r"Starting to load model|Loading safetensors")),
    ("making the KV cache", re.compile(r"Loading weights took|Model loading took")),
    ("opening the port", re.compile(r"Supported tasks|Starting vLLM (API )?server|Application startup complete")),
)

_KNOWN = (
    (r"ModuleNotFoundError: No module named 'vllm'", "there is no vLLM in that environment; set [engine] python"),
    (r"[Aa]ddress already in use", "its port is taken by another process; free it or choose another"),
    (
        r"Head size (\d+) is not supported|head_size.{0,40}not supported",
        "this build lacks the model's head_dim",
    ),
    (r"greater than the derived max_model_len", "[engine] max_model_len is longer than the model's context window"),
    (
        r"max seq len.{0,120}KV cache|KV cache is needed|No available memory for the cache blocks",
        "the KV cache is too small for one full context; raise [engine] kv_cache_bytes or lower max_model_len",
    ),
    (r"Available memory on node.{0,80}is less than", "too little free memory; lower [engine] kv_cache_bytes"),
    (r"CUDA out of memory|OutOfMemoryError|Free memory on device", "the GPU has too little free memory"),
    (
        r"MemoryError|DefaultCPUAllocator: can't allocate|Cannot allocate memory",
        "too little free memory",
    ),
    (r"invalid tool call parser|is not a registered tool.?parser", "[engine] tool_call_parser is unknown to this vLLM"),
    (r"Invalid weight transfer backend", "our plug-in was not loaded; is VLLM_PLUGINS restricting it?"),
    (r"unrecognized arguments: (.+)", "[engine] args holds an option that this vLLM does not know"),
    (
        r"model type .{0,60}does not recognize|Model architectures .{0,80}not supported",
        "this vLLM lacks the model",
    ),
    (r"SafetensorError|Error while deserializing header", "a safetensors file of the model is damaged"),
    (r"libcuda|CUDA driver version is insufficient|No CUDA GPUs", "a CUDA build of vLLM found no usable GPU"),
)


def explain(log: str) -> str | None:
    """One sentence for a start that failed in a known way, else None. `log` is the end of its output."""
    for pattern, sentence in _KNOWN:
        if re.search(pattern, log):
            return sentence
    return None


def progress(log: str) -> str:
    """How far a start has come, by its log."""
    return [name for name, pattern in _PHASES if pattern.search(log)][-1]


def wait_ready(
    url: str,
    *,
    log_path: Path | None = None,
    is_alive: Callable[[], bool] = lambda: True,
    is_stopping: Callable[[], bool] = lambda: False,
    timeout_s: float = 600.0,
    say: Callable[[str], None] = lambda _: None,
) -> None:
    """Returns when the engine answers /health.

    Args:
        log_path: where it writes, for progress and for the reason of a failure.
        say: told each new phase, and each 15 seconds of the same one.
    Raises:
        UnavailableError: it died (the message says why, when that is known) or was not ready in time.
    """
    started = time.monotonic()
    said: tuple[str, int] = ("", 0)
    while not is_stopping():
        waited_s = time.monotonic() - started
        if _is_healthy(url):
            return
        log = _tail(log_path)
        if not is_alive() or waited_s > timeout_s:
            what = "ended" if not is_alive() else f"was not ready after {timeout_s:.0f} s"
            raise UnavailableError(f"the engine {what}: {explain(log) or 'see its log'}; {_last_line(log)}")
        news = (progress(log), int(waited_s // 15))
        if news != said:
            said = news
            say(f"engine: {news[0]} ({waited_s:.0f} s)")
        time.sleep(_PAUSE_S)


def check_engine(url: str, *, served_name: str) -> None:
    """Whether an engine that we may not have started can serve and be updated.

    Raises:
        ConfigurationError: it lacks a flag, our plug-in or the model's name.
        UnavailableError: it does not answer.
    """
    with httpx.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT) as client:
        try:
            models = client.get("/v1/models").json()
            names = [model["id"] for model in models["data"]]
            generate = client.post("/inference/v1/generate", json={}).status_code
            info = client.get("/weight_info").status_code
            init = client.post("/init_weight_transfer_engine", json={"init_info": {}}).status_code
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise UnavailableError(f"expected a vLLM server at {url}, got {error!r}") from error
    if served_name not in names:
        raise ConfigurationError(
            f"engine {url}: expected it to serve {served_name!r}, got {names}; "
            f"start it with --served-model-name {served_name}"
        )
    if generate == 404:
        raise ConfigurationError(f"engine {url}: no /inference/v1/generate; start it with --enable-scale-out")
    if info == 404:
        raise ConfigurationError(f"engine {url}: no development routes; start it with VLLM_SERVER_DEV_MODE=1")
    if init != 200:
        raise ConfigurationError(
            f"engine {url}: weights cannot be loaded from files; start it with our plug-in, TRACEGRAD_ENGINE=1, "
            'TRACEGRAD_WEIGHT_ROOT and --weight-transfer-config \'{"backend": "tracegrad_files"}\''
        )


def _is_healthy(url: str) -> bool:
    try:
        return httpx.get(url.rstrip("/") + "/health", timeout=httpx.Timeout(2.0)).status_code == 200
    except httpx.HTTPError:
        return False


def _tail(path: Path | None) -> str:
    try:
        with path.open("rb") if path else Path("/dev/null").open("rb") as file:
            file.seek(max(0, file.seek(0, 2) - 65_536))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""


def _last_line(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return f"its last line: {lines[-1][:300]}" if lines else "it wrote nothing"
