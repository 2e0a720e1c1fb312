"""How often the automatic rollback is wrong, how soon it is right: simulated runs, judged by the trainer's own rule.

    python benchmarks/rollback.py [--runs 2000] [--conversations 5000] [--long 50000] [--seed 0] [--window 500]

A run is conversations that are rated one by one, 32 a batch; each was sampled by one of the 2 to 8 versions before its
batch. Without a change (A/A) any rollback is a false alarm; otherwise all that versions from the 60th on sampled is
rated by another chance, and what counts is how many of their rated conversations are consumed until the rollback. Out:
a Markdown table of each.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable, Iterator
from statistics import median

from tracegrad.schemas.records.training import RatingDrop
from tracegrad.trainer.rating_drop import VersionRatings, judge_ratings

PER_BATCH, LAGS = 32, (2, 8)
CHANGES_AT = 60
Rate = Callable[[random.Random, int], float]
"""A rating of a conversation that a version sampled."""


def thumbs(before: float, after: float | None = None) -> Rate:
    """Right with one chance, and from a version on with another."""
    return lambda chance, version: float(chance.random() < (before if after is None or version < CHANGES_AT else after))


def stars(chance: random.Random, version: int) -> float:
    """One to five, most of them extreme, as people give them."""
    return float(chance.choices((1, 2, 3, 4, 5), (20, 5, 8, 17, 50))[0])


def moods(chance: random.Random, version: int) -> float:
    """Of a mean: a thumb, or of some raters a share of one."""
    return chance.betavariate(2.0, 1.0) if chance.random() < 0.3 else float(chance.random() < 0.6)


def batches(rate: Rate, conversations: int, seed: str) -> Iterator[list[tuple[int, float]]]:
    """(version, rating) of a run's batches."""
    chance = random.Random(seed)
    for step in range(1, 1 + conversations // PER_BATCH):
        versions = [max(0, step - chance.randint(*LAGS)) for _ in range(PER_BATCH)]
        yield [(version, rate(chance, version)) for version in versions]


def rolled_back(rate: Rate, conversations: int, seed: str, window: int) -> tuple[RatingDrop, int] | None:
    """Why a run is rolled back first, and how many conversations of changed versions were consumed by then."""
    state, num_changed = VersionRatings(), 0
    for scores in batches(rate, conversations, seed):
        num_changed += sum(version >= CHANGES_AT for version, _ in scores)
        state, worse = judge_ratings(state, scores, window)
        if worse is not None:
            return worse, num_changed
    return None


def false_alarms(rate: Rate, runs: int, conversations: int, given: argparse.Namespace) -> int:
    """Of so many runs without a change."""
    found = (rolled_back(rate, conversations, f"{given.seed}-{run}", given.window) for run in range(runs))
    return sum(one is not None for one in found)


def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--conversations", type=int, default=5000)
    parser.add_argument("--long", type=int, default=50_000, help="of a tenth as many runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--window", type=int, default=500)
    given = parser.parse_args()
    print("| no change: ratings | conversations | runs rolled back |\n|---|---|---|")
    kinds = {f"thumbs, {mean:g} of them up": thumbs(mean) for mean in (0.02, 0.3, 0.7, 0.98)}
    kinds |= {"one to five stars": stars, "thumbs and shares": moods}
    for name, rate in kinds.items():
        for runs, conversations in ((given.runs, given.conversations), (given.runs // 10, given.long)):
            num = false_alarms(rate, runs, conversations, given)
            print(f"| {name} | {conversations:,} | {num} of {runs:,} |", flush=True)
    print("\n| thumbs up | rolled back | to one before the change | conversations until then: median, 95 % |")
    print("|---|---|---|---|")
    for after in (0.65, 0.6, 0.5, 0.3, 0.0):
        rate, runs = thumbs(0.7, after), range(given.runs // 10)
        known = [rolled_back(rate, given.conversations, f"{given.seed}-{run}", given.window) for run in runs]
        right = [one for one in known if one is not None and one[1] > 0]
        good = sum(why.before.to_version < CHANGES_AT for why, _ in right)
        nums = sorted(num for _, num in right)
        told = f"{median(nums):.0f}, {nums[int(0.95 * (len(nums) - 1))]}" if nums else "-"
        print(f"| .7, then {after:g} | {len(right)} of {len(known)} | {good} of {len(right)} | {told} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
