"""Every released record: its bytes lie under golden/ and are decoded for ever.

A new release, or a field added within one (`call-1-b.msgpack`), adds a file, which never
changes again. A JSON file says its names and values itself, so it is written by hand. Of what nobody can read, the
instance stands in WRITTEN, and this writes its file:

    python -m tests.schemas.released        (existing files are never overwritten)
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tests.versions import sampled_by
from tracegrad.schemas.ids import CallId, RunHash
from tracegrad.schemas.records import calls, episodes, facts, process_status, rollouts, training, transitions, weights
from tracegrad.schemas.records.codec import Codec
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes

GOLDEN = Path(__file__).with_name("golden")
Group = tuple[transitions.GroupSummary, list[transitions.SegmentRow]]

RUN = RunHash("1f2e3d4c")
ROLLOUT = RUN + "0123456789abcdef0123"
EPISODE = ROLLOUT + "9a3c"
SPAN_3 = sampled_by(3, run=RUN)
GROUP = rollouts.GroupRef(id="1f2e3d4c" + "fedcba9876543210", size=8, member=3, index=12)


def _facts(*made: facts.Fact, **changes: Any) -> facts.Facts:
    return facts.Facts(**{"episode_id": EPISODE, "facts": made, **changes})


def _span(**changes: Any) -> facts.SpanFact:
    return msgspec.structs.replace(SPAN, **changes)


def _event(file_name: str) -> rollouts.RolloutEvent:
    return rollouts.ROLLOUT_EVENTS.decode((GOLDEN / file_name).read_bytes())


CALL = calls.CallRecord(
    call_id=CallId("chatcmpl-5f0c" + "0" * 28),
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    trace_id=EPISODE,
    parent_span_id="00f067aa0ba902b7",
    policy="policy",
    purpose=calls.Purpose.TRAIN,
    parent_call_id=CallId("chatcmpl-4e0b" + "0" * 28),
    shared_tokens=3,
    suffix_ids=ids_to_bytes([7, 8]),
    sampled_ids=ids_to_bytes([9, 10, 2]),
    logprobs=logprobs_to_bytes([-0.25, -1.5, 0.0]),
    versions=(SPAN_3, sampled_by(4, start=2, run=RUN)),
    finish_reason="tool_calls",
    content=None,
    tool_calls=(calls.ToolCall(id="call_1", name="calculate", arguments='{"a": 26}'),),
    sampling_asked={"temperature": 0.3, "stop": ["x"]},
    sampling_used=calls.SamplingParameters(temperature=1.0, max_tokens=64, stop=("x",), seed=5),
    is_constrained=True,
    is_truncated=True,
    splice=calls.SpliceOutcome(kind="new_segment", reason="turn_changed"),
    claims=calls.Claims(path=f"{ROLLOUT}/9a3c", traceparent=f"00-{EPISODE}-00f067aa0ba902b7-01"),
    engine_id="engine-0",
    started_at_ns=1_700_000_000_000_000_000,
    ended_at_ns=1_700_000_000_500_000_000,
)
CONTINUED_CALL = msgspec.structs.replace(
    CALL, rollout_id=None, attempt_id=None, purpose=calls.Purpose.UNKNOWN, conversation_key="5e" * 16
)
CHOSEN_CALL = msgspec.structs.replace(CALL, num_choices=2)
ASKED_CALL = msgspec.structs.replace(CALL, answers_user=True)
CALLS_CLOSED = calls.CallsClosed(
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    outcomes={"chatcmpl-1": calls.CallOutcome.DELIVERED, "chatcmpl-2": calls.CallOutcome.CLIENT_DISCONNECTED},
)
CALL_OPEN = calls.CallOpen(
    call_id=CALL.call_id,
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    trace_id="cd" * 16,
    conversation_key="ab" * 16,
    started_at_ns=1_700_000_000_000_000_000,
)
CALL_ENDED = calls.CallEnded(
    call_id=CALL.call_id,
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    trace_id="cd" * 16,
    conversation_key="ab" * 16,
    outcome=calls.CallOutcome.SUPERSEDED,
    reason="UnavailableError",
)
UPSTREAM_CALL = calls.UpstreamCall(
    call_id=CallId("chatcmpl-0p4H8qT1mZ6vW3kR9sX2bN" + "a" * 9),
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    trace_id=EPISODE,
    parent_span_id="00f067aa0ba902b7",
    upstream="openai",
    route="/v1/chat/completions",
    model="gpt-4o",
    answered_model="gpt-4o-2024-11-20",
    status=200,
    outcome=calls.CallOutcome.DELIVERED,
    response_id="chatcmpl-AbC",
    tool_call_ids=("call_xyz",),
    prompt_tokens=12,
    sampled_tokens=34,
    claims=calls.Claims(traceparent=f"00-{EPISODE}-00f067aa0ba902b7-01"),
    conversation_key="0f" * 16,
    started_at_ns=1_700_000_000_000_000_000,
    ended_at_ns=1_700_000_000_500_000_000,
)
REWARD = rollouts.REWARDS.decode((GOLDEN / "reward-1.json").read_bytes())
SPAN = facts.SpanFact(
    trace_id=EPISODE,
    span_id="00f067aa0ba902b7",
    parent_span_id=None,
    name="execute_tool calculate",
    kind=facts.SpanKind.TOOL,
    dialect="otel_genai",
    service="agent",
    start_ns=1,
    end_ns=2,
    agent_name="solver",
    response_id="chatcmpl-1",
    tool_name="calculate",
    tool_call_id="call_1",
    tool_status=facts.ToolStatus.FAILED,
    tool_status_from="text",
    error_type="ValueError",
    proved_by="rh-0123456789abcdef",
)
FACTS = _facts(
    SPAN,
    facts.CallFact(call=CALL, order=42),
    facts.CallsClosedFact(closed=CALLS_CLOSED),
    facts.RewardFact(reward=REWARD),
    facts.RolloutFact(event=_event("rollout_event-1.json")),
)
SUMMARY = transitions.GroupSummary(
    group_id=GROUP.id,
    group_index=12,
    task_id="7",
    policy="policy",
    members=(
        transitions.MemberSummary(
            rollout_id=ROLLOUT, episode_id=EPISODE, attempt_id="9a3c", state="succeeded", reward=1.0, num_tools=1
        ),
        transitions.MemberSummary(
            rollout_id="1f2e3d4c" + "1" * 20,
            episode_id="1f2e3d4c" + "1" * 20 + "0000",
            attempt_id="0000",
            state="given_up",
            reward=None,
            excluded="given_up",
        ),
    ),
    peers="turn_or_end",
)
ROW = transitions.SegmentRow(
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    segment=0,
    token_ids=np.array([5, 6, 9, 10, 7], np.int32),
    loss_mask=np.array([0, 0, 1, 1, 0], np.uint8),
    logprobs=np.array([0.0, 0.0, -0.5, -1.25, 0.0], np.float32),
    turns=(
        transitions.Turn(
            start=2,
            end=4,
            turn=0,
            call_id="chatcmpl-1",
            agent="solver",
            temperature=1.0,
            reward_parts=(episodes.AppliedReward(rule="air:tool_ok", value=0.1),),
            return_=1.1,
            peers="solver:0",
            weight=1.0,
            versions=(SPAN_3, sampled_by(4, start=1, run=RUN)),
        ),
    ),
    rollout_tokens=2,
)
# Fields added within a release.
COUNTED_FACTS = _facts(_span(is_counted=True), facts.RolloutFact(event=_event("rollout_event-1-b.json")))
JOINING_FACTS = _facts(
    _span(
        kind=facts.SpanKind.LLM,
        response_id=None,
        output_digest=facts.digest_of("26"),
        requested_tool_call_ids=("call_1", "call_2"),
        agent_hints={"lc_agent_name": "solver"},
        parent_is_remote=True,
    )
)
PLACED_FACTS = _facts(facts.CallFact(call=CONTINUED_CALL, order=42, partition=3), episode_id="5e" * 16)
LINKED_FACTS = _facts(
    SPAN,
    facts.LinkFact(trace_id="ab" * 16, key="5e" * 16, source=facts.LinkSource.ID, minted_id="call_1"),
    facts.LinkFact(trace_id="ab" * 16, key="5e" * 16, source=facts.LinkSource.CONVERSATION),
    episode_id="5e" * 16,
    forwarded_from="ab" * 16,
)
CAPTURED_FACTS = _facts(
    _span(parent_is_local=True), facts.CallOpenFact(open=CALL_OPEN), facts.CallEndedFact(ended=CALL_ENDED)
)
REWARDING_FACTS = _facts(
    _span(
        rewards=(
            facts.SpanReward(name="agent", value=0.5, target="chatcmpl-5f0c" + "0" * 28),
            facts.SpanReward(name="agent.short", value=None),
        )
    )
)
RETURNED_FACTS = _facts(_span(tool_result="72 and m", is_result_cut=True, http_status=503))
LOG_FACTS = _facts(
    facts.LogFact(
        trace_id=EPISODE,
        span_id="00f067aa0ba902b7",
        event_name="gen_ai.choice",
        agent_name="solver",
        response_id="chatcmpl-1",
        tool_call_id="call_1",
        output_digest=facts.digest_of("26"),
        requested_tool_call_ids=("call_1",),
        proved_by="rh-0",
    )
)


class _Groups:
    """The codec of `transitions`: a group's summary and rows."""

    def encode(self, group: Group) -> bytes:
        return transitions.encode_group(*group)

    def decode(self, data: bytes) -> Group:
        return transitions.decode_group(data)


CODECS: dict[str, Any] = {
    schema: codec
    for module in (calls, episodes, facts, process_status, rollouts, training, weights)
    for codec in vars(module).values()
    if isinstance(codec, Codec)
    for schema in codec._released
} | {"transitions/1": _Groups()}
"""Released schema -> its codec."""
WRITTEN = {
    "call-1.msgpack": CALL,
    "call-1-c.msgpack": CONTINUED_CALL,
    "call-1-n.msgpack": CHOSEN_CALL,
    "call-1-u.msgpack": ASKED_CALL,
    "call-1-r.msgpack": msgspec.structs.replace(CALL, is_cut=True, reasoning="even"),
    "call-1-s.msgpack": msgspec.structs.replace(CALL, is_truncated=False, is_cut=True, stop_text="</code>\n"),
    "calls_closed-1.msgpack": CALLS_CLOSED,
    "call_open-1.msgpack": CALL_OPEN,
    "call_ended-1.msgpack": CALL_ENDED,
    "upstream_call-1.msgpack": UPSTREAM_CALL,
    "facts-1.msgpack": FACTS,
    "facts-1-b.msgpack": COUNTED_FACTS,
    "facts-1-c.msgpack": LINKED_FACTS,
    "facts-1-d.msgpack": PLACED_FACTS,
    "facts-1-e.msgpack": msgspec.structs.replace(LINKED_FACTS, hops=2),
    "facts-1-k.msgpack": JOINING_FACTS,
    "facts-1-l.msgpack": CAPTURED_FACTS,
    "close-1-b.msgpack": facts.Close(episode_id=EPISODE, reason="idle", num_records=7),
    "close-1-c.msgpack": facts.Close(episode_id=EPISODE, reason="unclaimed", before=42),
    "facts-1-m.msgpack": REWARDING_FACTS,
    "facts-1-n.msgpack": LOG_FACTS,
    "facts-1-t.msgpack": RETURNED_FACTS,
    "facts-1-v.msgpack": _facts(facts.ContextCallFact(call=UPSTREAM_CALL, order=5, partition=2)),
    "close-1.msgpack": facts.Close(episode_id=EPISODE, reason="deadline"),
    "transitions-1.arrow": (SUMMARY, [ROW]),
    "transitions-1-x.arrow": (msgspec.structs.replace(SUMMARY, air_rules=("5d41402abc4b2a76",)), [ROW]),
}
"""What a binary file says."""
RELEASED = {
    name: CODECS["/".join(re.split("[-.]", name)[:2])]
    for name in sorted({*WRITTEN, *(path.name for path in GOLDEN.iterdir())})
}
"""File under golden/ -> the codec that still reads it."""


def write_missing() -> list[str]:
    """Writes the binary files that are not there yet; returns their names."""
    missing = [name for name in WRITTEN if not (GOLDEN / name).exists()]
    for name in missing:
        (GOLDEN / name).write_bytes(RELEASED[name].encode(WRITTEN[name]))
    return missing


if __name__ == "__main__":
    print("written:", ", ".join(write_missing()) or "nothing; every binary record has its file")
