"""Which sampling parameters a call uses: forced for rollouts, the request's own for captured agents. Pure.

In: the chat request and the attempt's purpose. Out: what the record says was used, and what the engine is sent.
For a trained policy every field is written here, so that the recorded logprobs are the policy's: only
`max_tokens` and `stop` of the request are honoured.
"""

from __future__ import annotations

from typing import Any

import msgspec

from tracegrad.schemas.records.calls import Purpose, SamplingParameters

from .api.chat_request import ChatRequest, NamedTool, ToolUse
from .config import PolicyConfig
from .engines.engine import Sampling


def decide(request: ChatRequest, purpose: Purpose, policy: PolicyConfig, grammar: Any) -> Sampling:
    """The sampling of one call."""
    wishes = request.wishes
    bounds = [bound for bound in (wishes.max_tokens, policy.max_tokens) if bound is not None]
    if purpose is Purpose.UNKNOWN:
        used = SamplingParameters(
            temperature=1.0 if wishes.temperature is None else wishes.temperature,
            top_p=1.0 if wishes.top_p is None else wishes.top_p,
            top_k=max(0, wishes.top_k or 0),
            min_p=wishes.min_p or 0.0,
            seed=wishes.seed,
        )
    else:
        greedy = purpose is Purpose.VALIDATION
        used = SamplingParameters(temperature=policy.validation_temperature if greedy else policy.temperature)
    return Sampling(
        used=msgspec.structs.replace(used, max_tokens=min(bounds, default=None), stop=wishes.stop),
        filters=wishes.filters if purpose is Purpose.UNKNOWN else {},
        top_logprobs=wishes.top_logprobs,
        grammar=grammar,
    )


def without_strict(request: ChatRequest) -> ChatRequest:
    """The request with no tool strict, which would be sampled under a grammar: its logprobs are not the policy's."""
    tools = request.tools and tuple(msgspec.structs.replace(tool, is_strict=None) for tool in request.tools)
    return msgspec.structs.replace(request, tools=tools)


def unforced(request: ChatRequest) -> ChatRequest:
    """The request with a choice of tools that the policy makes itself: a call that must be made is sampled under a
    grammar, and cannot train. What the engine refuses (no such tool) stays as it is, for it to say so."""
    choice, tools = request.tool_choice, request.tools or ()
    is_named = isinstance(choice, NamedTool) and any(tool.name == choice.name for tool in tools)
    if is_named or (choice is ToolUse.REQUIRED and tools):
        return msgspec.structs.replace(request, tool_choice=ToolUse.AUTO)
    return request
