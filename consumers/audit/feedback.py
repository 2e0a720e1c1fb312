"""What became of each piece of feedback, by the topics that tell of it.

    feedback = joined + open + late + not counted + dead-lettered + ignored + unknown

`open` is on its way, or may still be rated anew; `not counted` is about a runner's attempt, whose reward is its
grader's; `ignored` is in a run that takes none; `unknown` is what stages heard of and is not on `rewards`. In: what
`read.py` finds. Out: what `account.py` counts. Invariant: the terms are those of the receipts, by another reader's
count. What a gateway refused is on no topic, and what no key vouches for is among the unverified records.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.log.protocol import Position
from tracegrad.schemas.records.episodes import LATE, ClosedMarker
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, Reward, piece_id
from tracegrad.schemas.topics import Stage


class FeedbackPiece(msgspec.Struct, kw_only=True):
    """What is said under one key of one thing."""

    name: str = ""
    """Its key and what it is about; empty: it is not on `rewards`."""
    of_runner: bool = False
    inputs: list[tuple[Stage, Position]] = []
    """Where it lies, and who reads it there."""
    episodes: set[str] = set()
    """Those that closed with it."""
    groups: set[str] = set()
    """Conversations that were credited with it."""
    is_late: bool = False


class FeedbackAccount(msgspec.Struct, kw_only=True):
    """Of one run."""

    pieces: dict[str, FeedbackPiece] = {}
    """By `piece_id`."""

    def add_reward(self, reward: Reward, stage: Stage, position: Position) -> None:
        """A record that holds a reward, which this stage reads."""
        if reward.source != FEEDBACK_SOURCE:
            return
        piece = self._piece(piece_id(reward))
        piece.inputs.append((stage, position))
        if stage is Stage.NORMALIZE:
            about = reward.target or reward.conversation_key or f"{reward.rollout_id}/{reward.attempt_id}"
            piece.name, piece.of_runner = f"{reward.idempotency_key} on {about}", bool(reward.rollout_id)

    def close_episode(self, marker: ClosedMarker) -> None:
        """With what was said of it by then."""
        for id_ in marker.heard:
            self._piece(id_).episodes.add(marker.id)

    def close_group(self, marker: ClosedMarker) -> None:
        """As it was credited; or what is for nothing."""
        for id_ in marker.heard:
            if marker.disposition == LATE:
                self._piece(id_).is_late = True
            else:
                self._piece(id_).groups.add(marker.id)

    def _piece(self, id_: str) -> FeedbackPiece:
        return self.pieces.setdefault(id_, FeedbackPiece())
