"""How the key of a record is made; which topic has which is told by REGISTRY in `topics.py`.

In: ids. Out: bytes. Invariant: records that have to stay in order, or to meet in one partition, have one key. The first
line of each function is what docs/topics.md says of it.
"""

from __future__ import annotations

from .ids import key_of
from .log.protocol import Record


def trace_key(trace_id: str) -> bytes | None:
    """the trace id in hex; a Collector may leave it out, and a log record of no trace has none"""
    return trace_id.encode() or None


def episode_key(rollout_id: str | None, trace_id: str | None, *, conversation: str | None = None) -> bytes:
    """the rollout id, else the conversation's key, else the trace id"""
    # All attempts of a rollout, and all traces of a conversation, lie in one partition, in order.
    return key_of(rollout_id, conversation, trace_id).encode()


def rollout_key(rollout_id: str) -> bytes:
    """the rollout id"""
    return rollout_id.encode()


def group_key(group_id: str | None, conversation: str) -> bytes:
    """the group id, else the conversation's key"""
    # The members of a group meet in one partition, and so do the episodes of a conversation and what is said of it.
    return (group_id or conversation).encode()


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
    """who says it (report or supervised), a slash, and the process's name"""
    # A process and its supervisor write side by side, and compaction keeps the last word of both.
    return f"{by}/{process}".encode()


def original_key(origin: Record) -> bytes | None:
    """the key of the record that could not be used"""
    return origin.key
