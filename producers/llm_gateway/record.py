"""Builds the record of `llm_calls` that tells of one finished generation."""

from __future__ import annotations

import time

import numpy as np

from tracegrad.schemas.records.calls import CALLS, CallRecord
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes

from .answer import Answer
from .api.chat_request import ChatRequest
from .engines.generate import Generation
from .identity import Caller
from .sampling import Sampling
from .sessions import Session
from .splice import Prompt

__all__ = ["call_record"]


def call_record(
    caller: Caller,
    policy: str,
    session: Session,
    request: ChatRequest,
    sampling: Sampling,
    prompt: Prompt,
    generation: Generation,
    answer: Answer,
    started_ns: int,
) -> bytes:
    """The bytes of a call record."""
    record = CallRecord(
        call_id=answer.call_id,
        rollout_id=caller.rollout_id,
        attempt_id=caller.attempt_id,
        trace_id=caller.trace_id,
        parent_span_id=caller.parent_span_id,
        policy=policy,
        purpose=session.purpose,
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
        is_constrained=sampling.is_constrained,
        is_truncated=answer.is_truncated,
        splice=prompt.outcome,
        identity=caller.claims,
        engine_id=generation.engine_id,
        started_at_ns=started_ns,
        ended_at_ns=time.time_ns(),
    )
    return CALLS.encode(record)
