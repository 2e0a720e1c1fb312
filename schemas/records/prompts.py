"""A call's prompt, put together again: on the log it is a difference to what an earlier call of its episode held.

In: calls in the order of the log, as the gateway (CallRecord) or assemble (EpisodeCall) wrote them. Out: prompt ids as
bytes, int32 LE. Invariant: whoever rebuilds a prompt gets the ids that the engine was given, or nothing. Failure: None
where the chain of parents is broken; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping

from .calls import CallRecord
from .episodes import EpisodeCall

__all__ = ["rebuild_prompt"]

_TOKEN_BYTES = 4


def rebuild_prompt(call: CallRecord | EpisodeCall, full: Mapping[str, bytes]) -> bytes | None:
    """The call's prompt; `full` holds prompt + sampled ids of the episode's earlier calls, by call id."""
    if len(call.suffix_ids) % _TOKEN_BYTES or len(call.sampled_ids) % _TOKEN_BYTES or call.shared_tokens < 0:
        return None
    if call.parent_call_id is None:
        return call.suffix_ids if call.shared_tokens == 0 else None
    parent = full.get(call.parent_call_id)
    num_shared = call.shared_tokens * _TOKEN_BYTES
    if parent is None or num_shared > len(parent):
        return None
    return parent[:num_shared] + call.suffix_ids
