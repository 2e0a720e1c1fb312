"""An episode that another grader judges from what is recorded of it. Pure.

    grade(task, output, attempt)    task: of `rollouts`; output, attempt: here, as the runner's grader was given them

In: an episode as assemble writes it before rules reward it, its calls' records, what the grader says. Out: what the
grader is given; the episode with its rewards in the place of those that a grader gave before. Invariants: what others
said, as people do, stays; a grader that says what the earlier one said gives equal bytes; an episode that could not be
graded has no reward, for the earlier grader's number beside the new one's would compare what is not alike. Failure:
none; why one cannot be graded is its `unscored`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from tracegrad.schemas.records.calls import CallRecord
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import Reward, RolloutState

from .ratings import in_order, reward_of, with_rewards

_JUDGED = (RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.TRUNCATED)


def is_judged(episode: Episode) -> bool:
    """Whether it is one that graders judge: an attempt that ended, not by our own fault."""
    return episode.rollout_id is not None and episode.state in _JUDGED


def why_ungradable(episode: Episode) -> str:
    """Why what the agent returned is not known; empty where it is."""
    if episode.output is not None:
        return ""
    return "output_too_large" if episode.output_sha256 is not None else "output_not_recorded"


def given_to_grader(episode: Episode, records: Sequence[CallRecord]) -> tuple[Any, dict[str, Any]]:
    """(output, attempt) as the runner's grader was given them; of an episode that is not ungradable.

    Args:
        records: of the episode's calls; they tell what its own record leaves out.
    """
    told: dict[str, CallRecord] = {record.call_id: record for record in records}
    calls = [
        {
            "call_id": call.call_id,
            "outcome": call.outcome.value,
            "content": call.content,
            "reasoning": told[call.call_id].reasoning,
            "tool_calls": [msgspec.structs.asdict(tool) for tool in call.tool_calls],
            "finish_reason": call.finish_reason,
            "sampled_tokens": told[call.call_id].num_sampled,
            "is_cut": told[call.call_id].is_cut,
            "stop_text": told[call.call_id].stop_text,
        }
        for call in episode.calls
    ]
    attempt = {
        "state": episode.state.value,
        "error": episode.error,
        "duration_s": episode.duration_s or 0.0,
        "calls": calls,
    }
    return json.loads(episode.output or "null"), attempt


def graded_anew(
    episode: Episode, given: Iterable[Reward], *, replaced: Collection[str], awaited: Sequence[str] = (), why: str = ""
) -> Episode:
    """The episode by what the grader gave.

    Args:
        given: its rewards, of calls too; none where `why` says why.
        replaced: sources of the graders' rewards, which leave.
        awaited: names of others' rewards without which it has none.
    """
    before = [one for one in episode.rewards if one.source in replaced]
    said_at = {(one.name, one.target): one.at_ms for one in before}
    latest = max(said_at.values(), default=0)
    # Not when they are given: a function of what is recorded gives the same records whenever it is asked.
    new = [msgspec.structs.replace(one, at_ms=said_at.get((one.name, one.target), latest)) for one in given]
    rewards = tuple(sorted((*new, *(one for one in episode.rewards if one.source not in replaced)), key=in_order))
    total, unscored = (None, why) if why else reward_of(rewards, awaited)
    return msgspec.structs.replace(
        episode, calls=with_rewards(episode.calls, rewards), rewards=rewards, reward=total, unscored=unscored
    )
