"""Writes the record of an episode that closes: calls joined to spans, rewards judged; AIR comes behind it.

In: an OpenEpisode and why it closes. Out: an Episode; equal facts give equal records, whatever their order.
The record of an aborted attempt leaves spans and rewards out: it closes without waiting for them, so whether they
were here is chance.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Any, TypeVar

from tracegrad.schemas.reasons import Reason
from tracegrad.schemas.records.calls import CallOutcome, CallRecord, Purpose
from tracegrad.schemas.records.episodes import Episode, EpisodeCall, ToolExecution
from tracegrad.schemas.records.facts import CallFact, ContextCallFact, SpanFact, SpanKind, ToolStatus
from tracegrad.schemas.records.rollouts import FEEDBACK_SOURCE, Reward, RolloutState

from ...ratings import in_order, reward_of, with_rewards
from ..agent_rewards import agent_rewards, is_authorised
from ..join.calls import CallJoin, join_calls
from ..join.content import UpstreamAnswer
from ..join.requests import repeated, unparsable
from ..join.span_tree import SpanTree, span_key
from ..join.stacked_tools import executions
from ..join.tools import join_tools, tool_spans
from ..open_episode import OpenEpisode
from .context_calls import context_calls, upstream_answers

_KEPT = set(EpisodeCall.__struct_fields__) & set(CallRecord.__struct_fields__)
"""What a call is on the log and stays in its episode, under the same names."""
F = TypeVar("F", CallFact, ContextCallFact)
_OF_END = ("is_final", "error", "duration_s", "output", "output_sha256")
_UNGRADED = (RolloutState.ABORTED, RolloutState.GIVEN_UP)


def write_episode(
    episode: OpenEpisode, *, closed_by: str, reward_sources: Sequence[str] = (), trains_truncated: bool = False
) -> Episode:
    """The record of a closing episode, before rules reward it; `trains_truncated`: as `[select] truncated`."""
    event = episode.event
    state = episode.end.state if episode.end is not None else RolloutState.UNKNOWN
    is_graded = state not in _UNGRADED
    own = SpanTree(episode.own_spans if is_graded else ())
    seen = episode.spans if is_graded else []
    tree = SpanTree(seen) if len(seen) > len(own.spans) else own
    executed = executions(own)
    tools = tool_spans(executed, own)
    awaited = episode.end.rewards_awaited if episode.end else ()
    counted, num_others = _judged(episode, tree.spans, own.spans, reward_sources) if is_graded else ([], 0)
    rewards = _authorised(counted, awaited)
    calls = with_rewards(_calls(episode, tree, own, executed, trains_truncated), rewards)
    total, unscored = reward_of(rewards, awaited) if is_graded else (None, state.value)
    rollout_id, attempt_id = episode.attempt or (None, None)
    policies = {call.policy for call in calls}
    return Episode(
        episode_id=episode.episode_id,
        rollout_id=rollout_id,
        attempt_id=attempt_id,
        attempt_number=event.attempt_number if event else 0,
        group=event.group if event else None,
        task_id=event.task_id if event else None,
        policy=event.policy if event else (policies.pop() if len(policies) == 1 else None),
        purpose=event.purpose if event else Purpose.UNKNOWN,
        state=state,
        closed_by=closed_by,
        conversation=None if episode.attempt else episode.key,
        began_at_ms=0 if episode.attempt else _began_at_ms(episode),
        services=tuple(sorted({span.service for span in tree.spans if span.service})),
        calls=calls,
        rewards=rewards,
        reward=total,
        unscored=unscored,
        num_spans=len(tree.spans),
        num_unproved_spans=len(tree.spans) - len(own.spans),
        are_links_cut=episode.links.are_cut,
        num_tools=len(tools),
        num_tools_succeeded=sum(tool.tool_status is ToolStatus.SUCCEEDED for tool in tools),
        num_unauthorised_rewards=num_others,
        num_joined_by=_counted(call.joined_by for call in calls),
        num_named_by=_counted(call.named_by or "none" for call in calls),
        context_calls=context_calls(_in_order(episode.context.values()), tree),
        **_told_at_end(episode),
    )


def _told_at_end(episode: OpenEpisode) -> dict[str, Any]:
    """Fields that are called alike on the end's event."""
    if episode.end is None:
        return {"is_final": not episode.attempt}
    return {name: getattr(episode.end, name) for name in _OF_END}


def _began_at_ms(episode: OpenEpisode) -> int:
    return min((fact.call.started_at_ns for fact in episode.calls.values()), default=0) // 1_000_000


def _counted(rungs: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(rungs).items()))


def _judged(
    episode: OpenEpisode, spans: Sequence[SpanFact], own: Sequence[SpanFact], sources: Sequence[str]
) -> tuple[list[Reward], int]:
    """(rewards whose source counts, how many others there are); of what the agent said in two ways, the later."""
    named = [(counts, reward) for (counts, _, _), reward in episode.rewards.items()]
    named += [(is_authorised(reward, sources), reward) for reward in agent_rewards(own, episode.attempt)]
    counted: dict[tuple[str, str, str], Reward] = {}
    for reward in sorted((reward for counts, reward in named if counts), key=lambda reward: reward.at_ms):
        counted[reward.source, reward.idempotency_key, reward.target or ""] = reward
    places = set(map(span_key, own))
    strangers = [span for span in spans if span.rewards and span_key(span) not in places]
    num_others = sum(not counts for counts, _ in named) + len(agent_rewards(strangers, None))
    return list(counted.values()), num_others


def _authorised(counted: Sequence[Reward], awaited: Sequence[str]) -> tuple[Reward, ...]:
    """Rewards that may count, in canonical order.

    When names are awaited, just those count, and nobody's feedback under such a name: whether any other arrived before
    the episode closed is chance.
    """
    return tuple(
        sorted(
            (
                reward
                for reward in counted
                if not awaited or (reward.name in awaited and reward.source != FEEDBACK_SOURCE)
            ),
            key=in_order,
        )
    )


def _in_order(facts: Collection[F]) -> list[F]:
    """The order of the records on the log. Of several keys, whose records may lie in several partitions, the gateway's
    clock tells the order."""
    is_one = len({fact.call.key for fact in facts}) == 1
    return sorted(facts, key=lambda fact: (0 if is_one else fact.call.started_at_ns, fact.order, fact.call.call_id))


def _calls(
    episode: OpenEpisode, tree: SpanTree, own: SpanTree, executed: Sequence[SpanFact], trains_truncated: bool
) -> list[EpisodeCall]:
    """The calls in order, before they are rewarded."""
    facts = _in_order(episode.calls.values())
    records = [fact.call for fact in facts]
    others = upstream_answers(_in_order(episode.context.values()))
    joined, answers = _joined(records, tree, own, executed, others)
    outcomes = episode.outcomes
    fates = [outcomes.get(record.call_id, CallOutcome.UNKNOWN) for record in records]
    broken, unchosen = _broken(records), _unchosen(records, episode)
    counted = [
        CallOutcome.SUPERSEDED if record.call_id in unchosen else fate
        for record, fate in zip(records, fates, strict=True)
    ]
    agents = [match.agent for match in joined]
    turns = _turns(agents, counted)
    asked = repeated([record.tool_calls for record in records], agents, [fate.is_taken for fate in counted])
    calls: list[EpisodeCall] = []
    rows = zip(facts, joined, turns, fates, answers, asked, strict=True)
    for fact, match, turn, outcome, answered, again in rows:
        record = fact.call
        temperature = record.sampling_used.temperature
        calls.append(
            EpisodeCall(
                turn=turn,
                agent=match.agent,
                joined_by=match.joined_by,
                named_by=match.named_by,
                # JSON has no NaN; a reader of the record would refuse the whole episode.
                temperature=temperature if math.isfinite(temperature) else 0.0,
                outcome=outcome,
                masked=_masked(
                    fact,
                    outcome,
                    episode,
                    is_broken=record.call_id in broken,
                    is_unchosen=record.call_id in unchosen,
                    trains_truncated=trains_truncated,
                ),
                tools=tuple(_execution(span, call_id, is_own) for span, call_id, is_own in answered),
                unparsable=unparsable(record.tool_calls),
                repeated=again,
                **{name: getattr(record, name) for name in _KEPT},
            )
        )
    return calls


def _execution(span: SpanFact, call_id: str, is_own: bool) -> ToolExecution:
    return ToolExecution(
        span_id=span.span_id,
        name=span.tool_name or span.name,
        status=span.tool_status,
        status_from=span.tool_status_from,
        tool_call_id=call_id,
        error_type=span.error_type,
        is_proved=is_own,
        has_id=span.tool_call_id is not None,
        result=span.tool_result,
        is_result_cut=span.is_result_cut,
        duration_s=(span.end_ns - span.start_ns) / 1e9 if span.end_ns >= span.start_ns > 0 else None,
        http_status=span.http_status,
    )


def _joined(
    records: list[CallRecord], tree: SpanTree, own: SpanTree, executed: Sequence[SpanFact], others: list[UpstreamAnswer]
) -> tuple[list[CallJoin], list[list[tuple[SpanFact, str, bool]]]]:
    """How each call was matched, and its tools: (span, tool-call id, whether it is the agent's own).

    What spans of others say fills in only what the agent's own leave open: a name, an execution, which pay nothing.
    """
    joined = join_calls(records, own, others=others)
    answers = [[(*answer, True) for answer in of_call] for of_call in join_tools(records, joined, executed, own)]
    if tree is own:
        return joined, answers
    answered = {call_id for of_call in answers for _, call_id, _ in of_call}
    known = set(map(span_key, own.spans))
    foreign = SpanTree(span for span in tree.spans if span_key(span) not in known)
    more = join_tools(records, joined, executions(foreign), foreign, answered=answered)
    for of_call, others_answers in zip(answers, more, strict=True):
        of_call += [(*answer, False) for answer in others_answers]
    named = zip(joined, join_calls(records, tree, others=others), strict=True)
    return [
        match if match.named_by else other._replace(answered_ns=match.answered_ns) for match, other in named
    ], answers


def _turns(agents: Sequence[str | None], outcomes: Sequence[CallOutcome]) -> list[int]:
    """Each call's index within its agent, so that neither a lost span nor a client's retry moves the calls after it.

    A call whose span is lost counts with the episode's agent, if it has one alone; of several nobody knows which. An
    answer that its client did not take shares its turn with the call that was made instead.
    """
    named = {name for name in agents if name is not None}
    sole = named.pop() if len(named) == 1 else None
    num_turns: dict[str | None, int] = {}
    turns: list[int] = []
    for name, outcome in zip(agents, outcomes, strict=True):
        agent = name if name is not None else sole
        turns.append(num_turns.get(agent, 0))
        num_turns[agent] = turns[-1] + outcome.is_taken
    return turns


def _broken(records: Sequence[CallRecord]) -> set[str]:
    """The calls whose prompts rest on one that is not here before them: they are a difference to nothing."""
    whole: set[str] = set()
    for record in records:
        if record.parent_call_id is None or record.parent_call_id in whole:
            whole.add(record.call_id)
    every: set[str] = {record.call_id for record in records}
    return every - whole


def _unchosen(records: Sequence[CallRecord], episode: OpenEpisode) -> set[str]:
    """Of several answers to one request, those that nothing was made of: no call goes on from them, no reward that
    counts names them."""
    rated = {reward.target for (counts, _, _), reward in episode.rewards.items() if counts}
    chosen = rated | {record.parent_call_id for record in records}
    return {
        record.call_id
        for record in records
        if record.num_choices > 1 and chosen.isdisjoint((record.call_id, *(tool.id for tool in record.tool_calls)))
    }


def _masked(
    fact: CallFact,
    outcome: CallOutcome,
    episode: OpenEpisode,
    *,
    is_broken: bool,
    is_unchosen: bool,
    trains_truncated: bool,
) -> str:
    """Why the call leaves the loss."""
    record = fact.call
    # An attempt's end tells all outcomes; of a captured call the gateway may have died before it told.
    is_told = episode.attempt is not None
    if not outcome.is_taken:
        return outcome.value
    if outcome is CallOutcome.UNKNOWN and is_told:
        return Reason.OUTCOME_UNKNOWN
    if is_broken:
        return Reason.MISSING_PARENT
    if record.is_constrained:
        return Reason.CONSTRAINED
    used = record.sampling_used
    if used.top_p < 1 or used.top_k > 0 or used.min_p > 0:
        return Reason.CUT_SAMPLING
    if record.met_limit and not trains_truncated:
        return Reason.TRUNCATED
    if fact.masked:
        return fact.masked
    # Last, for it is no fault of the call's own: who rates it later chooses it.
    return Reason.NOT_CHOSEN if is_unchosen else ""


def has_structure(episode: OpenEpisode) -> bool:
    """Whether anything in it can be shown: a call, an agent or a tool; a bare trace of other spans is unattributed."""
    kinds = (span.kind for span in episode.spans)
    return bool(episode.calls or episode.context) or any(kind in (SpanKind.AGENT, SpanKind.TOOL) for kind in kinds)
