"""What feedback may be called, and the range of its values: by this each gateway that takes some judges it.

In: `[feedback.names]` of the settings file. Out: frozen records. Invariant: a range has room between its ends, and what
a label is worth lies within. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import AIR_RULE
from tracegrad.schemas.records.rollouts import AGENT_REWARD, MAX_REWARD
from tracegrad.schemas.section import Section

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
    labels: dict[str, float] = msgspec.field(default_factory=dict)
    """What an evaluation is worth that says a label and no number, as `{ pass = 1.0, fail = 0.0 }`; one with another
    label is refused."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not -MAX_REWARD <= self.low < self.high <= MAX_REWARD:
            raise ConfigurationError(
                f"expected low < high, both of at most {MAX_REWARD:g}, got low = {self.low:g}, high = {self.high:g}"
            )
        for label, value in self.labels.items():
            if not self.low <= value <= self.high:
                raise ConfigurationError(
                    f"labels: expected values in [{self.low:g}, {self.high:g}], got {label[:80]!r} = {value:g}"
                )


def check_names(names: dict[str, RangeConfig]) -> None:
    """Raises ConfigurationError for a name that feedback cannot have."""
    for name in names:
        if not 0 < len(name) <= MAX_NAME_CHARS or name.startswith(_TAKEN):
            raise ConfigurationError(
                f"names: expected names of 1 to {MAX_NAME_CHARS} characters that do not begin with "
                f"{' or '.join(_TAKEN)}, got {name[:MAX_NAME_CHARS]!r}; rename it"
            )
