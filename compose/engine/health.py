"""Whether an engine that somebody else started is up and fit for training.

In: an engine's URL. Out: ConfigurationError when it can never serve us (a flag or the plug-in is missing),
UnavailableError when it is not there in time. Failure of a probe itself never raises anything else.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from tracegrad.schemas.credentials import bearer
from tracegrad.schemas.errors import ConfigurationError, UnavailableError
from tracegrad.schemas.retry import retry

from ..loopback import answers
from .server import MODES, WORKER_EXTENSION

_TIMEOUT = httpx.Timeout(10.0, connect=2.0)
_HEALTH_TIMEOUT_S = 2.0
_INFO_TIMEOUT_S = 60.0
"""It asks its whole system first."""


def wait_ready(
    url: str, *, timeout_s: float = 180.0, pause_s: float = 0.25, say: Callable[[str], None] = lambda _: None
) -> None:
    """Returns when an engine that we did not start answers /health; says once that it waits. Blocking.

    Raises:
        UnavailableError: it does not answer in time.
    """

    def ask() -> None:
        if not answers(url.rstrip("/") + "/health", _HEALTH_TIMEOUT_S):
            raise UnavailableError(
                f"[engine] url: expected an engine at {url}, got no answer in {timeout_s:g} s; start it, or remove the "
                "key to have one started"
            )

    try:
        ask()
    except UnavailableError:
        say(f"waiting for the engine at {url}")
        retry(ask, doing=f"asking the engine at {url}", patience_s=timeout_s, first_s=pause_s, max_s=pause_s)


def check_engine(url: str, *, model: str, served_name: str, plugin: Path, token: str | None) -> None:
    """Whether an engine that we did not start can serve and be updated.

    Args:
        model: the folder it must have been started from.
        served_name: what requests call the model.
        plugin: the folder to put on the engine's PYTHONPATH when it lacks our plug-in.
        token: what it asks for, if anything.
    Raises:
        ConfigurationError: it lacks a flag, our plug-in or the model's name; with the command that has them all.
        UnavailableError: it does not answer.
    """
    with httpx.Client(base_url=url.rstrip("/"), timeout=_TIMEOUT, headers=bearer(token)) as client:
        try:
            models = client.get("/v1/models")
            is_refused = models.status_code in (401, 403)
            names = [] if is_refused else [model["id"] for model in models.json()["data"]]
            generate = client.get("/inference/v1/generate").status_code
            info = client.get("/weight_info").status_code
            loader = client.post("/collective_rpc", json={"method": "can_load_versions"}).status_code
            modes = _modes(client) if info != 404 else {}
        except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
            raise UnavailableError(f"[engine] url: expected a vLLM server at {url}, got {error!r}") from error
    if is_refused:
        raise ConfigurationError(f"[engine] token: expected the one of the engine at {url}, got another or none")
    lacks = ""
    if served_name not in names:
        lacks = f"it serves {', '.join(map(str, names)) or 'nothing'}, not {served_name!r} (--served-model-name)"
    elif generate == 404:
        lacks = "it has no /inference/v1/generate (--enable-scale-out)"
    elif info == 404:
        lacks = "it has no development routes (VLLM_SERVER_DEV_MODE=1)"
    elif loader != 200:
        lacks = "our plug-in is not loaded, so it loads no versions (PYTHONPATH, --worker-extension-cls)"
    else:
        for flag, wanted in MODES.items():
            if modes.get(flag, wanted) != wanted:
                lacks = f"its {_key(flag)} is {modes[flag]!r}, not {wanted!r} ({flag})"
    if lacks:
        # Host, port, dtype, memory and the tool parser are its owner's choice.
        modes_given = " ".join(f"{flag} {value}" for flag, value in MODES.items())
        raise ConfigurationError(
            f"[engine] url: the engine at {url} cannot be trained with: {lacks}; start it so:\n"
            f"  PYTHONPATH={shlex.quote(str(plugin))} VLLM_SERVER_DEV_MODE=1 vllm serve {shlex.quote(model)} "
            f"--served-model-name {shlex.quote(served_name)} --enable-scale-out {modes_given} "
            f"--worker-extension-cls {WORKER_EXTENSION} --enable-auto-tool-choice --tool-call-parser hermes"
        )


def _modes(client: httpx.Client) -> dict[str, Any]:
    """What the engine says of itself; nothing when it does not, which is no reason to refuse it."""
    answer = client.get("/server_info", params={"config_format": "json"}, timeout=_INFO_TIMEOUT_S)
    try:
        config = answer.json()["vllm_config"]["model_config"]
        return {flag: config[_key(flag)] for flag in MODES if _key(flag) in config}
    except (ValueError, KeyError, TypeError):
        return {}


def _key(flag: str) -> str:
    """Under which the engine's configuration has a flag."""
    return flag.removeprefix("--").replace("-", "_")
