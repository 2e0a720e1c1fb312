"""Whether raters like the newest versions less than those before: what an automatic rollback goes by.

In: of each batch, the final rewards of its scored conversations and the newest version that sampled any of each one's
tokens: a conversation that mixes versions counts for the last of them. Out: the state to keep in the checkpoint, and
`RatingDrop` where the newest versions with `size` scored conversations or more are worse than the versions before them
with as many. Looked at after each batch, so the windows slide.
Invariants: pure; the same batches give the same decision, whatever was resumed in between. At most one run in twenty
without any change is rolled back, however long it goes on: of that chance k looks spend k / (k + 20), each by Welch's
interval. Conversations are taken for independent ratings. Failure: none.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from statistics import NormalDist

import msgspec

from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.records.training import RatedWindow, RatingDrop

from .batch.groups import Group

_FALSE_ALARMS = 0.05
"""Per run."""
_HALF = 20
"""Looks by which half of it is spent: two windows are full late, and the looks from then on are hardly new."""
_ROUNDING = 1e-12
"""Of a mean: equal ratings have no spread, and sums of them that differ by so much."""


class RewardSums(msgspec.Struct, frozen=True, kw_only=True):
    """The final rewards of one version's conversations."""

    num: int = 0
    total: float = 0.0
    squares: float = 0.0

    @classmethod
    def of(cls, rewards: Sequence[float]) -> RewardSums:
        """These."""
        squares = math.fsum(reward * reward for reward in rewards)
        return cls(num=len(rewards), total=math.fsum(rewards), squares=squares)

    def plus(self, other: RewardSums) -> RewardSums:
        """Both."""
        return RewardSums(
            num=self.num + other.num, total=self.total + other.total, squares=self.squares + other.squares
        )


class VersionRatings(msgspec.Struct, frozen=True, kw_only=True):
    """What is known after a batch."""

    since: int = 0
    """The first version that counts: older ones were sampled before a rollback."""
    num_looks: int = 0
    """Over the whole run: a rollback gives no new chances to be wrong."""
    scored: dict[int, RewardSums] = {}
    """By version; of those that a window may need."""


def scores_of(groups: Iterable[Group], run: RunHash) -> Iterator[tuple[int, float]]:
    """(version, final reward) of each scored conversation that this run's versions sampled tokens of."""
    for group in groups:
        newest: dict[str, int] = {}
        for (rollout, _), turn in group.turns.items():
            for span in turn.versions:
                if span.run == run:
                    newest[rollout] = max(span.version, newest.get(rollout, 0))
        for member in group.summary.members:
            if member.reward is not None and member.rollout_id in newest:
                yield newest[member.rollout_id], member.reward


def judge_ratings(
    state: VersionRatings, scores: Iterable[tuple[int, float]], size: int
) -> tuple[VersionRatings, RatingDrop | None]:
    """The state after a batch, and what it shows. The caller begins anew once it has rolled back.

    Args:
        size: scored conversations that a window has at least; 0: nothing is watched.
    """
    if not size:
        return state, None
    came: defaultdict[int, list[float]] = defaultdict(list)
    for version, reward in scores:
        came[version].append(reward)
    new = {version: RewardSums.of(rewards) for version, rewards in came.items() if version >= state.since}
    scored = state.scored | {version: state.scored.get(version, RewardSums()).plus(one) for version, one in new.items()}
    versions = sorted(scored, reverse=True)
    newest = _first(versions, scored, size)
    before = _first(versions[len(newest) :], scored, size)
    if not newest or not before:
        return msgspec.structs.replace(state, scored=scored), None
    scored = {version: scored[version] for version in (*newest, *before)}
    after = msgspec.structs.replace(state, scored=scored, num_looks=state.num_looks + 1)
    return after, _compared(_window(before, scored), _window(newest, scored), after.num_looks)


def restarted_at(state: VersionRatings, since: int) -> VersionRatings:
    """Of a run that was rolled back: what versions before this one are rated tells nothing of those to come."""
    return msgspec.structs.replace(state, since=since, scored={})


def held_from(state: VersionRatings, size: int) -> int:
    """The oldest version that a rollback may yet go to; those since are kept."""
    versions = sorted(state.scored, reverse=True)
    newest = _first(versions, state.scored, size)
    return versions[len(newest)] if newest and len(newest) < len(versions) else state.since


def _first(descending: Sequence[int], scored: Mapping[int, RewardSums], size: int) -> list[int]:
    """The first of the versions that have `size` scored conversations together; none where all have fewer."""
    num, taken = 0, list[int]()
    for version in descending:
        taken.append(version)
        num += scored[version].num
        if num >= size:
            return taken
    return []


def _window(versions: Sequence[int], scored: Mapping[int, RewardSums]) -> RatedWindow:
    known = [scored[version] for version in versions]
    num = sum(one.num for one in known)
    mean = math.fsum(one.total for one in known) / num
    spread = math.fsum(one.squares for one in known) - num * mean * mean
    return RatedWindow(
        from_version=versions[-1],
        to_version=versions[0],
        num=num,
        mean=mean,
        std=math.sqrt(max(0.0, spread) / max(1, num - 1)),
    )


def _compared(before: RatedWindow, newest: RatedWindow, look: int) -> RatingDrop | None:
    """Where the interval of the drop lies above 0, by more than rounding."""
    errors = [window.std**2 / window.num for window in (before, newest)]
    freedom = math.fsum(errors) ** 2 / max(
        math.fsum(error**2 / max(1, window.num - 1) for error, window in zip(errors, (before, newest), strict=True)),
        1e-300,
    )
    share = _FALSE_ALARMS * _HALF / ((look + _HALF - 1) * (look + _HALF))
    z = -NormalDist().inv_cdf(share)
    t = z + (z**3 + z) / (4 * max(freedom, 1.0))  # Student's quantile by the normal's (Cornish and Fisher)
    least = before.mean - newest.mean - t * math.sqrt(math.fsum(errors))
    is_worse = least > _ROUNDING * max(abs(before.mean), abs(newest.mean))
    return RatingDrop(before=before, newest=newest, drop_least=least, look=look) if is_worse else None
