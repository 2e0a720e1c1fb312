"""Which spans or log records of a request their sender may send: those that name no rollout of this run, and its own.

An item names a rollout by an attribute of its own or of its resource, and by a trace id beginning with the run's hash.
In: a decoded request, whose credential it bore. Out: the request without what is not proved, each resource marked with
the sender whose credential it was (`PROVED_BY`), and by nobody else: the mark is the gateway's. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from google.protobuf.message import Message  # type: ignore[import-untyped]
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from tracegrad.schemas.attributes import ATTEMPT_KEYS, PROVED_BY, ROLLOUT_KEYS
from tracegrad.schemas.credentials import Holder, is_host, may_claim
from tracegrad.schemas.ids import RunHash, attempt_of, is_lightning, run_hash_of
from tracegrad.schemas.otlp.signal import Signal

_Claims = tuple[set[str], set[str]]


def may_name(body: bytes, run: RunHash) -> bool:
    """Whether a request in protobuf can name a rollout of the run; a "no" is sure, and spares a look at each attribute.

    An id in an attribute holds the run's hash as text, a trace id holds it as bytes, and protobuf escapes neither.
    """
    return run.encode() in body or bytes.fromhex(run) in body


def keep_proved(signal: Signal, request: Message, holder: Holder | None, run: RunHash, *, is_named: bool = True) -> int:
    """Takes out the items of a runner's rollouts that are not the holder's, and marks the rest as the holder's.

    Args:
        signal: what the request is of.
        request: decoded; changed in place.
        holder: whose credential it bore.
        run: whose rollouts need proof.
        is_named: False: it is known to name none of them.
    Returns:
        How many were taken out. Of an agent host none is: which attempts are its own is told by their end events, so
        that assemble judges by the mark.
    """
    num_before = num_after = 0
    for of_resource in getattr(request, signal.resources):
        attributes = of_resource.resource.attributes
        if is_named and (holder is None or not is_host(holder)):
            of_all = _claims(attributes)
            for of_scope in getattr(of_resource, signal.scopes):
                items = getattr(of_scope, signal.fields)
                all_ = list(items)
                kept = [item for item in all_ if _is_proved(item, of_all, holder, run)]
                num_before, num_after = num_before + len(all_), num_after + len(kept)
                if len(kept) < len(all_):
                    del items[:]
                    items.extend(kept)
        _mark(attributes, holder)
    return num_before - num_after


def _is_proved(item: Any, of_resource: _Claims, holder: Holder | None, run: RunHash) -> bool:
    rollouts, attempts = (one | other for one, other in zip(of_resource, _claims(item.attributes), strict=True))
    named: list[tuple[str, str | None]] = [(rollout, None) for rollout in rollouts if run_hash_of(rollout) == run]
    if (own := attempt_of(item.trace_id.hex(), {run})) is not None:
        named.append(own)
    if named:
        named += [(rollout, attempt) for rollout, _ in named for attempt in attempts]
    return all(may_claim(holder, rollout, attempt) for rollout, attempt in named)


def _claims(attributes: Iterable[KeyValue]) -> _Claims:
    """The rollouts and the attempts that are named; nothing, and a name of another system's, is none of ours."""
    rollouts: set[str] = set()
    attempts: set[str] = set()
    for pair in attributes:
        named = rollouts if pair.key in ROLLOUT_KEYS else attempts if pair.key in ATTEMPT_KEYS else None
        if named is not None and (text := pair.value.string_value) and not is_lightning(text):
            named.add(text)
    return rollouts, attempts


def _mark(attributes: list[KeyValue], holder: Holder | None) -> None:
    """With the holder in the place of whatever the sender wrote there."""
    kept = [attribute for attribute in attributes if attribute.key != PROVED_BY]
    if len(kept) < len(attributes):
        del attributes[:]
        attributes.extend(kept)
    if holder is not None:
        attributes.append(KeyValue(key=PROVED_BY, value=AnyValue(string_value=holder)))
