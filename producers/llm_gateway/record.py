"""Builds the records of `llm_calls`: one per finished generation, one when an attempt's calls are complete. Pure."""

from __future__ import annotations

import msgspec
import numpy as np

from tracegrad.schemas.records.calls import CALLS, CallOutcome, CallRecord, CallsClosed, Purpose, ToolCall
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes

from .answer import Answer
from .api.chat_request import ChatRequest
from .engines.generate import Generation
from .identity import Caller
from .sampling import Sampling
from .splice import Prompt

__all__ = ["CallSummary", "call_record", "closed_record"]


class CallSummary(msgspec.Struct, kw_only=True):
    """What `/end` tells of a call."""

    call_id: str
    outcome: CallOutcome
    content: str | None
    tool_calls: tuple[ToolCall, ...]
    finish_reason: str
    num_sampled: int


def call_record(
    *,
    caller: Caller,
    policy: str,
    purpose: Purpose,
    prompt: Prompt,
    generation: Generation,
    answer: Answer,
    sampling: Sampling,
    request: ChatRequest,
    is_constrained: bool,
    times_ns: tuple[int, int],
) -> bytes:
    """The bytes of a call record."""
    record = CallRecord(
        call_id=answer.call_id,
        rollout_id=caller.rollout_id,
        attempt_id=caller.attempt_id,
        trace_id=caller.trace_id,
        parent_span_id=caller.parent_span_id,
        policy=policy,
        purpose=purpose,
        parent_call_id=prompt.parent.call_id if prompt.parent else None,
        shared_tokens=prompt.shared_tokens,
        suffix_ids=prompt.ids[prompt.shared_tokens :].astype("<i4").tobytes(),
        sampled_ids=ids_to_bytes(generation.ids),
        logprobs=logprobs_to_bytes(np.minimum(np.asarray(generation.logprobs, np.float32), 0)),
        versions=generation.versions,
        finish_reason=answer.finish_reason,
        content=answer.content,
        tool_calls=answer.tool_calls,
        sampling_asked=request.asked,
        sampling_used=sampling.used,
        is_constrained=is_constrained,
        is_truncated=answer.is_truncated,
        splice=prompt.outcome,
        identity=caller.claims,
        engine_id=generation.engine_id,
        started_at_ns=times_ns[0],
        ended_at_ns=times_ns[1],
    )
    return CALLS.encode(record)


def closed_record(rollout_id: str, attempt_id: str, outcomes: dict[str, CallOutcome]) -> bytes:
    """The bytes of a `calls_closed` record."""
    return CALLS.encode(CallsClosed(rollout_id=rollout_id, attempt_id=attempt_id, outcomes=outcomes))
