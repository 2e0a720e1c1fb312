"""Segments: an episode's calls of one policy as chains of tokens, each sampled token exactly once.

In: an episode, its calls in order (prompts are differences: parent, shared length, suffix), and what each call is
worth.
Out: the policy's rows. A call continues a segment when its prompt begins with the last call's prompt + sampled ids,
token by token; nothing else (time, agent, turn) chains. Where two calls continue the same one, the first stays in the
row and the others begin rows of their own that repeat the prefix with mask 0. Masked calls keep their tokens, with
mask 0.
A call whose prompt cannot be rebuilt, for its parent is missing, has no row, nor have those that rest on it; the others
train. Failure: RecordError, where no call is left or numbers are bad; the rollout is then excluded with its reason.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tracegrad.schemas.errors import RecordError
from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import TOKEN_BYTES
from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import is_usable
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.transitions import MAX_LOGPROB, MAX_TEMPERATURE, MIN_TEMPERATURE, SegmentRow, Turn
from tracegrad.schemas.records.versions import are_complete

from .prefix_tree import AddedCall, Prefix, PrefixTree
from .strategies.strategy import CallCredit

MAX_ROW_BYTES = 64 * 1024 * 1024
"""Of the ids of all rows of an episode, twice the greatest record of `transitions`; rows that repeat a long prefix
could otherwise unfold without bound."""


def why_masked(call: EpisodeCall) -> str:
    """Why the call's tokens leave the loss, be it the assembler's reason or numbers that cannot train."""
    if call.masked:
        return call.masked
    if len(call.logprobs) != len(call.sampled_ids):
        return Reason.BAD_LOGPROBS
    logprobs = logprobs_from_bytes(call.logprobs)
    if not np.isfinite(logprobs).all() or (logprobs > MAX_LOGPROB).any():
        return Reason.BAD_LOGPROBS
    if not _temperature(call):
        return Reason.BAD_TEMPERATURE
    return "" if are_complete(call.versions, call.num_sampled) else Reason.BAD_VERSIONS


def _temperature(call: EpisodeCall) -> float:
    """What the logits are divided by; 0 for a greedy call, which has no distribution, and for an absurd one."""
    return call.temperature if MIN_TEMPERATURE <= call.temperature <= MAX_TEMPERATURE else 0.0


class _Chain:
    """A segment in the making; mask and logprobs are as long as the ids, as bytes."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.end: Prefix | None = None
        """Of its last call."""
        self.mask = bytearray()
        self.logprobs = bytearray()
        self.turns: list[Turn] = []

    def append(self, call: EpisodeCall, grown: AddedCall, credit: CallCredit) -> None:
        """Adds a call whose prompt begins with all of the chain's ids."""
        masked = why_masked(call)
        start = grown.num_prompt_bytes // TOKEN_BYTES
        num_sampled = call.num_sampled
        num_context = start - len(self.mask)
        self.end = grown.end
        self.mask += bytes(num_context) + (b"\0" if masked else b"\1") * num_sampled
        self.logprobs += bytes(num_context * TOKEN_BYTES)
        self.logprobs += bytes(len(call.sampled_ids)) if masked else call.logprobs
        self.turns.append(
            Turn(
                start=start,
                end=start + num_sampled,
                turn=call.turn,
                call_id=call.call_id,
                agent=call.agent,
                temperature=_temperature(call),
                reward_parts=tuple(reward for reward in call.rewards if is_usable(reward.value)),
                return_=credit.return_,
                peers=credit.peers,
                weight=credit.weight,
                versions=call.versions,
                masked=masked,
            )
        )


def build_segments(episode: Episode, policy: str, credits: Sequence[CallCredit]) -> list[SegmentRow]:
    """The segments of one policy's calls, by their first call; other policies' calls are context only.

    Args:
        credits: what each call of the episode is worth.

    Raises:
        RecordError: `broken_prefix` (no call's prompt can be rebuilt), `bad_tokens`, `too_large`.
    """
    chains: list[_Chain] = []
    tree = PrefixTree()
    num_bytes = 0
    broken: list[str] = []
    for call, credit in zip(episode.calls, credits, strict=True):
        grown = tree.add_call(call)
        if call.policy != policy:
            continue
        if grown is None:
            broken.append(call.call_id)
            continue
        # The longest is the last call of the path; where that one has been continued already, its chain has moved on
        # and no longer ends there, so this call begins a row of its own.
        number = tree.row_at(grown.known)
        if number is None:
            number = len(chains)
            chains.append(_Chain(number))
        chain = chains[number]
        num_bytes += grown.end.end - (chain.end.end if chain.end else 0)
        if num_bytes > MAX_ROW_BYTES:
            raise RecordError(f"expected rows of at most {MAX_ROW_BYTES} bytes of ids in all", reason=Reason.TOO_LARGE)
        tree.end_row(number, grown.end, before=chain.end)
        chain.append(call, grown, credit)
    if broken and not chains:
        raise RecordError(
            f"expected the prompt of some call to follow from its parent's, got breaks at all {len(broken)}, first at "
            f"{broken[0]}",
            reason=Reason.BROKEN_PREFIX,
        )
    num_trained = sum(chain.mask.count(1) for chain in chains)
    return [_row(episode, chain, tree, num_trained) for chain in chains]


def _row(episode: Episode, chain: _Chain, tree: PrefixTree, num_trained: int) -> SegmentRow:
    assert chain.end is not None  # it has a call
    ids = ids_from_bytes(tree.ids(chain.end))
    if (ids < 0).any():
        raise RecordError("expected token ids >= 0, got a negative one", reason=Reason.BAD_TOKENS)
    return SegmentRow(
        rollout_id=episode.rollout_id or episode.episode_id,
        attempt_id=episode.attempt_id or "",
        segment=chain.number,
        token_ids=ids,
        loss_mask=np.frombuffer(bytes(chain.mask), dtype=np.uint8),
        logprobs=logprobs_from_bytes(bytes(chain.logprobs)),
        turns=tuple(chain.turns),
        rollout_tokens=num_trained,
    )
