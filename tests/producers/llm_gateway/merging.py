"""What the stages make of a gateway's calls: whether turns merge into one row, with mask 1 on what was sampled."""

from __future__ import annotations

import msgspec
import pytest

from tests.producers.keys import RUN_HASH
from tests.producers.llm_gateway.harness import ATTEMPT, ROLLOUT, Rig, full_prompt
from tests.streams.make import Streams, config, event, reward
from tracegrad.producers.llm_gateway.render.splice import Match, SpliceHistory
from tracegrad.schemas.records.calls import CallRecord, SpliceOutcome
from tracegrad.schemas.records.episodes import EPISODES
from tracegrad.schemas.records.rollouts import GroupRef
from tracegrad.schemas.records.tokens import ids_from_bytes, logprobs_from_bytes
from tracegrad.schemas.records.transitions import SegmentRow, decode_group
from tracegrad.schemas.topics import Topic


async def rows_of(r: Rig) -> list[SegmentRow]:
    """Ends the attempt; its rows as the trainer reads them, through normalize, assemble and credit."""
    await r.end()
    streams = Streams(config(run_hash=RUN_HASH))
    for record in r.records():
        if isinstance(record, CallRecord):
            # A small model may babble to its limit; that would leave the loss, and is not the question here.
            record = msgspec.structs.replace(record, is_truncated=False)
        streams.feed(record)
    group = GroupRef(id=RUN_HASH + "f" * 16, size=1, member=0, index=0)
    streams.feed(reward(ROLLOUT, attempt_id=ATTEMPT), event(ROLLOUT, attempt_id=ATTEMPT, group=group))
    (value,) = streams.values(Topic.TRANSITIONS)
    summary, rows = decode_group(value)
    assert not summary.members[0].excluded
    return rows


async def masks_of(r: Rig) -> dict[str, str]:
    """Call id -> why it leaves the loss, once the attempt has ended; empty: it trains."""
    await r.end()
    streams = Streams(config(run_hash=RUN_HASH))
    streams.feed(*r.records(), reward(ROLLOUT, attempt_id=ATTEMPT), event(ROLLOUT, attempt_id=ATTEMPT))
    (value,) = streams.values(Topic.EPISODES)
    return {call.call_id: call.masked for call in EPISODES.decode(value).calls}


def assert_merged(rows: list[SegmentRow], calls: list[CallRecord]) -> None:
    """One row: the last prompt and answer, with mask 1 and the sampler's logprobs just where ids were sampled."""
    (row,) = rows
    last = calls[-1]
    assert list(row.token_ids) == full_prompt(last, calls) + ids_from_bytes(last.sampled_ids).tolist()
    mask = [0] * len(row.token_ids)
    logprobs = [0.0] * len(row.token_ids)
    for call in calls:
        sampled = ids_from_bytes(call.sampled_ids).tolist()
        start = len(full_prompt(call, calls))
        assert list(row.token_ids[start : start + len(sampled)]) == sampled
        mask[start : start + len(sampled)] = [1] * len(sampled)
        logprobs[start : start + len(sampled)] = logprobs_from_bytes(call.logprobs).tolist()
    assert list(row.loss_mask) == mask
    assert list(row.logprobs) == logprobs


def disable_splice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every prompt is then the template's own."""
    nothing = Match(call=None, position=-1, outcome=SpliceOutcome(kind="new_segment", reason="no_match"))
    monkeypatch.setattr(SpliceHistory, "match", lambda *_: nothing)
