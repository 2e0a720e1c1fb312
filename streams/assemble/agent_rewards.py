"""The rewards that an agent's spans name, as the records that they would be had it posted them. Pure.

In: the spans of an episode that are known to be its agent's own, and whose attempt it is. Out: Rewards of source
`agent`: of each name and target the one that was said last, as Agent Lightning takes the last. Invariant: equal spans
give equal rewards, whatever their order; nothing here makes one count.
"""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase

from tracegrad.schemas.records.facts import SpanFact
from tracegrad.schemas.records.rollouts import AGENT_SOURCE, Reward


def agent_rewards(spans: Iterable[SpanFact], attempt: tuple[str, str] | None) -> list[Reward]:
    """In the order of names and targets; `attempt` None: of a captured episode."""
    last: dict[tuple[str, str], Reward] = {}
    rollout, number = attempt or ("", "")
    for span in sorted(
        (span for span in spans if span.rewards), key=lambda span: (span.end_ns, span.trace_id, span.span_id)
    ):
        for said in span.rewards:
            last[said.name, said.target or ""] = Reward(
                rollout_id=rollout,
                attempt_id=number,
                name=said.name,
                value=said.value,
                reason="" if said.value is not None else "no usable number",
                target=said.target,
                source=AGENT_SOURCE,
                idempotency_key=f"{rollout}/{number}/{said.name}",
                at_ms=span.end_ns // 1_000_000,
            )
    return [last[place] for place in sorted(last)]


def is_authorised(reward: Reward, sources: Iterable[str]) -> bool:
    """Whether a reward's source is one that the configuration lists."""
    return any(fnmatchcase(reward.source, source) for source in sources)
