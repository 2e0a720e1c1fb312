"""What the rewards gateway is told: `[feedback]` of the settings file, and the handles of the run that it works for.

In: compose hands both over. Out: frozen records. Invariant: each name can be feedback's. Imports nothing heavy: the
command line reads it for its help.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.section import Count, Port, Section

from ..exposure import GatewayHandles
from ..feedback_names import RangeConfig, check_names


class FeedbackConfig(Section, frozen=True, kw_only=True):
    """`[feedback]`: takes feedback on what agents did (docs/feedback.md). Runs where the section is."""

    host: str = "127.0.0.1"
    """Loopback unless you say otherwise; whoever asks needs the reward token, wherever they are."""
    port: Port | None = None
    """None: a free port, kept for the life of the run."""
    names: dict[str, RangeConfig] = msgspec.field(default_factory=lambda: {"reward": RangeConfig(low=-1.0, high=1.0)})
    """What feedback may be called, and the range of its values; any other name or value is refused."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=43_200)] = 60.0
    """With `[select] train`: how long a conversation that has closed waits for feedback before it is trained on; what
    comes later is late. At most 12 hours, a quarter of what topics between stages are kept; topics that you
    made yourself (`episodes`, `episode_scores`) have to keep their records four times as long too."""
    max_body_bytes: Count = 1024 * 1024
    """Of one request; a larger one gets 413."""
    max_inflight_bytes: Count = 32 * 1024 * 1024
    """Of all requests; beyond it 503, to be sent again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_names(self.names)


class FeedbackHandles(GatewayHandles, frozen=True, kw_only=True):
    """The run that it works for."""

    trains: bool = False
    """The run trains on conversations that were rated."""
    starts: dict[TopicPartition, int] = msgspec.field(default_factory=dict)
    """Where the run began on topics that it shares with others."""
