"""Which trained version the engine can be shown to have served, and calls that prove it.

In: `weights`, `weight_acks`, `llm_calls` of a run. Out: a Proof to be checked by `recheck_served.py`, or a sentence
that says what is missing. Invariant: a version counts only when it was trained in this run (> 0), survives in the
lineage, was acknowledged under its own epoch, and whole calls that began after that bear its label; the newest such
version with its predecessor's folder still there wins. After and before are by the machines' clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping
from itertools import accumulate
from pathlib import Path
from typing import TypeVar

import msgspec

from tracegrad.schemas.ids import RunHash, run_hash_of
from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.records.calls import CALLS, CallRecord
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.episodes import rebuild_prompt
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.versions import are_complete
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, Lineage, VersionManifest
from tracegrad.schemas.topics import Topic, Topics

__all__ = ["Proof", "ServedCall", "find_proof"]

_CALLS = 48
"""Calls that are recomputed, at most."""
_TOKENS = 4_096
"""And their tokens, prompts included: two minutes for half a billion weights on one CPU core."""


T = TypeVar("T")


class ServedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call, whole again."""

    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    temperature: float


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What `recheck_served.py` recomputes."""

    version: int
    folder: str
    previous_version: int
    previous_folder: str
    calls: tuple[ServedCall, ...]


def find_proof(log: Log, topics: Topics, run: RunHash, policy: str) -> Proof | str:
    """The proof, or why there is none."""
    versions = _versions(log, topics, policy)
    trained = {manifest.label: manifest for manifest in versions.values() if manifest.version > 0}
    if not trained:
        return "no version was trained in this run"
    acknowledged = {label: at for label, at in _acknowledged(log, topics, policy).items() if label in trained}
    if not acknowledged:
        return "no version trained in this run was acknowledged by an engine"
    chosen = _rollouts_by_label(log, topics, run, policy, acknowledged)
    if not chosen:
        return "no call made after its acknowledgement bears the label of a version trained in this run"
    for version, label in sorted(((trained[label].version, label) for label in chosen), reverse=True):
        previous = max((other for other in versions if other < version), default=None)
        if previous is None or not all(Path(versions[v].uri).is_dir() for v in (version, previous)):
            continue
        calls = _whole_calls(log, topics, set(chosen[label]), label, after_ms=acknowledged[label])
        if calls:
            return Proof(
                version=version,
                folder=versions[version].uri,
                previous_version=previous,
                previous_folder=versions[previous].uri,
                calls=tuple(_bounded(calls)),
            )
    return "the folders of the versions that served calls are gone; raise [trainer] keep_versions"


def _versions(log: Log, topics: Topics, policy: str) -> dict[int, VersionManifest]:
    lineage = Lineage(policy)
    for record in _all(log, topics.name(Topic.WEIGHTS), WEIGHTS):
        lineage.fold(record)
    return lineage.versions


def _acknowledged(log: Log, topics: Topics, policy: str) -> dict[str, int]:
    """When each label was first acknowledged, in unix ms."""
    found: dict[str, int] = {}
    for ack in _all(log, topics.name(Topic.WEIGHT_ACKS), WEIGHT_ACKS):
        if ack.policy == policy:
            found[ack.label] = min(ack.at_ms, found.get(ack.label, ack.at_ms))
    return found


def _all(log: Log, topic: str, codec: Codec[T]) -> Iterator[T]:
    """What a topic holds now."""
    return (record for _, record in decoded(read_to_end(log, topic), {topic: codec}))


def _calls(log: Log, topics: Topics) -> Iterator[CallRecord]:
    return (call for call in _all(log, topics.name(Topic.LLM_CALLS), CALLS) if isinstance(call, CallRecord))


def _label(call: CallRecord) -> str | None:
    """Of the version that sampled the whole call; None when there are several, or a grammar took part."""
    num_tokens = len(ids_from_bytes(call.sampled_ids))
    if len(call.versions) != 1 or not are_complete(call.versions, num_tokens) or call.is_constrained:
        return None
    return call.versions[0].label


def _is_after(call: CallRecord, at_ms: int) -> bool:
    return call.started_at_ns >= at_ms * 1_000_000


def _rollouts_by_label(
    log: Log, topics: Topics, run: RunHash, policy: str, acknowledged: Mapping[str, int]
) -> dict[str, deque[str]]:
    """Per acknowledged label the last rollouts with a call that it sampled whole, later; bounded."""
    found: dict[str, deque[str]] = {}
    for call in _calls(log, topics):
        if call.policy != policy or call.rollout_id is None or run_hash_of(call.rollout_id) != run:
            continue
        label = _label(call)
        if label is None or label not in acknowledged or not _is_after(call, acknowledged[label]):
            continue
        rollouts = found.setdefault(label, deque(maxlen=_CALLS))
        if call.rollout_id not in rollouts:
            rollouts.append(call.rollout_id)
    return found


def _whole_calls(log: Log, topics: Topics, rollouts: set[str], label: str, *, after_ms: int) -> list[ServedCall]:
    """The label's calls of those rollouts that began after its acknowledgement, prompts put together from parents."""
    full: dict[str, bytes] = {}
    found = []
    for call in _calls(log, topics):
        if call.rollout_id not in rollouts:
            continue
        prompt = rebuild_prompt(call, full)
        if prompt is None:
            continue
        full[call.call_id] = prompt + call.sampled_ids
        if prompt and call.sampled_ids and _label(call) == label and _is_after(call, after_ms):
            found.append(
                ServedCall(
                    prompt_ids=ids_from_bytes(prompt).tolist(),
                    sampled_ids=ids_from_bytes(call.sampled_ids).tolist(),
                    logprobs=logprobs_from_bytes(call.logprobs).tolist(),
                    temperature=call.sampling_used.temperature,
                )
            )
    return found


def _bounded(calls: list[ServedCall]) -> list[ServedCall]:
    """The first ones, as many as are cheap to recompute; one at least."""
    totals = accumulate(len(call.prompt_ids) + len(call.sampled_ids) for call in calls)
    num_cheap = sum(total <= _TOKENS for total in totals)
    return calls[: max(1, min(num_cheap, _CALLS))]
