"""What the OTLP gateway is told: `[otlp]` of the settings file, and the handles of the run that it works for.

In: compose hands both over. Out: two frozen records. Invariant: who listens beyond loopback has a token. Imports
nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from tracegrad.schemas.section import Count, Port

from ..exposure import GatewayHandles, ListenConfig
from ..feedback_names import RangeConfig


class OtlpConfig(ListenConfig, frozen=True, kw_only=True):
    """`[otlp]`: the gateway that takes agents' spans and log records."""

    grpc_port: Port | None = None
    """Of OTLP over gRPC; `port` is HTTP's. None: 4317 where that is free, else a free port, kept for the life of the
    run."""

    max_body_bytes: Count = 20 * 1024 * 1024
    """Of one request, after decompression too; a larger one gets 413."""
    max_inflight_bytes: Count = 128 * 1024 * 1024
    """Of all requests: bodies, what is unpacked and decoded of them, records that wait for their acknowledgement.
    Beyond it the client that is longest silent within its body gets 408, and if all are here, 503, to be sent again; a
    request that would need more than all of it gets 413."""


class OtlpHandles(GatewayHandles, frozen=True, kw_only=True):
    """The run that it works for."""

    ack_timeout_s: float
    """Shorter than the agents' export timeout, so that they hear 503 and send again."""
    feedback_names: dict[str, RangeConfig] | None = None
    """What evaluations that come with the reward token may be called; None: none is read."""
    grpc_port: int | None = None
    """None: HTTP alone; 0: a free one."""
