"""The key of each topic's records: who writes to a topic takes its key from here, and nowhere else.

In: ids. Out: a record's key. Invariant: records that have to stay in order, or that compaction or a marker has to find
again, have one key. `topics.REGISTRY` names the function of each topic, and docs/topics.md prints its first line.
"""

from __future__ import annotations

from .log.protocol import Record

__all__ = [
    "closed_key",
    "engine_key",
    "episode_key",
    "group_key",
    "original_key",
    "policy_key",
    "process_key",
    "rollout_key",
    "trace_key",
]


def trace_key(trace_id: str) -> bytes:
    """the trace id in hex; a Collector may leave it out"""
    return trace_id.encode()


def episode_key(rollout_id: str | None, trace_id: str | None) -> bytes:
    """the rollout id, else the trace id

    All attempts of a rollout lie in one partition, in order.
    """
    return (rollout_id or trace_id or "").encode()


def rollout_key(rollout_id: str) -> bytes:
    """the rollout id"""
    return rollout_id.encode()


def group_key(group_id: str | None, episode_id: str) -> bytes:
    """the group id, else the episode id

    The members of a group meet in one partition.
    """
    return (group_id or episode_id).encode()


def closed_key(identifier: str) -> bytes:
    """the id of what is closed"""
    return identifier.encode()


def policy_key(policy: str) -> bytes:
    """the policy"""
    return policy.encode()


def engine_key(engine_id: str) -> bytes:
    """the engine's id"""
    return engine_id.encode()


def process_key(process: str, by: str) -> bytes:
    """who says it (report or supervised), a slash, and the process's name

    A process and its supervisor write side by side, and compaction keeps the last word of both.
    """
    return f"{by}/{process}".encode()


def original_key(origin: Record) -> bytes | None:
    """the key of the record that could not be used"""
    return origin.key
