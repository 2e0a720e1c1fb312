"""The prompt of a call, which records hold as a difference."""

from __future__ import annotations

from collections.abc import Mapping

from tracegrad.schemas.records.calls import TOKEN_BYTES, CallRecord
from tracegrad.schemas.records.episodes import EpisodeCall


def rebuild_prompt(call: CallRecord | EpisodeCall, full: Mapping[str, bytes]) -> bytes | None:
    """The call's prompt ids, which the record holds as a difference to an earlier call of its episode; None where the
    chain of parents is broken: whoever rebuilds a prompt gets the ids that the engine was given, or nothing.

    Args:
        call: as the gateway or assemble wrote it, in the order of the log.
        full: prompt + sampled ids of the episode's earlier calls, by call id.
    """
    if len(call.suffix_ids) % TOKEN_BYTES or len(call.sampled_ids) % TOKEN_BYTES or call.shared_tokens < 0:
        return None
    if call.parent_call_id is None:
        return call.suffix_ids if call.shared_tokens == 0 else None
    parent = full.get(call.parent_call_id)
    num_shared = call.shared_tokens * TOKEN_BYTES
    if parent is None or num_shared > len(parent):
        return None
    return parent[:num_shared] + call.suffix_ids
