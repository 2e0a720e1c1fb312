"""Which episode a raw record's item belongs to.

In: the rollout and attempt that the item claims, and its trace id. Out: its episode, or None when it belongs to a
run that this one does not take. Invariant: claims that disagree are refused (RecordError), never guessed.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import (
    attempt_of,
    episode_id,
    is_lightning,
    parse_attempt_id,
    parse_rollout_id,
    parse_trace_id,
    run_hash_of,
    split_episode_id,
)
from tracegrad.schemas.reasons import Reason

__all__ = ["claim_of", "episode_of"]


def episode_of(rollout: str | None, attempt: str | None, trace: str | None, runs: Container[str]) -> str | None:
    """The episode of these claims; None: the rollout is of none of these runs, so not selected.

    Raises:
        RecordError: `bad_identity` (not an id), `no_attempt` (a rollout alone), `identity_conflict` (the
            trace id names another attempt), `no_identity` (nothing at all).
    """
    try:
        own = parse_trace_id(trace) if trace is not None else None
        parsed = parse_rollout_id(rollout) if rollout is not None else None
        claimed = parse_attempt_id(attempt) if parsed is not None and attempt is not None else None
    except ValueError as error:
        raise RecordError(str(error), reason=Reason.BAD_IDENTITY) from error
    if parsed is None:
        if own is None:
            raise RecordError("expected a rollout id or a trace id, got neither", reason=Reason.NO_IDENTITY)
        return own
    if claimed is None and own is not None and split_episode_id(own)[0] == parsed:
        claimed = split_episode_id(own)[1]
    if run_hash_of(parsed) not in runs:
        return None
    if claimed is None:
        raise RecordError(f"expected an attempt id beside rollout {parsed}, got none", reason=Reason.NO_ATTEMPT)
    episode: str = episode_id(parsed, claimed)
    # A trace id that names no attempt of ours is a framework's own, and no claim.
    if own is not None and own != episode and attempt_of(own, runs):
        raise RecordError(
            f"expected one episode, got {episode} by attributes and {own} by trace id", reason=Reason.IDENTITY_CONFLICT
        )
    return episode


def claim_of(keys: tuple[str, ...], *sources: Mapping[str, Any]) -> str | None:
    """What a span or log record and its resource say under these keys, which must be one thing; an empty text says
    nothing, and another system's name claims no rollout.

    Raises:
        RecordError: `identity_conflict`.
    """
    said = (str(source[key]) for source in sources for key in keys if source.get(key) is not None)
    claims = {claim for claim in said if claim and not is_lightning(claim)}
    if len(claims) > 1:
        raise RecordError(f"expected one {keys[0]}, got {len(claims)} that differ", reason=Reason.IDENTITY_CONFLICT)
    return claims.pop() if claims else None
