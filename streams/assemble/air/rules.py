"""Automatic intermediate rewarding: monitoring signals in an episode's spans become rewards of its calls.

In: an episode's calls in order, each with the tools it asked for; the declared rules. Out: for each call, the
rewards it earned, each with its rule's name. A pure function: equal calls give equal rewards. A tool that no call
is known to have asked for pays nothing, nor does one of which nobody saw that the rollout's agent told it; one that
names no tool-call id earns nothing by default, and is fined all the same, for leaving ids out must be worth nothing. A
tool whose status is unknown neither succeeded nor failed.
Paper: automatic intermediate rewarding of Agent Lightning (arXiv:2508.03680), section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import AIR_RULE, AppliedReward, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import ToolStatus
from tracegrad.schemas.section import Section, Whole

__all__ = ["AirConfig", "AirRule", "AirSignal", "apply_air"]


class AirSignal(StrEnum):
    """What a rule listens to."""

    TOOL_SUCCEEDED = "tool_succeeded"
    """A tool execution is known to have succeeded."""
    TOOL_FAILED = "tool_failed"
    """A tool execution is known to have failed."""


_STATUS = {AirSignal.TOOL_SUCCEEDED: ToolStatus.SUCCEEDED, AirSignal.TOOL_FAILED: ToolStatus.FAILED}


class AirRule(Section, frozen=True, kw_only=True):
    """One `[[air.rules]]`: a signal in the spans earns a reward for the call that caused it.

    Example: AirRule(name="tool_ok", signal=AirSignal.TOOL_SUCCEEDED, value=0.5, cap=2).
    """

    name: str
    """Stands on each reward that it pays, as `air:<name>`."""
    signal: AirSignal
    """What it pays for."""
    value: float
    """Paid for each signal; negative is a penalty."""
    cap: Whole = 10
    """How often it pays in one episode, the earliest turns first. There is always a cap: without one, repeating what
    pays would be worth more than any final reward."""
    tool: str = "*"
    """Glob on the tool's name."""

    def matches(self, tool: ToolExecution) -> bool:
        """Whether the execution is the signal that this rule pays for."""
        return tool.is_proved and tool.status is _STATUS[self.signal] and fnmatchcase(tool.name, self.tool)


class AirConfig(Section, frozen=True, kw_only=True):
    """`[air]`: automatic intermediate rewarding."""

    enabled: bool = True
    """False: the rules stay written and pay nothing."""
    pays_without_id: bool = False
    """Also reward executions whose span bears no tool-call id, if their tool's name and time fit an open request; for
    frameworks whose spans have none. Negative values are due either way."""
    rules: tuple[AirRule, ...] = ()
    """Applied in this order."""

    def __post_init__(self) -> None:
        super().__post_init__()
        names = [rule.name for rule in self.rules]
        if len(set(names)) != len(names):
            raise ConfigurationError(f"rules: expected distinct names, got {names}; rename one")


def apply_air(config: AirConfig, calls: Sequence[EpisodeCall]) -> list[tuple[AppliedReward, ...]]:
    """The rewards that each call earned, in the order of the calls.

    Within a call, tools pay in their order and, for each tool, rules pay in theirs; a rule that reached its cap
    pays no more in this episode.
    """
    rules = config.rules if config.enabled else ()
    paid = {rule.name: 0 for rule in rules}
    rewards: list[tuple[AppliedReward, ...]] = []
    for call in calls:
        earned: list[AppliedReward] = []
        for tool in call.tools:
            for rule in rules:
                is_due = tool.has_id or config.pays_without_id or rule.value < 0
                if is_due and rule.matches(tool) and paid[rule.name] < rule.cap:
                    paid[rule.name] += 1
                    earned.append(AppliedReward(rule=f"{AIR_RULE}{rule.name}", value=rule.value))
        rewards.append(tuple(earned))
    return rewards
