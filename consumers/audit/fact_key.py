"""Under which name an audit counts a raw item and the fact that was made of it: the same for both.

In: facts, events, rewards. Out: text. Failure: none.
"""

from __future__ import annotations

from tracegrad.schemas.records.facts import (
    CallEndedFact,
    CallFact,
    CallOpenFact,
    CallsClosedFact,
    ContextCallFact,
    Fact,
    LinkFact,
    LogFact,
    RewardFact,
    RolloutFact,
    SpanFact,
)
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, Reward, RolloutEvent

FEEDBACK = "feedback:"
"""Begins the key of feedback on what no runner started, behind the kind."""


def event_key(event: RolloutEvent) -> str:
    """Of a rollout event."""
    return f"event:{event.rollout_id}/{event.attempt_id}/{event.state.value}"


def reward_key(reward: Reward) -> str:
    """Of a reward; a giver of feedback chooses its key, the same of several conversations maybe, or one that another
    reward has."""
    if reward.source != FEEDBACK_SOURCE:
        return f"reward:{reward.idempotency_key}"
    if reward.conversation_key is None:
        return f"reward:{reward.rollout_id}/{reward.attempt_id}/{FEEDBACK}{reward.idempotency_key}"
    return f"reward:{FEEDBACK}{reward.conversation_key}:{reward.idempotency_key}"


def fact_key(fact: Fact) -> str:
    """Of the fact that normalize makes of it."""
    match fact:
        case CallFact(call=call):
            return f"call:{call.call_id}"
        case ContextCallFact(call=answered):
            return f"context_call:{answered.call_id}"
        case CallOpenFact(open=opened):
            return f"call_open:{opened.call_id}"
        case CallEndedFact(ended=ended):
            return f"call_ended:{ended.call_id}"
        case CallsClosedFact(closed=closed):
            return f"calls_closed:{closed.rollout_id}/{closed.attempt_id}"
        case RolloutFact(event=event):
            return event_key(event)
        case RewardFact(reward=reward):
            return reward_key(reward)
        case SpanFact(trace_id=trace, span_id=span):
            return f"span:{trace}/{span}"
        case LinkFact(trace_id=trace, key=key):
            return f"link:{trace}/{key}"
        case LogFact(trace_id=trace, span_id=span, event_name=name):
            return f"log:{trace}/{span}/{name}"
