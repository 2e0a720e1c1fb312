"""Feedback in a dead letter: what a stage could not use of it.

In: a record of `dead_letters`. Out: the pieces that it holds, as they were posted, and the reason. Pure; on failure, as
for a letter of anything else, none: dead letters hold bytes of every kind.
"""

from __future__ import annotations

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.records.dead_letters import dead_letter_fields
from tracegrad.schemas.records.episodes import EPISODE_SCORES, Score
from tracegrad.schemas.records.facts import EPISODE_EVENTS, Facts, RewardFact
from tracegrad.schemas.records.rollouts import REWARDS, Reward
from tracegrad.schemas.topics import Stage

__all__ = ["refused_in"]


def refused_in(letter: Record) -> tuple[list[Reward], str]:
    """(rewards, why a stage put them aside)."""
    fields = dead_letter_fields(letter.headers)
    try:
        match fields.get("stage"):
            case Stage.NORMALIZE:
                found = [REWARDS.decode(letter.value)]
            case Stage.ASSEMBLE:
                batch = EPISODE_EVENTS.decode(letter.value)
                facts = batch.facts if isinstance(batch, Facts) else ()
                found = [fact.reward for fact in facts if isinstance(fact, RewardFact)]
            case Stage.CREDIT:
                score = EPISODE_SCORES.decode(letter.value)
                found = [score.reward] if isinstance(score, Score) else []
            case _:
                found = []
    except RecordError:
        found = []
    return found, fields.get("reason", "")
