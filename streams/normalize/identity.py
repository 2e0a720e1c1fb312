"""Which episode a raw record's item belongs to, and under which key its facts travel.

In: the rollout and attempt that the item claims, and its trace id. Out: its episode, or None when it belongs to a
run that this one does not take. Invariant: claims that disagree are refused (RecordError), never guessed.
"""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import (
    AttemptId,
    RolloutId,
    episode_id,
    parse_attempt_id,
    parse_rollout_id,
    parse_trace_id,
    split_episode_id,
)

from ..config import StreamsConfig

__all__ = ["EpisodeKey", "Identities", "run_hashes"]


class EpisodeKey(NamedTuple):
    """An episode and its key on `episode_events`: the rollout id, else the trace id."""

    episode_id: str
    key: str


def run_hashes(config: StreamsConfig) -> frozenset[str]:
    """The hashes of the runs whose rollouts this run takes: its own and those selected."""
    return frozenset((config.run_hash, *config.select.runs))


class Identities:
    """Judges identity claims for one run."""

    def __init__(self, hashes: frozenset[str]) -> None:
        self._hashes = hashes

    def of(self, rollout: str | None, attempt: str | None, trace: str | None) -> EpisodeKey | None:
        """The episode of these claims; None: another run's rollout, not selected.

        Raises:
            RecordError: `bad_identity` (not an id), `no_attempt` (a rollout alone), `identity_conflict` (the
                trace id names another attempt), `no_identity` (nothing at all).
        """
        own = _parse_trace(trace) if trace is not None else None
        if rollout is None:
            if own is None:
                raise RecordError("expected a rollout id or a trace id, got neither", reason="no_identity")
            key = split_episode_id(own)[0] if own[:8] in self._hashes else own
            return EpisodeKey(own, key)
        parsed, parsed_attempt = _parse_rollout(rollout, attempt, own)
        if parsed[:8] not in self._hashes:
            return None
        episode = episode_id(parsed, parsed_attempt)
        if own is not None and own[:8] in self._hashes and own != episode:
            raise RecordError(
                f"expected one episode, got {episode} by attributes and {own} by trace id", reason="identity_conflict"
            )
        return EpisodeKey(episode, parsed)


def _parse_trace(trace: str) -> str:
    try:
        return parse_trace_id(trace)
    except ValueError as error:
        raise RecordError(str(error), reason="bad_identity") from error


def _parse_rollout(rollout: str, attempt: str | None, trace: str | None) -> tuple[RolloutId, AttemptId]:
    try:
        parsed = parse_rollout_id(rollout)
        if attempt is not None:
            return parsed, parse_attempt_id(attempt)
    except ValueError as error:
        raise RecordError(str(error), reason="bad_identity") from error
    if trace is None or not trace.startswith(parsed):
        raise RecordError(f"expected an attempt id beside rollout {parsed}, got none", reason="no_attempt")
    return split_episode_id(trace)
