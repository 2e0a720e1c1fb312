"""What a held-out pass was worth: mean, interval, pass@k, and which versions it is a score of. Pure.

In: of each task the scores of its samples. Out: a HeldOutScore. Invariant: who is not scored is left out, never 0; the
same scores, in whatever order they came, give the same record.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean
from typing import NamedTuple

from tracegrad.schemas.records.episodes import Episode
from tracegrad.schemas.records.held_out import HeldOutScore, PassAt, VersionShare
from tracegrad.schemas.records.versions import are_complete

PASSED = 1.0
"""A rollout of at least this reward counts as solved in pass@k: what graders give for a right answer."""
_Z = 1.959964
"""95 % two-sided."""


class Score(NamedTuple):
    """What one rollout of a held-out task was worth; its tokens are not kept."""

    reward: float | None
    excluded: str
    """Why there is no reward, as for training; may be set beside one."""
    versions: Mapping[int, float] = {}
    """Version -> its share of the sampled tokens; empty where none was sampled."""


def version_shares(episode: Episode, policy: str, run: str) -> dict[int, float]:
    """Which versions of a run's policy sampled the tokens of an episode; the shares add up to 1, or there are none."""
    num_tokens: defaultdict[int, int] = defaultdict(int)
    for call in episode.calls:
        num_sampled = call.num_sampled
        if call.policy != policy or not are_complete(call.versions, num_sampled):
            continue
        ends = [*(span.start for span in call.versions[1:]), num_sampled]
        for span, end in zip(call.versions, ends, strict=True):
            if span.run == run:
                num_tokens[span.version] += end - span.start
    total = sum(num_tokens.values())
    return {version: num / total for version, num in sorted(num_tokens.items())} if total else {}


def pass_at(num_samples: int, num_passed: int, k: int) -> float:
    """The unbiased estimate of the chance that one of k samples of a task passes.

        pass@k = 1 - C(n - c, k) / C(n, k)        of n samples c passed (arXiv:2107.03374, eq. 1)

    The share of subsets of k of the n samples that hold a passing one. 1 - (1 - c / n)^k would be too low.

    Args:
        num_samples: n, at least k.
        num_passed: c, at most n.
        k: at least 1.
    """
    return 1.0 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def score_of(tasks: Sequence[Sequence[Score]], num_samples: int) -> HeldOutScore:
    """The score of a pass; `tasks` holds what came of the samples of each, `num_samples` at most."""
    rewards_T = [rewards for task in tasks if (rewards := [one.reward for one in task if one.reward is not None])]
    means_T = [fmean(rewards) for rewards in rewards_T]
    low, high = interval(means_T) if means_T else (None, None)
    versions = _shares(tasks)
    return HeldOutScore(
        mean=fmean(means_T) if means_T else None,
        low=low,
        high=high,
        num_scored=len(means_T),
        pass_at=tuple(_pass_at(rewards_T, num_samples)) if num_samples > 1 else (),
        versions=versions,
        # Of equal shares the first, which is the older.
        version=max(versions, key=lambda one: one.share).version if versions else None,
    )


def _pass_at(rewards_T: Sequence[Sequence[float]], num_samples: int) -> Iterator[PassAt]:
    """For k = 1, 2, 4, ... and all samples, over the tasks of which at least k are scored."""
    for k in sorted({*(1 << bit for bit in range(num_samples.bit_length())), num_samples}):
        counts = [(len(task), sum(reward >= PASSED for reward in task)) for task in rewards_T if len(task) >= k]
        if counts:
            yield PassAt(k=k, share=fmean(pass_at(num, num_passed, k) for num, num_passed in counts))


def _shares(tasks: Sequence[Sequence[Score]]) -> tuple[VersionShare, ...]:
    """Each version's share in the mean, by version: each scored task counts alike, and so does each scored sample."""
    scored = [samples for task in tasks if (samples := [one for one in task if one.reward is not None])]
    parts: defaultdict[int, list[float]] = defaultdict(list)
    for samples in scored:
        for one in samples:
            for version, share in one.versions.items():
                parts[version].append(share / (len(samples) * len(scored)))
    return tuple(VersionShare(version=version, share=math.fsum(parts[version])) for version in sorted(parts))


def interval(means_T: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the mean over tasks: Wilson's when each is 0 or 1, else normal."""
    if all(mean in (0.0, 1.0) for mean in means_T):
        return wilson(sum(mean == 1.0 for mean in means_T), len(means_T))
    mean = fmean(means_T)
    variance = math.fsum((one - mean) ** 2 for one in means_T) / max(1, len(means_T) - 1)
    spread = _Z * math.sqrt(variance / len(means_T))
    return mean - spread, mean + spread


def wilson(num_successes: int, num_trials: int) -> tuple[float, float]:
    """Wilson's 95 % score interval of a proportion, of one trial at least."""
    share = num_successes / num_trials
    weight = 1 + _Z**2 / num_trials
    centre = (share + _Z**2 / (2 * num_trials)) / weight
    spread = _Z / weight * math.sqrt(share * (1 - share) / num_trials + _Z**2 / (4 * num_trials**2))
    return (max(0.0, centre - spread), min(1.0, centre + spread))
