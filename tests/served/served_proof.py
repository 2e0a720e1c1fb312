"""Which trained version the engine can be shown to have served, and calls that prove it.

In: `weights`, `weight_acks`, `llm_calls` of a run. Out: a Proof for `verdict.py`, or a sentence that says what is
missing. Invariant: a version counts only when it was trained in this run (> 0), survives in the
lineage, was acknowledged under its own epoch, and whole calls that began after that bear its label; the newest such
version with its predecessor's folder still there wins. After and before are by the machines' clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TypeVar

import msgspec

from tests.prompts import rebuild_prompt
from tracegrad.schemas.ids import RunHash, run_hash_of
from tracegrad.schemas.log.follow import decoded, read_to_end
from tracegrad.schemas.log.protocol import Log
from tracegrad.schemas.log.refusals import Refusals
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import LLM_CALLS, CallRecord
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.versions import are_complete
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, Lineage, folder_of
from tracegrad.schemas.topics import Topic, Topics

_CALLS = 48
"""Calls that are recomputed, at most."""
_TOKENS = 4_096
"""And their tokens, prompts included: two minutes for half a billion weights on one CPU core."""

T = TypeVar("T")
Sampler = Callable[[CallRecord], str | None]
"""The label of the version that sampled a call, when the call can prove it."""


class ServedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One call, whole again."""

    prompt_ids: list[int]
    sampled_ids: list[int]
    logprobs: list[float]
    temperature: float


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """What `verdict.py` has recomputed."""

    version: int
    folder: str
    previous_version: int
    previous_folder: str
    calls: tuple[ServedCall, ...]


def find_proof(log: Log, topics: Topics, run: RunHash, policy: str, weight_root: str = "") -> Proof | str:
    """The proof, or why there is none. `weight_root`: where the run's versions lie now."""
    lineage = Lineage(policy)
    for record in _all(log, topics, Topic.WEIGHTS, WEIGHTS):
        lineage.fold(record)
    versions = lineage.versions
    trained = {manifest.label: manifest for manifest in versions.values() if manifest.version > 0}
    if not trained:
        return "no version was trained in this run"
    since_ms: dict[str, int] = {}
    for ack in _all(log, topics, Topic.WEIGHT_ACKS, WEIGHT_ACKS):
        if ack.policy == policy and ack.label in trained:
            since_ms[ack.label] = min(ack.at_ms, since_ms.get(ack.label, ack.at_ms))
    if not since_ms:
        return "no version trained in this run was acknowledged by an engine"
    sampler = partial(_sampler, run=run, policy=policy, since_ms=since_ms)
    chosen = _rollouts_by_label(_calls(log, topics), sampler)
    if not chosen:
        return "no call made after its acknowledgement bears the label of a version trained in this run"
    for own in sorted((trained[label] for label in chosen), key=lambda manifest: manifest.version, reverse=True):
        earlier = [manifest for manifest in versions.values() if manifest.version < own.version]
        previous = max(earlier, key=lambda manifest: manifest.version, default=own)
        folder, previous_folder = (folder_of(one.uri, weight_root) for one in (own, previous))
        if previous is own or not (Path(folder).is_dir() and Path(previous_folder).is_dir()):
            continue
        calls = _whole_calls(_calls(log, topics), chosen[own.label], own.label, sampler)
        if calls:
            return Proof(
                version=own.version,
                folder=folder,
                previous_version=previous.version,
                previous_folder=previous_folder,
                calls=tuple(calls),
            )
    return "the folders of the versions that served calls are gone; raise [trainer] keep_versions"


def _all(log: Log, topics: Topics, topic: Topic, codec: Codec[T]) -> Iterator[T]:
    """What a topic holds now."""
    name = topics.name(topic)
    return (value for _, value in decoded(read_to_end(log, name), {name: codec}, Refusals(topics, Metrics())))


def _calls(log: Log, topics: Topics) -> Iterator[CallRecord]:
    return (call for call in _all(log, topics, Topic.LLM_CALLS, LLM_CALLS) if isinstance(call, CallRecord))


def _sampler(call: CallRecord, *, run: RunHash, policy: str, since_ms: Mapping[str, int]) -> str | None:
    """The one version that sampled a call of this run, without a grammar, when it began after the acknowledgement."""
    if call.policy != policy or call.rollout_id is None or run_hash_of(call.rollout_id) != run or call.is_constrained:
        return None
    if len(call.versions) != 1 or not are_complete(call.versions, call.num_sampled):
        return None
    label = call.versions[0].label
    return label if label in since_ms and call.started_at_ns >= since_ms[label] * 1_000_000 else None


def _rollouts_by_label(calls: Iterable[CallRecord], sampler: Sampler) -> dict[str, deque[str]]:
    """Per label the last rollouts with a call that proves it; bounded."""
    found: dict[str, deque[str]] = {}
    for call in calls:
        label = sampler(call)
        if label is not None and call.rollout_id is not None:
            rollouts = found.setdefault(label, deque(maxlen=_CALLS))
            if call.rollout_id not in rollouts:
                rollouts.append(call.rollout_id)
    return found


def _whole_calls(
    calls: Iterable[CallRecord], rollouts: Collection[str], label: str, sampler: Sampler
) -> list[ServedCall]:
    """The first calls of those rollouts that prove the label, prompts put together: as many as are cheap, or one."""
    full: dict[str, bytes] = {}
    found: list[ServedCall] = []
    num_tokens = 0
    for call in calls:
        prompt = rebuild_prompt(call, full) if call.rollout_id in rollouts else None
        if prompt is None:
            continue
        full[call.call_id] = prompt + call.sampled_ids
        if not prompt or not call.sampled_ids or sampler(call) != label:
            continue
        served = ServedCall(
            prompt_ids=ids_from_bytes(prompt).tolist(),
            sampled_ids=ids_from_bytes(call.sampled_ids).tolist(),
            logprobs=logprobs_from_bytes(call.logprobs).tolist(),
            temperature=call.sampling_used.temperature,
        )
        num_tokens += len(served.prompt_ids) + len(served.sampled_ids)
        if found and (num_tokens > _TOKENS or len(found) == _CALLS):
            break
        found.append(served)
    return found
