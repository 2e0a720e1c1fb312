"""What the gateway is told at start. Checks between fields fail in `check`, naming the key."""

from __future__ import annotations

from typing import Literal

import msgspec

from tracegrad.schemas.errors import ConfigurationError

from ..exposure import check_exposure

__all__ = ["EngineRef", "LlmGatewayConfig", "PolicyRef", "check"]


class EngineRef(msgspec.Struct, frozen=True, kw_only=True):
    """One inference engine."""

    id: str
    """As on `weight_acks`."""
    url: str
    """Without a path, such as http://127.0.0.1:8000."""


class PolicyRef(msgspec.Struct, frozen=True, kw_only=True):
    """How one policy is sampled in training."""

    name: str
    temperature: float = 1.0
    max_tokens: int | None = None
    """Upper bound on the sampled tokens of a call; None: what the request says, else the context window."""


class LlmGatewayConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's settings; the defaults are the recommended run."""

    host: str = "127.0.0.1"
    port: int = 8310
    token: str | None = None
    """Required to bind elsewhere than to loopback; callers send it as API key or `x-tracegrad-token`."""
    run_hash: str
    """8 hex; a trace id that begins with it names a rollout's attempt."""
    engines: tuple[EngineRef, ...]
    policies: tuple[PolicyRef, ...]
    """The first is the policy of captured agents whose `model` names none."""
    validation_temperature: float = 0.0
    allow_strict: bool = False
    """Keep `strict` on tools: the engine then samples under a grammar and the call leaves the loss."""
    render: Literal["auto", "engine"] = "auto"
    """`auto`: render and parse in the gateway once that is proved equal to the engine; `engine`: never."""
    max_body_bytes: int = 8 * 1024 * 1024
    max_inflight: int = 512
    """Calls at once; beyond it 503 with Retry-After."""
    max_attempts: int = 20_000
    """Attempts remembered, running and ended; the least recently used one goes first."""
    max_captured: int = 2_000
    """Captured traces whose splice state is remembered."""
    max_history_ids: int = 64_000_000
    """Token ids (4 bytes each) of all remembered turns; beyond it captured traces are forgotten, the oldest first, then
    new turns are not remembered, so that the next turn starts a new segment."""
    keep_ended_s: float = 900.0
    """How long `/end` of an ended attempt can be asked again."""
    idle_s: float = 3600.0
    """Attempts and captured traces without a call for so long are forgotten."""
    engine_wait_s: float = 180.0
    """How long a call waits for an engine that loads, restarts or bears a wrong label."""
    lineage_lag_s: float = 1.0
    """How far the reading of `weights` may lie behind an engine that already serves a version."""
    generate_timeout_s: float = 600.0
    render_timeout_s: float = 30.0
    append_timeout_s: float = 60.0
    """How long a call record may take to be acknowledged."""
    end_wait_s: float = 60.0
    """How long `/end` waits for calls in flight before it cancels them."""
    keep_alive_s: float = 5.0
    """Silence after which a streamed answer sends a comment."""


def check(config: LlmGatewayConfig) -> None:
    """Raises ConfigurationError when the settings cannot work."""
    if not config.engines:
        raise ConfigurationError("engines: expected at least one engine, got none; set [engine] url or start one")
    if not config.policies:
        raise ConfigurationError("policies: expected at least one policy, got none; set [policy] name")
    if len({policy.name for policy in config.policies}) != len(config.policies):
        raise ConfigurationError("policies: expected distinct names, got a repeated one; rename it")
    check_exposure(config.host, config.token)
