"""What became of each piece of feedback: receipts, from the topics on which that shows.

    accepted     on the log; its episode has not closed
    waiting      on an episode that may still be rated, until a time
    joined       counted: of an episode, or of the group that a run trains on
    late         what it is about had closed, or never was
    refused      a stage put it aside as a dead letter, for a reason
    not_counted  of a runner's attempt, whose reward is its grader's

In: records of `rewards`, `closed_episodes`, `episode_scores`, `closed_groups`, `dead_letters`, in any order among the
topics. Out: the receipts of an idempotency key. Invariant: a state only follows from a record; what is not told yet is
`accepted`.
Bounded: the oldest are forgotten, and so are those of a gateway's earlier life that retention has taken.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from tracegrad.schemas.bounded import BoundedMap
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.reasons import row_of
from tracegrad.schemas.records.episodes import LATE, ClosedMarker, Score
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, Reward, piece_id

_MAX_PIECES = 100_000
_MAX_CLOSES = 8
"""Of one conversation, the newest: feedback is about what people saw of late."""


@dataclass
class _Piece:
    """One thing that was said under one key, by its last value."""

    reward: Reward | None = None
    """None: what became of it was read before it was."""
    waits_since_ms: int | None = None
    """When an episode with it closed."""
    came_behind: tuple[str, int] | None = None
    """It came when an episode of this conversation had closed, and when."""
    is_late: bool = False
    refused: str = ""
    """Why a stage could not use it."""
    joined: set[str] = field(default_factory=set)
    """Episodes, or groups, which have the same ids."""


class Receipts:
    """Of one run. Not thread-safe.

    Args:
        trains: the run trains on what is rated, so that conversations wait `wait_s` for it; else a close ends all.
    """

    def __init__(self, *, trains: bool, wait_s: float) -> None:
        self._trains = trains
        self._wait_ms = round(1000 * wait_s)
        self._pieces: BoundedMap[str, _Piece] = BoundedMap(_MAX_PIECES, self._forget)
        self._by_key: dict[str, dict[str, None]] = {}
        """Idempotency key -> its pieces."""
        self._closes: BoundedMap[str, list[int]] = BoundedMap(_MAX_PIECES)
        """Conversation -> when its episodes closed."""

    def accept(self, reward: Reward) -> None:
        """A piece that is on the log."""
        if reward.source != FEEDBACK_SOURCE:
            return
        piece = self._piece(piece_id(reward))
        if piece.reward is None or piece.reward.at_ms <= reward.at_ms:
            piece.reward = reward
        self._by_key.setdefault(reward.idempotency_key, {})[piece_id(reward)] = None

    def close_episode(self, marker: ClosedMarker, record: Record) -> None:
        """An episode with what was said of it."""
        if marker.key is not None and marker.forwarded_to is None:
            closes = self._closes.renew(marker.key, [])
            closes.append(record.timestamp_ms)
            del closes[:-_MAX_CLOSES]
        for id_ in marker.heard:
            piece = self._piece(id_)
            if self._trains:
                piece.waits_since_ms = max(piece.waits_since_ms or 0, record.timestamp_ms)
            else:
                piece.joined.add(marker.id)

    def come_behind(self, score: Score, record: Record) -> None:
        """A piece that came when its episode had closed."""
        self._piece(piece_id(score.reward)).came_behind = (score.key, record.timestamp_ms)

    def close_group(self, marker: ClosedMarker) -> None:
        """A conversation that is credited, with all that counts of it; or what is for nothing."""
        for id_ in marker.heard:
            piece = self._piece(id_)
            if marker.disposition == LATE:
                piece.is_late = True
            else:
                piece.joined.add(marker.id)

    def refuse(self, rewards: Iterable[Reward], reason: str) -> None:
        """Pieces that a stage put aside."""
        for reward in rewards:
            if reward.source == FEEDBACK_SOURCE:
                self._piece(piece_id(reward)).refused = reason or "unknown"

    def of(self, key: str) -> list[dict[str, Any]]:
        """What became of all that was said under an idempotency key; empty: unknown."""
        return [self._told(self._pieces[id_]) for id_ in self._by_key.get(key, ()) if id_ in self._pieces]

    def _told(self, piece: _Piece) -> dict[str, Any]:
        reward = piece.reward
        assert reward is not None  # else no key leads here
        told: dict[str, Any] = {"name": reward.name, "value": reward.value, "at_ms": reward.at_ms}
        told |= {"target": reward.target, "conversation": reward.conversation_key or reward.rollout_id}
        if reward.rollout_id:
            return told | {"state": "not_counted"}
        if piece.joined:
            return told | {"state": "joined", "episodes": sorted(piece.joined)}
        if piece.is_late:
            return told | {"state": "late"}
        if piece.refused:
            row = row_of(piece.refused)
            detail = f"{row.sentence} {row.remedy}".strip()
            return told | {"state": "refused", "reason": piece.refused, "detail": detail}
        if piece.waits_since_ms is None and piece.came_behind is None:
            return told | {"state": "accepted"}
        return told | {"state": "waiting", "open_until_ms": self._since_ms(piece) + self._wait_ms}

    def _since_ms(self, piece: _Piece) -> int:
        """When the wait began: at an episode's close, however long after that a piece came."""
        key, at_ms = piece.came_behind or ("", 0)
        before = (closed_ms for closed_ms in self._closes.get(key, ()) if closed_ms <= at_ms)
        since_ms = max(before, default=at_ms)
        return max(since_ms, piece.waits_since_ms or 0)

    def _piece(self, id_: str) -> _Piece:
        return self._pieces.setdefault(id_, _Piece())

    def _forget(self, id_: str, piece: _Piece) -> None:
        of_key = self._by_key.get(piece.reward.idempotency_key) if piece.reward is not None else None
        if piece.reward is not None and of_key is not None:
            of_key.pop(id_, None)
            if not of_key:
                del self._by_key[piece.reward.idempotency_key]
