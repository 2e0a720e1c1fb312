"""Segments: an episode's calls of one policy as chains of tokens, each sampled token exactly once.

In: an episode's calls in order; prompts are differences (parent, shared length, suffix). Out: segments. A call
continues a segment when its prompt begins with the last call's prompt + sampled ids, token by token; nothing else
(time, agent, turn) chains. Where two calls continue the same one, the first stays in the row and the others begin
rows of their own that repeat the prefix with mask 0. Masked calls keep their tokens, with mask 0.
Failure: a prompt that cannot be rebuilt raises RecordError; the rollout is then excluded with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.records.episodes import EpisodeCall
from tracegrad.schemas.records.prompts import rebuild_prompt
from tracegrad.schemas.records.tokens import Ids, Logprobs, Mask, ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.transitions import MAX_LOGPROB
from tracegrad.schemas.records.versions import are_complete

__all__ = ["CallSlice", "Segment", "build_segments", "rebuild_prompts", "why_masked"]

_TOKEN_BYTES = 4
MAX_REBUILT_BYTES = 256 * 1024 * 1024
"""Of all prompts of an episode; differences could otherwise unfold without bound."""


MAX_TEMPERATURE = 100.0
"""Greedy calls have no distribution to divide by; absurd ones overflow float32."""


class CallSlice(msgspec.Struct, frozen=True, kw_only=True):
    """One call's sampled tokens [start, end) in its segment."""

    call: EpisodeCall
    index: int
    """The call's place in the episode."""
    start: int
    end: int
    masked: str
    """Why they carry mask 0; empty when they train."""


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """One chain; the three arrays have one length."""

    token_ids: Ids
    loss_mask: Mask
    logprobs: Logprobs
    slices: tuple[CallSlice, ...]


def rebuild_prompts(calls: Sequence[EpisodeCall]) -> list[bytes | None]:
    """Each call's prompt ids (int32 LE), in the order of the calls; None where its chain of parents is broken."""
    prompts: list[bytes | None] = []
    full: dict[str, bytes] = {}
    num_bytes = 0
    for call in calls:
        prompt = rebuild_prompt(call, full)
        prompts.append(prompt)
        if prompt is None:
            continue
        full[call.call_id] = prompt + call.sampled_ids
        num_bytes += len(full[call.call_id])
        if num_bytes > MAX_REBUILT_BYTES:
            raise RecordError(f"expected prompts of at most {MAX_REBUILT_BYTES} bytes in all", reason="too_large")
    return prompts


def why_masked(call: EpisodeCall) -> str:
    """Why the call's tokens leave the loss, be it the assembler's reason or numbers that cannot train."""
    if call.masked:
        return call.masked
    if len(call.logprobs) != len(call.sampled_ids):
        return "bad_logprobs"
    logprobs = logprobs_from_bytes(call.logprobs)
    if not np.isfinite(logprobs).all() or (logprobs > MAX_LOGPROB).any():
        return "bad_logprobs"
    if not 0 < call.temperature <= MAX_TEMPERATURE:
        return "bad_temperature"
    return "" if are_complete(call.versions, len(call.sampled_ids) // _TOKEN_BYTES) else "bad_versions"


class _Chain:
    """A segment in the making."""

    def __init__(self, prompt: bytes) -> None:
        self.ids = prompt
        self.slices: list[CallSlice] = []

    def append(self, index: int, call: EpisodeCall, prompt: bytes) -> None:
        """Adds a call whose prompt begins with all of the chain's ids."""
        start = len(prompt) // _TOKEN_BYTES
        self.ids = prompt + call.sampled_ids
        end = len(self.ids) // _TOKEN_BYTES
        self.slices.append(CallSlice(call=call, index=index, start=start, end=end, masked=why_masked(call)))

    def segment(self) -> Segment:
        """The finished row."""
        ids = ids_from_bytes(self.ids)
        if ids.size and int(ids.min()) < 0:
            raise RecordError("expected token ids >= 0, got a negative one", reason="bad_tokens")
        mask = np.zeros(ids.size, dtype=np.uint8)
        logprobs = np.zeros(ids.size, dtype=np.float32)
        for piece in self.slices:
            if not piece.masked:
                mask[piece.start : piece.end] = 1
                logprobs[piece.start : piece.end] = logprobs_from_bytes(piece.call.logprobs)
        return Segment(token_ids=ids, loss_mask=mask, logprobs=logprobs, slices=tuple(self.slices))


def build_segments(calls: Sequence[EpisodeCall], policy: str) -> tuple[Segment, ...]:
    """The segments of one policy's calls, by their first call; other policies' calls are context only.

    Raises:
        RecordError: `broken_prefix` (a prompt cannot be rebuilt), `bad_tokens`, `too_large`.
    """
    chains: list[_Chain] = []
    for index, (call, prompt) in enumerate(zip(calls, rebuild_prompts(calls), strict=True)):
        if call.policy != policy:
            continue
        if prompt is None:
            raise RecordError(
                f"expected the prompt of call {call.call_id} to follow from its parent's, got a break",
                reason="broken_prefix",
            )
        # Of equal ends the longest is the last call of the path; where that one has been continued already, its
        # chain has moved on and no longer ends there, so this call begins a row of its own.
        ends = [chain for chain in chains if prompt.startswith(chain.ids)]
        chain = max(ends, key=lambda chain: len(chain.ids), default=None)
        if chain is None:
            chain = _Chain(prompt)
            chains.append(chain)
        chain.append(index, call, prompt)
    return tuple(chain.segment() for chain in chains)
