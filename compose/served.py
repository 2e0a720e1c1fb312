"""Which trained version the engine can be shown to have served, and calls that prove it.

In: `weights`, `weight_acks`, `llm_calls` of a run. Out: a Proof to be checked by `verify.py`, or a sentence that says
what is missing. Invariant: a version counts only when it was trained in this run (> 0), survives in the lineage, was
acknowledged, and whole calls bear its label; the newest such version with its predecessor's folder still there wins.
"""

from __future__ import annotations

from collections import defaultdict, deque
from pathlib import Path

import msgspec

from tracegrad.consumers.topic_reader import read_topic
from tracegrad.schemas.calls import CALLS, CallRecord
from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log import Log
from tracegrad.schemas.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.topics import Topic, Topics
from tracegrad.schemas.weights import WEIGHT_ACKS, WEIGHTS, Lineage, VersionManifest

__all__ = ["Proof", "ServedCall", "find_proof"]

_CALLS = 48
"""Calls that are recomputed."""


class ServedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call, whole again."""

    call_id: str
    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    temperature: float


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What `verify.py` recomputes."""

    version: int
    folder: str
    previous_version: int
    previous_folder: str
    calls: tuple[ServedCall, ...]


def find_proof(log: Log, topics: Topics, run: RunHash, policy: str) -> Proof | str:
    """The proof, or why there is none."""
    versions = _versions(log, topics, policy)
    trained = {version for version in versions if version > 0}
    if not trained:
        return "no version was trained in this run"
    acknowledged = trained & _acknowledged(log, topics, policy)
    if not acknowledged:
        return "no version trained in this run was acknowledged by an engine"
    chosen = _rollouts_by_version(log, topics, run, policy)
    labelled = sorted(acknowledged & set(chosen), reverse=True)
    if not labelled:
        return "no call bears the label of a version trained in this run"
    for version in labelled:
        previous = max((other for other in versions if other < version), default=None)
        if previous is None or not all(Path(versions[v].uri).is_dir() for v in (version, previous)):
            continue
        calls = _whole_calls(log, topics, set(chosen[version]), version)
        if calls:
            return Proof(
                version=version,
                folder=versions[version].uri,
                previous_version=previous,
                previous_folder=versions[previous].uri,
                calls=tuple(calls[:_CALLS]),
            )
    return "the folders of the versions that served calls are gone; raise [trainer] keep_versions"


def _versions(log: Log, topics: Topics, policy: str) -> dict[int, VersionManifest]:
    lineage = Lineage(policy)
    for record in read_topic(log, topics.name(Topic.WEIGHTS)):
        try:
            lineage.fold(WEIGHTS.decode(record.value))
        except RecordError:
            continue
    return lineage.versions


def _acknowledged(log: Log, topics: Topics, policy: str) -> set[int]:
    found = set()
    for record in read_topic(log, topics.name(Topic.WEIGHT_ACKS)):
        try:
            ack = WEIGHT_ACKS.decode(record.value)
        except RecordError:
            continue
        if ack.policy == policy:
            found.add(ack.version)
    return found


def _call(value: bytes | None) -> CallRecord | None:
    try:
        decoded = CALLS.decode(value)
    except RecordError:
        return None
    return decoded if isinstance(decoded, CallRecord) else None


def _is_of_one_version(call: CallRecord) -> bool:
    return len(call.versions) == 1 and call.versions[0].start == 0 and not call.is_constrained


def _rollouts_by_version(log: Log, topics: Topics, run: RunHash, policy: str) -> dict[int, deque[str]]:
    """Per version the last rollouts with a call that it sampled whole; bounded."""
    found: dict[int, deque[str]] = defaultdict(lambda: deque(maxlen=_CALLS))
    for record in read_topic(log, topics.name(Topic.LLM_CALLS)):
        call = _call(record.value)
        if call is None or call.policy != policy or call.rollout_id is None or not call.rollout_id.startswith(run):
            continue
        if _is_of_one_version(call) and call.rollout_id not in found[call.versions[0].version]:
            found[call.versions[0].version].append(call.rollout_id)
    return {version: rollouts for version, rollouts in found.items() if rollouts}


def _whole_calls(log: Log, topics: Topics, rollouts: set[str], version: int) -> list[ServedCall]:
    """The version's calls of those rollouts, prompts put together from their parents."""
    prompts: dict[str, list[int]] = {}
    found = []
    for record in read_topic(log, topics.name(Topic.LLM_CALLS)):
        call = _call(record.value)
        if call is None or call.rollout_id not in rollouts:
            continue
        parent = prompts.get(call.parent_call_id, []) if call.parent_call_id else []
        prompt = [*parent[: call.shared_tokens], *ids_from_bytes(call.suffix_ids).tolist()]
        sampled = ids_from_bytes(call.sampled_ids).tolist()
        prompts[call.call_id] = [*prompt, *sampled]
        if len(parent) < call.shared_tokens or not prompt or not sampled:
            continue
        if _is_of_one_version(call) and call.versions[0].version == version:
            found.append(
                ServedCall(
                    call_id=call.call_id,
                    prompt_ids=prompt,
                    sampled_ids=sampled,
                    logprobs=[float(value) for value in logprobs_from_bytes(call.logprobs)],
                    temperature=call.sampling_used.temperature,
                )
            )
    return found
