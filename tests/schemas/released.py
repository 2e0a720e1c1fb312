"""One instance of every released record, whose bytes lie under golden/ and are decoded for ever.

A new release, or a field added within one (`call-1-b.msgpack`), adds an entry here and writes its file once:

    python -m tests.schemas.released        (existing files are never overwritten)
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tests.versions import sampled_by
from tracegrad.schemas.ids import CallId, RunHash
from tracegrad.schemas.records import calls, episodes, facts, process_status, rollouts, training, transitions, weights
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes

__all__ = ["GOLDEN", "RELEASED", "Released"]

GOLDEN = Path(__file__).with_name("golden")

RUN = RunHash("1f2e3d4c")
ROLLOUT = RUN + "0123456789abcdef0123"
EPISODE = ROLLOUT + "9a3c"
SPAN_3 = sampled_by(3, run=RUN)
GROUP = rollouts.GroupRef(id="1f2e3d4c" + "fedcba9876543210", size=8, member=3, index=12)

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
CALLS_CLOSED = calls.CallsClosed(
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    outcomes={"chatcmpl-1": calls.CallOutcome.DELIVERED, "chatcmpl-2": calls.CallOutcome.CLIENT_DISCONNECTED},
)
ROLLOUT_REQUEST = rollouts.RolloutRequest(
    rollout_id=ROLLOUT,
    group=GROUP,
    task_id="7",
    input={"question": "what is 26 times 3 minus 6?"},
    expected="72",
    policy="policy",
    purpose=calls.Purpose.VALIDATION,
    limits=rollouts.Limits(time_s=60.0, max_attempts=2),
    rewards_awaited=("reward",),
    created_at_ms=1_700_000_000_000,
)
ROLLOUT_EVENT = rollouts.RolloutEvent(
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    attempt_number=1,
    state=rollouts.RolloutState.TRUNCATED,
    is_final=True,
    error="time limit",
    spans_exported=7,
    spans_lost=1,
    calls_closed=False,
    rewards_awaited=("reward",),
    group=GROUP,
    task_id="7",
    policy="policy",
    purpose=calls.Purpose.TRAIN,
    at_ms=1_700_000_000_000,
    duration_s=1.5,
)
REWARD = rollouts.Reward(
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    name="reward",
    value=None,
    reason="grader raised ValueError",
    target="chatcmpl-1",
    source="grader:score",
    idempotency_key=f"{ROLLOUT}/9a3c/reward",
    at_ms=1_700_000_000_000,
)
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
)
FACTS = facts.Facts(
    episode_id=EPISODE,
    facts=(
        SPAN,
        facts.CallFact(call=CALL, order=42),
        facts.CallsClosedFact(closed=CALLS_CLOSED),
        facts.RewardFact(reward=REWARD),
        facts.RolloutFact(event=ROLLOUT_EVENT),
    ),
)
EPISODE_CALL = episodes.EpisodeCall(
    call_id="chatcmpl-1",
    turn=0,
    agent="solver",
    joined_by="response_id",
    policy="policy",
    parent_call_id=None,
    shared_tokens=0,
    suffix_ids=ids_to_bytes([5, 6]),
    sampled_ids=ids_to_bytes([9]),
    logprobs=logprobs_to_bytes([-0.5]),
    versions=(SPAN_3,),
    temperature=1.0,
    finish_reason="stop",
    content="72",
    outcome=calls.CallOutcome.DELIVERED,
    masked="truncated",
    splice=calls.SpliceOutcome(kind="first"),
    tools=(
        episodes.ToolExecution(
            span_id="00f067aa0ba902b7",
            name="calculate",
            status=facts.ToolStatus.SUCCEEDED,
            status_from="span_status",
            tool_call_id="call_1",
        ),
    ),
    rewards=(episodes.AppliedReward(rule="air:tool_ok", value=0.1),),
)
EPISODE_RECORD = episodes.Episode(
    episode_id=EPISODE,
    rollout_id=ROLLOUT,
    attempt_id="9a3c",
    attempt_number=1,
    group=GROUP,
    task_id="7",
    policy="policy",
    purpose=calls.Purpose.TRAIN,
    state=rollouts.RolloutState.SUCCEEDED,
    is_final=True,
    error="retried once",
    closed_by="complete",
    services=("agent",),
    calls=(EPISODE_CALL,),
    rewards=(REWARD,),
    reward=1.0,
    unscored="grader:style gave no value",
    num_spans=7,
    num_tools=1,
    num_tools_succeeded=1,
    num_unauthorised_rewards=2,
    duration_s=1.5,
)
VERSION = weights.VersionManifest(
    policy="policy",
    run=RUN,
    version=18,
    epoch=4,
    base_version=17,
    kind="full",
    uri="/runs/mine/weights/1f2e3d4c-v18-e4",
    files=(weights.WeightFile(name="model.safetensors", bytes=1_600_000, sha256="ab" * 32),),
    step=18,
    next_offset=144,
    metrics={"reward": 0.75},
    at_ms=1_700_000_000_000,
)
STEP = training.TrainingStep(
    run=RUN,
    policy="policy",
    step=3,
    epoch=1,
    version=3,
    is_updated=False,
    skipped="non_finite",
    begin_offset=16,
    next_offset=24,
    batch_hash="9f" * 32,
    group_ids=(GROUP.id,),
    excluded_ids={"1f2e3d4c" + "0" * 16: "all_members_excluded"},
    accounting=training.Accounting(consumed=24, trained=22, excluded={"all_members_excluded": 2}, duplicates=1),
    loss=-0.125,
    grad_norm=0.5,
    learning_rate=3e-4,
    reward=0.75,
    reward_parts={"air:tool_ok": 0.1},
    num_rollouts=64,
    num_unscored=1,
    num_tokens=4096,
    num_turns=130,
    tool_success=0.9,
    staleness_mean=1.25,
    staleness_max=3,
    logprob_error_max=1e-6,
    num_checked_tokens=512,
    ratio_mean=1.01,
    clip_fraction=0.02,
    seconds={"wait": 0.1, "read": 0.01},
    started_at_ms=1_700_000_000_000,
    ended_at_ms=1_700_000_001_000,
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
            peers="0",
            weight=1.0,
            versions=(SPAN_3, sampled_by(4, start=1, run=RUN)),
        ),
    ),
    rollout_tokens=2,
)
GROUP_RECORD = (SUMMARY, [ROW])


# Fields added within a release.
MARKED_EVENT = msgspec.structs.replace(ROLLOUT_EVENT, spans_marked=True)
COUNTED_FACTS = facts.Facts(
    episode_id=EPISODE, facts=(msgspec.structs.replace(SPAN, is_counted=True), facts.RolloutFact(event=MARKED_EVENT))
)


class Released(NamedTuple):
    """A released record: its file under golden/, an instance, and how it becomes bytes and comes back."""

    file_name: str
    record: Any
    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


def _of(file_name: str, record: Any, codec: Any) -> Released:
    return Released(file_name, record, codec.encode, codec.decode)


RELEASED = (
    _of("call-1.msgpack", CALL, calls.LLM_CALLS),
    _of("calls_closed-1.msgpack", CALLS_CLOSED, calls.LLM_CALLS),
    _of("rollout-1.json", ROLLOUT_REQUEST, rollouts.ROLLOUTS),
    _of("rollout_event-1.json", ROLLOUT_EVENT, rollouts.ROLLOUT_EVENTS),
    _of("rollout_event-1-b.json", MARKED_EVENT, rollouts.ROLLOUT_EVENTS),
    _of("reward-1.json", REWARD, rollouts.REWARDS),
    _of("facts-1.msgpack", FACTS, facts.EPISODE_EVENTS),
    _of("facts-1-b.msgpack", COUNTED_FACTS, facts.EPISODE_EVENTS),
    _of("close-1.msgpack", facts.Close(episode_id=EPISODE, reason="deadline"), facts.EPISODE_EVENTS),
    _of("episode-1.json", EPISODE_RECORD, episodes.EPISODES),
    _of("closed-1.json", episodes.ClosedMarker(id=EPISODE, disposition="emitted", num_calls=3), episodes.CLOSED),
    _of(
        "epoch_claim-1.json",
        weights.EpochClaim(policy="policy", run=RUN, epoch=4, trainer_id="t-1", at_ms=1),
        weights.WEIGHTS,
    ),
    _of("version-1.json", VERSION, weights.WEIGHTS),
    _of(
        "rollback-1.json",
        weights.RollbackRequest(policy="policy", run=RUN, to_version=12, requested_by="me", at_ms=1),
        weights.WEIGHTS,
    ),
    _of(
        "weight_ack-1.json",
        weights.WeightAck(engine_id="engine-0", policy="policy", run=RUN, version=18, epoch=4, load_s=0.06, at_ms=1),
        weights.WEIGHT_ACKS,
    ),
    _of("training_step-1.json", STEP, training.TRAINING_STEPS),
    _of(
        "process_report-1.json",
        process_status.ProcessReport(
            process="streams-credit-0",
            pid=4711,
            since_ms=1_700_000_000_000,
            at_ms=1_700_000_002_000,
            counters={"records": 12.0, "dead_letters{reason=malformed}": 1.0},
        ),
        process_status.PROCESS_STATUS,
    ),
    _of(
        "supervised_process-1.json",
        process_status.SupervisedProcess(
            process="streams-credit-0",
            state=process_status.ProcessState.RUNNING,
            pid=4711,
            since_ms=1_700_000_000_000,
            num_restarts=1,
            why="exit status 1",
            at_ms=1_700_000_002_000,
        ),
        process_status.PROCESS_STATUS,
    ),
    Released(
        "transitions-1.arrow", GROUP_RECORD, lambda record: transitions.encode_group(*record), transitions.decode_group
    ),
)


def write_missing() -> list[str]:
    """Writes the files that are not there yet; returns their names."""
    GOLDEN.mkdir(exist_ok=True)
    written = []
    for released in RELEASED:
        path = GOLDEN / released.file_name
        if not path.exists():
            path.write_bytes(released.encode(released.record))
            written.append(released.file_name)
    return written


if __name__ == "__main__":
    print("written:", ", ".join(write_missing()) or "nothing; every released record has its file")
