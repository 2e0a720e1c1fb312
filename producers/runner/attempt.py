"""One attempt of a rollout: begin at the gateway, run the agent, end at the gateway, grade.

In: a request, an attempt id, a place to run. Out: an Outcome, and the end event and rewards that tell it. Invariant:
only what the gateway or the runner says makes it `aborted`, nothing that the agent says or does; an attempt is graded
unless aborted, and only after its calls are closed. Failure: none; every fault becomes part of the outcome.
"""

from __future__ import annotations

import asyncio

import msgspec
from msgspec.structs import replace

from tracegrad.schemas.credentials import Holder
from tracegrad.schemas.errors import UnavailableError
from tracegrad.schemas.records.rollouts import (
    AGENT_REWARD,
    REWARDS,
    ROLLOUT_EVENTS,
    RolloutEvent,
    RolloutRequest,
    RolloutState,
)
from tracegrad.schemas.text import clean

from ..rollout_histories import event_of
from .gateway_client import GatewayClient
from .grading import Grader
from .outcome import Outcome, RunAgent, as_told


def _unrecordable(outcome: Outcome, why: str) -> Outcome:
    """The outcome without what no record can hold: a failed attempt without a score, unless it was aborted."""
    error = f"its outcome cannot be recorded: {why}"
    state = RolloutState.ABORTED if outcome.state is RolloutState.ABORTED else RolloutState.FAILED
    rewards = [reward for reward in outcome.rewards if clean(reward.name) == reward.name]
    unscored = tuple(replace(reward, value=None, reason=error) for reward in rewards)
    return Outcome(
        state=state,
        error=error,
        spans_lost=1,
        host=outcome.host,
        calls_closed=outcome.calls_closed,
        is_gateway_replaced=outcome.is_gateway_replaced,
        rewards=unscored,
    )


def records_of(
    request: RolloutRequest, attempt: str, number: int, outcome: Outcome, *, is_final: bool
) -> tuple[RolloutEvent, list[bytes]]:
    """The end event and the rewards as bytes; without what no record can hold."""
    is_graded = outcome.state is not RolloutState.ABORTED
    output, sha256 = as_told(outcome.output) if is_graded else (None, None)
    event = replace(
        event_of(request, attempt, number, outcome.state, is_final=is_final, error=outcome.error),
        spans_exported=outcome.spans_exported,
        spans_lost=outcome.spans_lost,
        host=outcome.host,
        spans_marked=outcome.spans_exported is not None,
        calls_closed=outcome.calls_closed,
        gateway_replaced=outcome.is_gateway_replaced,
        rewards_awaited=_awaited(request, outcome),
        duration_s=outcome.duration_s,
        output=output,
        output_sha256=sha256,
    )
    try:
        # Before anything of the attempt is on the log.
        ROLLOUT_EVENTS.encode(event)
        return event, [REWARDS.encode(reward) for reward in outcome.rewards]
    except (ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        plain = _unrecordable(outcome, type(error).__name__)
        return records_of(request, attempt, number, plain, is_final=is_final)


def _awaited(request: RolloutRequest, outcome: Outcome) -> tuple[str, ...]:
    """What the grader gave names to, and the agent's own where that is awaited."""
    graded = tuple(dict.fromkeys(reward.name for reward in outcome.rewards))
    own = tuple(name for name in request.rewards_awaited if name == AGENT_REWARD)
    return (*graded, *own) if graded else request.rewards_awaited


async def perform(
    run: RunAgent, request: RolloutRequest, attempt: str, gateway: GatewayClient, grader: Grader
) -> Outcome:
    """One attempt; ends within its limits and the gateway's and the grader's time-outs, or when the process of the
    gateway at which it began is gone."""
    began: asyncio.Future[asyncio.Event] = asyncio.get_running_loop().create_future()

    async def begin(host: Holder | None) -> None:
        replaced = await gateway.begin(request, attempt, host)
        if not began.done():
            began.set_result(replaced)

    async def watch() -> None:
        await (await began).wait()

    agent, watching = asyncio.ensure_future(run(request, attempt, begin)), asyncio.create_task(watch())
    outcome = Outcome(state=RolloutState.ABORTED)
    try:
        await asyncio.wait({agent, watching}, return_when=asyncio.FIRST_COMPLETED)
        if not agent.done():
            raise UnavailableError("another process of the LLM gateway answers, which does not know this attempt")
        outcome = agent.result()
        closed = await gateway.end(request.rollout_id, attempt)
    except UnavailableError as error:
        is_replaced = began.done() and began.result().is_set()
        return replace(_aborted(outcome, str(error)), is_gateway_replaced=is_replaced)
    finally:
        agent.cancel()
        watching.cancel()
        await asyncio.wait({agent, watching})
    outcome = replace(outcome, calls_closed=True)
    if closed.fault is not None and outcome.state is not RolloutState.SUCCEEDED:
        outcome = _aborted(outcome, f"its last call was answered {closed.fault} ({outcome.error})")
    if outcome.is_host_lost and (closed.was_waiting or not closed.calls):
        # Who waits does nothing meanwhile, and who has asked for nothing has no answer to run away from.
        outcome = _aborted(outcome, f"{outcome.error} while it waited for an answer")
    if outcome.state is RolloutState.ABORTED:
        return outcome
    seen_by_grader = {
        "state": outcome.state.value,
        "error": outcome.error,
        "duration_s": outcome.duration_s,
        "calls": closed.calls,
    }
    return replace(outcome, rewards=await grader.grade(request, attempt, outcome.output, seen_by_grader))


def _aborted(outcome: Outcome, error: str) -> Outcome:
    """What was aborted before keeps its own reason."""
    if outcome.state is RolloutState.ABORTED and outcome.error:
        return outcome
    return replace(outcome, state=RolloutState.ABORTED, error=error)
