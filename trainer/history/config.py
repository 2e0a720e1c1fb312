"""What a trainer of history is told: `[replay]` of the settings file, and the History that compose hands over.

In and out: frozen records. Imports nothing heavy: the command line reads it for its help.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.section import Section

Mode = Literal["same", "offline", "filter"]
"""`same`: step by step what the source trained, by its record; `offline`: policy gradient on returns, off policy;
`filter`: the likelihood of what good episodes sampled."""


class ReplayConfig(Section, frozen=True, kw_only=True):
    """`[replay]`: what a run that trains on another run's history makes of it (docs/replay.md)."""

    min_ess: Annotated[float, Meta(ge=0, le=1)] = 0.1
    """`offline`: a group whose effective sample size is below this share of its trained tokens is excluded as
    `low_ess`; 0 excludes none."""
    bound: float = 1.0
    """`filter`: an episode is trained on whose final reward is at least this."""
    unrated: Literal["drop", "train"] = "drop"
    """`filter`, of a history that spans tell: episodes that nobody rated."""


class History(msgspec.Struct, frozen=True, kw_only=True):
    """The history that one policy is trained on. Example: History(mode="offline", run="7c1f3e9a", end_offset=640)."""

    mode: Mode
    run: RunHash
    """The source: whose versions sampled the tokens. Tokens of any other run are excluded as `other_run`."""
    end_offset: int
    """Of the policy's partition of this run's `transitions`: what lies before it is the history, complete when the
    trainer starts."""
    record: str = ""
    """For `same`: a file with the values of the source's `weights` and `training_steps`, one a line, each topic in its
    order; `record.py` reads it."""
    config: ReplayConfig = ReplayConfig()
