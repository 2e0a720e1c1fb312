"""Why nothing trains: the commonest reason, its share, what it means, and what to do."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tests.schemas.test_alarms import step
from tests.streams.credit.test_credit import member, turns
from tracegrad.schemas.alarms import NOTHING_TRAINS, MemberOutcome, UntrainedGroups, alarm_text, alarms_of
from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.rollouts import RolloutState
from tracegrad.schemas.records.training import Accounting, TrainingStep


def empty(number: int, excluded: dict[str, int], **figures: Any) -> TrainingStep:
    """A step without trained tokens, and how many groups were excluded until then."""
    return step(number, num_tokens=0, is_updated=False, accounting=Accounting(excluded=excluded), **figures)


@pytest.mark.parametrize(
    ("steps", "told"),
    [
        (
            [empty(n, {"no_tokens": 2 * n}, masked={"constrained": 7, "truncated": 1}) for n in (1, 2, 3)],
            "100% of groups `no_tokens`, 88% of their masked calls `constrained`: A grammar or ",
        ),
        (
            [empty(n, {"all_members_excluded": 2 * n}, members_excluded={"no_calls": 8}) for n in (1, 2, 3)],
            "100% of groups `all_members_excluded`, 100% of their excluded members `no_calls`: Its agent never called",
        ),
        (
            [step(1, accounting=Accounting(excluded={"stale": 90}))]
            + [empty(n, {"stale": 90 + n, "no_advantage": 3 * n}) for n in (2, 3, 4)],
            "75% of groups `no_advantage`: All advantages are 0, for in each group",
        ),
        ([empty(n, {"of_old": n}) for n in (1, 2, 3)], "100% of groups `of_old`"),
        ([empty(n, {}) for n in (1, 2, 3)], "no reason is told of groups"),
    ],
    ids=["masked", "excluded", "equal rewards, of these steps alone", "a reason of another release", "none"],
)
def test_three_steps_without_tokens_name_reason_share_meaning_and_remedy(steps: list[TrainingStep], told: str) -> None:
    """Not after two of them."""
    assert alarms_of(steps) == (NOTHING_TRAINS,) and alarms_of(steps[:-1]) == ()
    assert alarm_text(NOTHING_TRAINS, steps).startswith("the last 3 steps trained no token: " + told)


def masked(reason: str, number: int = 0) -> Episode:
    """An episode of two calls that are masked."""
    return member(number, calls=tuple(replace(one, masked=reason) for one in turns(0.5, 0.0)))


@pytest.mark.parametrize(
    ("episode", "outcome"),
    [
        (member(0), MemberOutcome("", (), True)),
        (masked("constrained"), MemberOutcome("", ("constrained",) * 2, False)),
        (member(0, state=RolloutState.GIVEN_UP), MemberOutcome("given_up", (), False)),
        (member(0, policy="other", calls=()), MemberOutcome("no_calls", (), False)),
    ],
    ids=["trains", "masked", "given up", "no calls"],
)
def test_an_episode_trains_where_a_call_of_the_policy_is_in_the_loss(episode: Episode, outcome: MemberOutcome) -> None:
    """By its record."""
    assert MemberOutcome.of(episode, "policy") == outcome


def test_groups_that_cannot_train_are_counted_since_the_last_that_can() -> None:
    """One member is enough; a group of masked and of excluded members has no tokens."""
    groups, bad = UntrainedGroups(), MemberOutcome.of(masked("truncated"), "policy")
    gone, good = MemberOutcome("aborted", (), False), MemberOutcome("", (), True)
    for members in ([bad, bad], [bad, good], [bad, gone], [bad, bad], [gone, gone]):
        groups.close(members)
    assert (groups.num, groups.holds(1), groups.holds(2)) == (3, True, False)
    assert groups.text == (
        "none of the last 3 closed groups can train: 67% of groups `no_tokens`, 100% of their masked calls "
        "`truncated`: The token limit ended the answer, not the policy. Raise max_tokens in the agent's requests, or "
        "set [select] truncated = 'train'"
    )
