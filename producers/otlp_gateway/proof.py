"""Which spans of a request their sender may send: those that name no rollout of this run, and those of its own.

A span names a rollout by an attribute of its own or of its resource, and by a trace id that begins with the run's hash.
In: a decoded request, whose credential it bore. Out: the request without what is not proved, each resource marked with
the sender whose credential it was (`PROVED_BY`), and by nobody else: the mark is the gateway's. Failure: none.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from tracegrad.schemas.attributes import ATTEMPT_KEYS, PROVED_BY, ROLLOUT_KEYS
from tracegrad.schemas.credentials import Holder, is_host, may_claim
from tracegrad.schemas.ids import RunHash, attempt_of, run_hash_of

__all__ = ["keep_proved", "may_name"]

_Claims = tuple[set[str], set[str]]


def may_name(body: bytes, run: RunHash) -> bool:
    """Whether a request in protobuf can name a rollout of the run; a "no" is sure, and spares a look at each attribute.

    An id in an attribute holds the run's hash as text, a trace id holds it as bytes, and protobuf escapes neither.
    """
    return run.encode() in body or bytes.fromhex(run) in body


def keep_proved(
    request: ExportTraceServiceRequest, holder: Holder | None, run: RunHash, *, is_named: bool = True
) -> int:
    """Takes out the spans of a runner's rollouts that are not the holder's, and marks the rest as the holder's.

    Args:
        request: decoded; changed in place.
        holder: whose credential it bore.
        run: whose rollouts need proof.
        is_named: False: it is known to name none of them.
    Returns:
        How many were taken out. Of an agent host none is: which attempts are its own is told by their end events, so
        that assemble judges by the mark.
    """
    num_before = num_after = 0
    for resource_spans in request.resource_spans:
        attributes = resource_spans.resource.attributes
        if is_named and (holder is None or not is_host(holder)):
            of_resource = _claims(attributes)
            for scope_spans in resource_spans.scope_spans:
                spans = list(scope_spans.spans)
                kept = [span for span in spans if _is_proved(span, of_resource, holder, run)]
                num_before, num_after = num_before + len(spans), num_after + len(kept)
                if len(kept) < len(spans):
                    del scope_spans.spans[:]
                    scope_spans.spans.extend(kept)
        _mark(attributes, holder)
    return num_before - num_after


def _is_proved(span: Span, of_resource: _Claims, holder: Holder | None, run: RunHash) -> bool:
    rollouts, attempts = (one | other for one, other in zip(of_resource, _claims(span.attributes), strict=True))
    named: list[tuple[str, str | None]] = [(rollout, None) for rollout in rollouts if run_hash_of(rollout) == run]
    if (own := attempt_of(span.trace_id.hex(), {run})) is not None:
        named.append(own)
    if named:
        named += [(rollout, attempt) for rollout, _ in named for attempt in attempts]
    return all(may_claim(holder, rollout, attempt) for rollout, attempt in named)


def _claims(attributes: Iterable[KeyValue]) -> _Claims:
    """The rollouts and the attempts that are named."""
    rollouts, attempts = set(), set()
    for pair in attributes:
        if pair.key in ROLLOUT_KEYS:
            rollouts.add(pair.value.string_value)
        elif pair.key in ATTEMPT_KEYS:
            attempts.add(pair.value.string_value)
    return rollouts, attempts


def _mark(attributes: list[KeyValue], holder: Holder | None) -> None:
    """With the holder in the place of whatever the sender wrote there."""
    kept = [attribute for attribute in attributes if attribute.key != PROVED_BY]
    if len(kept) < len(attributes):
        del attributes[:]
        attributes.extend(kept)
    if holder is not None:
        attributes.append(KeyValue(key=PROVED_BY, value=AnyValue(string_value=holder)))
