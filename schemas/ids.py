"""Identities: how a run, a group, a rollout, an attempt and an episode are named, and what contains what.

    run hash      8 hex   sha256 of the run's name and creation time
    group id     24 hex   run hash + 16 hex
    rollout id   28 hex   run hash + 20 hex
    attempt id    4 hex   random, drawn by the runner
    call id      chatcmpl- + 32 hex   random, drawn by the LLM gateway
    episode id   32 hex   rollout id + attempt id = the trace id of an attempt that the runner made;
                          without a rollout, the trace id of the captured trace

So each span and each call of a runner-made attempt names its episode by its trace id alone. Ids are joined, drawn and
taken apart here only.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Container
from typing import NewType

__all__ = [
    "CALL_ID",
    "GIVEN_UP_ATTEMPT",
    "AttemptId",
    "CallId",
    "EpisodeId",
    "GroupId",
    "RolloutId",
    "RunHash",
    "RunName",
    "TraceId",
    "attempt_of",
    "episode_id",
    "group_id",
    "new_attempt",
    "new_call",
    "parse_attempt_id",
    "parse_rollout_id",
    "parse_run_hash",
    "parse_run_name",
    "parse_trace_id",
    "rollout_id",
    "run_hash",
    "run_hash_of",
    "split_episode_id",
]

RunName = NewType("RunName", str)
RunHash = NewType("RunHash", str)
GroupId = NewType("GroupId", str)
RolloutId = NewType("RolloutId", str)
AttemptId = NewType("AttemptId", str)
EpisodeId = NewType("EpisodeId", str)
TraceId = NewType("TraceId", str)
CallId = NewType("CallId", str)

GIVEN_UP_ATTEMPT = AttemptId("0000")
"""The attempt of the episode that stands for a rollout given up before any attempt was made; never drawn."""
CALL_ID = r"chatcmpl-[0-9a-f]{32}"
"""A pattern. The agent sees it as the id of an answer, whatever API it speaks, and its spans repeat it; the form is
peculiar enough to be found in a span's text."""

_RUN_NAME = re.compile(r"[a-z0-9-]{1,40}")
_RUN_HASH = re.compile(r"[0-9a-f]{8}")
_ROLLOUT_ID = re.compile(r"[0-9a-f]{28}")
_ATTEMPT_ID = re.compile(r"[0-9a-f]{4}")
_TRACE_ID = re.compile(r"[0-9a-f]{32}")


def _digest(*parts: object) -> str:
    return hashlib.sha256("\0".join(str(part) for part in parts).encode()).hexdigest()


def run_hash(name: RunName, created_at: str) -> RunHash:
    """The 8 hex characters that begin every id of a run; `created_at` is its ISO 8601 creation time."""
    return RunHash(_digest("run", name, created_at)[:8])


def group_id(run: RunHash, purpose: str, index: int) -> GroupId:
    """The id of the index-th group of a purpose; the same arguments give the same id after a restart."""
    return GroupId(run + _digest("group", run, purpose, index)[:16])


def rollout_id(group: GroupId, member: int) -> RolloutId:
    """The id of the member-th rollout of a group."""
    return RolloutId(run_hash_of(group) + _digest("rollout", group, member)[:20])


def new_attempt() -> AttemptId:
    """Drawn for an attempt that begins; never GIVEN_UP_ATTEMPT."""
    return AttemptId(f"{1 + secrets.randbelow(0xFFFF):04x}")


def new_call() -> CallId:
    """Drawn for an answer; matches CALL_ID."""
    return CallId(f"chatcmpl-{secrets.token_hex(16)}")


def episode_id(rollout: str, attempt: str) -> EpisodeId:
    """The episode of an attempt, which is also its trace id."""
    return EpisodeId(rollout + attempt)


def split_episode_id(episode: str) -> tuple[RolloutId, AttemptId]:
    """The rollout and attempt of an episode that has a rollout."""
    return RolloutId(episode[:28]), AttemptId(episode[28:])


def run_hash_of(identifier: str) -> RunHash:
    """The run's hash in a group, rollout or episode id."""
    return RunHash(identifier[:8])


def attempt_of(episode: str, runs: Container[str]) -> tuple[RolloutId, AttemptId] | None:
    """The rollout and attempt that an episode or trace id names; None unless it is of one of these runs."""
    # A captured trace takes a run's hash for its first 8 digits once in four thousand million.
    is_ours = run_hash_of(episode) in runs and _TRACE_ID.fullmatch(episode)
    return split_episode_id(episode) if is_ours else None


def _parse(pattern: re.Pattern[str], text: str, what: str) -> str:
    if not pattern.fullmatch(text):
        raise ValueError(f"expected {what} matching {pattern.pattern}, got {text[:60]!r}")
    return text


def parse_run_name(text: str) -> RunName:
    """Raises ValueError unless the text can name a run."""
    return RunName(_parse(_RUN_NAME, text, "a run name"))


def parse_run_hash(text: str) -> RunHash:
    """Raises ValueError unless the text is a run's hash."""
    return RunHash(_parse(_RUN_HASH, text, "a run hash"))


def parse_rollout_id(text: str) -> RolloutId:
    """Raises ValueError unless the text is a rollout id."""
    return RolloutId(_parse(_ROLLOUT_ID, text, "a rollout id"))


def parse_attempt_id(text: str) -> AttemptId:
    """Raises ValueError unless the text is an attempt id."""
    return AttemptId(_parse(_ATTEMPT_ID, text, "an attempt id"))


def parse_trace_id(text: str) -> TraceId:
    """Raises ValueError unless the text is a trace id in hex."""
    return TraceId(_parse(_TRACE_ID, text, "a trace id"))
