"""What an engine is told: `[engine]` of the settings file, and the handles of the run that it serves.

Apart from `server.py`, so that settings can be read without what starts an engine.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from tracegrad.producers.llm_gateway.config import PolicyConfig
from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.section import Count, Device, File, Program, Section

SHARED_GPU = 0.4
"""Of its memory, for the engine: vLLM would take 0.9, but training takes ten times the weights' own bytes (a bfloat16
weight and its gradient 2 each, its float32 master, gradient and two moments 4 each)."""


class EngineConfig(Section, frozen=True, kw_only=True):
    """`[engine]`: vLLM, started by us or found under `url`."""

    url: str | tuple[str, ...] | None = None
    """An engine that runs already, with our plug-in, or a list of several; None: start what `replicas` says."""
    replicas: Count = 1
    """How many engines to start, each with the whole model: the N-th on the N-th GPU from `device`'s on."""
    token: str | None = None
    """What the engines at `url` ask for, as a Bearer key; one that we start asks for a token of its run."""
    python: Program | None = None
    """The interpreter that has vLLM installed; None: the one that runs tracegrad."""
    device: Device = "auto"
    """`cpu`, `cuda`, `cuda:N`, the N-th visible GPU from 0, or `auto`: what that vLLM was built for."""
    max_model_len: Count = 2048
    """Context window in tokens."""
    dtype: Literal["float32", "bfloat16"] | None = None
    """`float32`, `bfloat16`, as `[trainer]` publishes: set both or neither. None: float32 on CPU, bfloat16 on a GPU."""
    tool_call_parser: str | None = "hermes"
    """vLLM's parser of the model's tool calls, or ours, `json_block`, for a model that writes a call as fenced or bare
    JSON; None: the model calls no tools."""
    tool_parser_plugin: File | None = None
    """A Python file that registers a parser of one's own with vLLM."""
    kv_cache_bytes: Count | None = None
    """Memory for the KV cache; None: 128 MiB on CPU, vLLM's choice on a GPU."""
    gpu_memory_utilization: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    """Share of the GPU's memory for vLLM; None: 0.4 where `[trainer] device` is the same GPU, else vLLM's own."""
    threads: Count = 1
    """CPU threads of the engine; more than one helps only real models on an otherwise idle machine."""
    args: tuple[str, ...] = ()
    """More arguments for vLLM's server, such as `["--max-num-seqs", "256"]`; they count above ours."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for url in self.urls:
            if not url.startswith(("http://", "https://")):
                raise ConfigurationError(f"url: expected http://host:port, got {url!r}")
        if len({url.rstrip("/") for url in self.urls}) < len(self.urls):
            raise ConfigurationError("url: expected different engines, got one twice")
        if self.url is not None and not self.urls:
            raise ConfigurationError("url: expected at least one engine, got an empty list; leave it out to start one")
        if self.replicas > 1 and self.urls:
            raise ConfigurationError("replicas: expected none beside url, whose engines somebody else starts")
        if self.token is not None and self.url is None:
            raise ConfigurationError("token: expected none, since there is no url; an engine that we start has its own")

    def gpu_share(self, *, shares_gpu: bool) -> float | None:
        """Of a GPU's memory, for vLLM on it; None: vLLM's own choice."""
        return self.gpu_memory_utilization or (SHARED_GPU if shares_gpu else None)

    @property
    def urls(self) -> tuple[str, ...]:
        """Of the engines that run already; empty: we start them."""
        return (self.url,) if isinstance(self.url, str) else self.url or ()


class EngineHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One vLLM process of a run."""

    policy: PolicyConfig
    """Whose model it starts from: version 0's weights, whose names and shapes every later version must have."""
    work_dir: str
    """A folder of the run, where the plug-in is laid."""
    port: int
    """On loopback."""
    token: str
    """Whoever does not show it as a Bearer key gets 401."""
    ordinal: int = 0
    """Which of the run's engines it is: how many GPUs it lies behind the first one's."""
    shares_gpu: bool = False
    """The trainer trains on the GPU that it would run on."""
