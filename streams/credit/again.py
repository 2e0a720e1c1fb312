"""A captured episode as a run credited it once, with the feedback that came behind its close. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import REWARDS

from ..ratings import rated_anew

__all__ = ["rate_again"]


def rate_again(episode: bytes, said: Sequence[bytes]) -> bytes:
    """The record of `episodes` as credit takes it.

    Args:
        episode: as assemble writes it.
        said: records of `rewards`, which the run's `transitions` name as the feedback that counted.
    """
    return EPISODES.encode(rated_anew(EPISODES.decode(episode), map(REWARDS.decode, said)))
