"""One attempt of a rollout: begin at the gateway, run the agent, end at the gateway, grade.

In: a request, an attempt id, a place to run. Out: an Outcome, and the end event and rewards that tell it. Invariant:
only gateway, engine and runner faults make it `aborted`; an attempt is graded unless aborted, and only after its calls
are closed. Failure: none; every fault becomes part of the outcome.
"""

from __future__ import annotations

import msgspec

from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.rollouts import (
    REWARDS,
    ROLLOUT_EVENTS,
    Reward,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.text import clean

from ..rollout_histories import event_of
from .agent_result import AgentResult, RunAgent
from .gateway_client import GatewayClient
from .grading import Grader

__all__ = ["Outcome", "perform", "records_of"]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """How an attempt ended and what it was worth."""

    result: AgentResult
    calls_closed: bool
    rewards: tuple[Reward, ...] = ()


def _unrecordable(outcome: Outcome, why: str) -> Outcome:
    """The outcome without what no record can hold: a failed attempt without a score, unless it was aborted."""
    result, error = outcome.result, f"its outcome cannot be recorded: {why}"
    state = RolloutState.ABORTED if result.state is RolloutState.ABORTED else RolloutState.FAILED
    plain = AgentResult(state=state, error=error, spans_lost=1)
    rewards = [reward for reward in outcome.rewards if clean(reward.name) == reward.name]
    unscored = tuple(msgspec.structs.replace(reward, value=None, reason=error) for reward in rewards)
    return Outcome(result=plain, calls_closed=outcome.calls_closed, rewards=unscored)


def records_of(
    request: RolloutRequest, attempt: str, number: int, outcome: Outcome, *, is_final: bool
) -> tuple[RolloutEvent, list[bytes]]:
    """The end event and the rewards as bytes; without what no record can hold."""
    result = outcome.result
    event = msgspec.structs.replace(
        event_of(request, attempt, number, result.state, is_final=is_final, error=result.error),
        spans_exported=result.spans_exported,
        spans_lost=result.spans_lost,
        spans_marked=result.spans_exported is not None,
        calls_closed=outcome.calls_closed,
        rewards_awaited=tuple(reward.name for reward in outcome.rewards) or request.rewards_awaited,
        duration_s=result.duration_s,
    )
    try:
        # Before anything of the attempt is on the log.
        ROLLOUT_EVENTS.encode(event)
        return event, [REWARDS.encode(reward) for reward in outcome.rewards]
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        plain = _unrecordable(outcome, type(error).__name__)
        return records_of(request, attempt, number, plain, is_final=is_final)


async def perform(
    run: RunAgent, request: RolloutRequest, attempt: str, gateway: GatewayClient, grader: Grader, *, is_alone: bool
) -> Outcome:
    """One attempt; ends within its limits and the gateway's and the grader's time-outs.

    `is_alone`: nothing else runs in the agent's process, so a crash of it is the agent's own failure.
    """
    try:
        await gateway.begin(request, attempt)
    except UnavailableError as error:
        return Outcome(result=AgentResult(state=RolloutState.ABORTED, error=str(error)), calls_closed=False)
    result = await run(request, attempt)
    if result.is_crash and is_alone:
        crashed = "the agent crashes its process"
        result = msgspec.structs.replace(result, state=RolloutState.FAILED, error=crashed, is_crash=False)
    try:
        closed = await gateway.end(request.rollout_id, attempt)
    except UnavailableError as error:
        return Outcome(result=_aborted(result, str(error)), calls_closed=False)
    if closed.fault is not None and result.state is not RolloutState.SUCCEEDED:
        result = _aborted(result, f"its last call was answered {closed.fault} ({result.error})")
    if result.state is RolloutState.ABORTED:
        return Outcome(result=result, calls_closed=True)
    seen_by_grader = {
        "state": result.state.value,
        "error": result.error,
        "duration_s": result.duration_s,
        "calls": closed.calls,
    }
    rewards = await grader.grade(request, attempt, result.output, seen_by_grader)
    return Outcome(result=result, calls_closed=True, rewards=rewards)


def _aborted(result: AgentResult, error: str) -> AgentResult:
    """What was aborted before keeps its own reason."""
    if result.state is RolloutState.ABORTED:
        return result
    return msgspec.structs.replace(result, state=RolloutState.ABORTED, error=error)
