"""Attempts that ended: final episodes of the policy, with what a test says of them."""

from __future__ import annotations

from typing import Any

from tracegrad.schemas.records.calls import Purpose, SpliceOutcome
from tracegrad.schemas.records.episodes import AppliedReward, Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import RolloutState


def call(masked: str = "", rewards: tuple[AppliedReward, ...] = ()) -> EpisodeCall:
    """Of the policy."""
    ids: dict[str, Any] = {"suffix_ids": b"", "sampled_ids": b"", "logprobs": b"", "versions": (), "shared_tokens": 0}
    said: dict[str, Any] = {"finish_reason": "stop", "content": None, "masked": masked, "rewards": rewards}
    place: dict[str, Any] = {"turn": 0, "agent": None, "joined_by": "", "parent_call_id": None, "temperature": 1.0}
    return EpisodeCall(call_id="c", policy="policy", splice=SpliceOutcome(kind="first"), **place, **ids, **said)


def episode(task: str = "t", **fields: Any) -> Episode:
    """One that trains, but for the fields."""
    made: dict[str, Any] = {
        "calls": (call(),),
        "reward": 1.0,
        "state": RolloutState.SUCCEEDED,
        "purpose": Purpose.TRAIN,
    }
    made |= {"episode_id": "e", "rollout_id": "r", "attempt_id": "a", "group": None, "policy": "policy"}
    return Episode(task_id=task, is_final=True, closed_by="complete", **(made | fields))
