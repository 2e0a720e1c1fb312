"""Automatic intermediate rewarding: monitoring signals in an episode's spans become rewards of its calls.

In: an episode's calls in order, each with the tools it asked for; the declared rules. Out: for each call, the
rewards it earned, each with its rule's name. A pure function: equal calls give equal rewards. A tool that no call
is known to have asked for pays nothing; a tool whose status is unknown neither succeeded nor failed.
Paper: automatic intermediate rewarding of Agent Lightning (arXiv:2508.03680), section 3.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

import msgspec

from tracegrad.schemas.errors import ConfigurationError
from tracegrad.schemas.records.episodes import AppliedReward, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import ToolStatus

__all__ = ["AirRule", "AirSignal", "apply_air"]


class AirSignal(StrEnum):
    """What a rule listens to."""

    TOOL_SUCCEEDED = "tool_succeeded"
    """A tool execution is known to have succeeded."""
    TOOL_FAILED = "tool_failed"
    """A tool execution is known to have failed."""


_STATUS = {AirSignal.TOOL_SUCCEEDED: ToolStatus.SUCCEEDED, AirSignal.TOOL_FAILED: ToolStatus.FAILED}


class AirRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One declared rule. Example: AirRule(name="tool_ok", signal="tool_succeeded", value=0.5, cap=2)."""

    name: str
    """Stands on each reward that it pays, as `air:<name>`."""
    signal: AirSignal
    """What it pays for."""
    value: float
    """Paid for each signal; negative is a penalty."""
    cap: int | None = None
    """How often it pays in one episode, the earliest turns first; None: no bound."""
    tool: str = "*"
    """Glob on the tool's name."""

    def __post_init__(self) -> None:
        if not math.isfinite(self.value):
            raise ConfigurationError(f"air.{self.name}.value: expected a finite number, got {self.value}")
        if self.cap is not None and self.cap < 0:
            raise ConfigurationError(f"air.{self.name}.cap: expected 0 or more, got {self.cap}")

    def matches(self, tool: ToolExecution) -> bool:
        """Whether the execution is the signal that this rule pays for."""
        return tool.status is _STATUS[self.signal] and fnmatchcase(tool.name, self.tool)


def apply_air(rules: Sequence[AirRule], calls: Sequence[EpisodeCall]) -> list[tuple[AppliedReward, ...]]:
    """The rewards that each call earned, in the order of the calls.

    Within a call, tools pay in their order and, for each tool, rules pay in theirs; a rule that reached its cap
    pays no more in this episode.
    """
    paid = {rule.name: 0 for rule in rules}
    rewards: list[tuple[AppliedReward, ...]] = []
    for call in calls:
        earned: list[AppliedReward] = []
        for tool in call.tools:
            for rule in rules:
                if rule.matches(tool) and (rule.cap is None or paid[rule.name] < rule.cap):
                    paid[rule.name] += 1
                    earned.append(AppliedReward(rule=f"air:{rule.name}", value=rule.value))
        rewards.append(tuple(earned))
    return rewards
