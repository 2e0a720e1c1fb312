"""What the rewards gateway is told: `[feedback]` of the settings file, and the handles of the run that it works for.

In: compose hands both over. Out: frozen records. Invariant: a range that exists has room between its ends. Imports
nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.protocol import TopicPartition
from tracegrad.schemas.records.episodes import AIR_RULE
from tracegrad.schemas.records.rollouts import AGENT_REWARD, MAX_REWARD
from tracegrad.schemas.section import Count, Port, Section

__all__ = ["MAX_NAME_CHARS", "FeedbackConfig", "FeedbackHandles", "RangeConfig"]

MAX_NAME_CHARS = 80
_TAKEN = (AIR_RULE, f"{AGENT_REWARD}.")
"""Begin the names of what is paid or said otherwise, which counts by other rules."""


class RangeConfig(Section, frozen=True, kw_only=True):
    """`[feedback.names."name"]`: the values that feedback of this name may have.

    Example: RangeConfig(low=0.0, high=1.0).
    """

    low: float
    """The least."""
    high: float
    """The greatest."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -MAX_REWARD <= self.low < self.high <= MAX_REWARD:
            raise ConfigurationError(
                f"expected low < high, both of at most {MAX_REWARD:g}, got low = {self.low:g}, high = {self.high:g}"
            )


def _default_names() -> dict[str, RangeConfig]:
    return {"reward": RangeConfig(low=-1.0, high=1.0)}


class FeedbackConfig(Section, frozen=True, kw_only=True):
    """`[feedback]`: takes feedback on what agents did (docs/feedback.md). Runs where the section is."""

    host: str = "127.0.0.1"
    """Loopback unless you say otherwise; whoever asks needs the reward token, wherever they are."""
    port: Port | None = None
    """None: a free port, kept for the life of the run."""
    names: dict[str, RangeConfig] = msgspec.field(default_factory=_default_names)
    """What feedback may be called, and the range of its values; any other name or value is refused."""
    wait_s: Annotated[float, msgspec.Meta(ge=0, le=43_200)] = 60.0
    """With `[select] train`: how long a conversation that has closed waits for feedback before it is trained on; what
    comes later is late. At most 12 hours, a quarter of what topics between stages are kept."""
    max_body_bytes: Count = 1024 * 1024
    """Of one request; a larger one gets 413."""
    max_inflight_bytes: Count = 32 * 1024 * 1024
    """Of all requests; beyond it 503, to be sent again."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.names:
            if not 0 < len(name) <= MAX_NAME_CHARS or name.startswith(_TAKEN):
                raise ConfigurationError(
                    f"names: expected names of 1 to {MAX_NAME_CHARS} characters that do not begin with "
                    f"{' or '.join(_TAKEN)}, got {name[:MAX_NAME_CHARS]!r}; rename it"
                )


class FeedbackHandles(msgspec.Struct, frozen=True, kw_only=True):
    """One gateway of a run."""

    port: int
    run_hash: RunHash
    key: bytes
    """The run's secret, by which the reward token is verified."""
    trains: bool = False
    """The run trains on conversations that were rated."""
    starts: dict[TopicPartition, int] = {}
    """Where the run began on topics that it shares with others."""
    fd: int | None = None
    """A socket that listens there already, held by the supervisor; None: the gateway binds one."""
