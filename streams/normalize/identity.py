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
    attempt_of,
    episode_id,
    parse_attempt_id,
    parse_rollout_id,
    parse_trace_id,
    run_hash_of,
    split_episode_id,
)
from tracegrad.schemas.keys import episode_key

__all__ = ["EpisodeKey", "Identities"]


class EpisodeKey(NamedTuple):
    """An episode and its key on `episode_events`."""

    episode_id: str
    key: bytes


class Identities:
    """Judges identity claims for one run; `runs`: hashes of the runs whose rollouts it takes."""

    def __init__(self, runs: frozenset[str]) -> None:
        self._runs = runs

    def of(self, rollout: str | None, attempt: str | None, trace: str | None) -> EpisodeKey | None:
        """The episode of these claims; None: another run's rollout, not selected.

        Raises:
            RecordError: `bad_identity` (not an id), `no_attempt` (a rollout alone), `identity_conflict` (the
                trace id names another attempt), `no_identity` (nothing at all).
        """
        own = _parse_trace(trace) if trace is not None else None
        named = attempt_of(own, self._runs) if own is not None else None
        if rollout is None:
            if own is None:
                raise RecordError("expected a rollout id or a trace id, got neither", reason="no_identity")
            return EpisodeKey(own, episode_key(named[0] if named else None, own))
        parsed, parsed_attempt = _parse_rollout(rollout, attempt, own)
        if run_hash_of(parsed) not in self._runs:
            return None
        episode = episode_id(parsed, parsed_attempt)
        if named is not None and own != episode:
            raise RecordError(
                f"expected one episode, got {episode} by attributes and {own} by trace id", reason="identity_conflict"
            )
        return EpisodeKey(episode, episode_key(parsed, own))


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
    if trace is None or split_episode_id(trace)[0] != parsed:
        raise RecordError(f"expected an attempt id beside rollout {parsed}, got none", reason="no_attempt")
    return split_episode_id(trace)
