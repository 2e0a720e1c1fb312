"""Groups drawn at random, whose trained tokens have ids of their own, under the toy's policies."""

from __future__ import annotations

import math
import random

import msgspec
import numpy as np

from tests.trainer.algorithm.literal_batch import Policies
from tests.trainer.material import segment, summary, turn
from tests.trainer.toy_policy import ToyPolicy
from tracegrad.schemas.records.transitions import SegmentRow
from tracegrad.trainer.batch.groups import Group

HEAD = [-0.5, -0.1, 0.3, 0.7]
"""Of the toy's critic, whose bias is .1."""


POLICIES = Policies(
    ToyPolicy(0).theta.detach().double().tolist(),
    ToyPolicy(1).theta.detach().double().tolist(),
    [0.1 + sum(weight * math.cos(one * (d + 1.0)) for d, weight in enumerate(HEAD)) for one in range(261)],
)


def drawn_row(rng: random.Random, ids: list[int], rollout: str, calls: list[int], returns: list[float]) -> SegmentRow:
    """Some turns of a rollout, a prompt before each; every trained token has an id of its own, so that the toy's
    gradient tells it apart. Now and then a turn is masked."""
    turns, mask, end = [], [0, 0], 2
    for call, value in zip(calls, returns, strict=True):
        length, is_trained = rng.randint(1, 3), rng.random() < 0.9
        weight = rng.choice([1.0, 1.0, 0.5])
        turns.append(
            turn(end, end + length, call=f"c{call}", returned=value, peers=str(call), weight=weight, index=call)
        )
        mask += [int(is_trained)] * length + [0]
        end += length + 1
    row = segment(rollout, turns, num_tokens=end, mask=mask, number=calls[0])
    tokens = np.array([ids.pop() if trained else 0 for trained in mask], np.int32)
    far = [rng.gauss(0, rng.choice([2e-4, 0.4])) if trained else 0.0 for trained in mask]
    logprobs = np.array([POLICIES.pi[one] + gap for one, gap in zip(tokens, far, strict=True)], np.float32)
    return msgspec.structs.replace(row, token_ids=tokens, logprobs=np.where(row.loss_mask.astype(bool), logprobs, 0))


def drawn_group(rng: random.Random, ids: list[int], number: int) -> Group:
    """Rollouts of one to three turns in one or two rows; one that has no turn at all, and equal rewards, now and
    then."""
    names = [f"{number}/{member}" for member in range(rng.randint(1, 4))]
    is_flat = rng.random() < 0.2
    rows: list[SegmentRow] = []
    members = []
    for name in names:
        final = 0.5 if is_flat else rng.choice([0.0, 1.0, rng.uniform(-1, 1)])
        num = rng.choice([0, 1, 2, 3]) if name != names[0] else 2
        returns = [final if is_flat else final + rng.choice([0.0, 0.5]) for _ in range(num)]
        cut = rng.randint(1, max(1, num))
        own = [
            drawn_row(rng, ids, name, list(range(a, b)), returns[a:b])
            for a, b in ((0, cut), (cut, num))
            if a < b <= num
        ]
        total = sum(int(row.loss_mask.sum()) for row in own)
        rows += [msgspec.structs.replace(row, rollout_tokens=total) for row in own]
        members.append(msgspec.structs.replace(summary("g", [name]).members[0], reward=final))
    told = summary(f"g{number}", names)
    peers = rng.choice(["turn", "turn_or_end"])
    return Group(msgspec.structs.replace(told, members=tuple(members), peers=peers), tuple(rows))


def batch_of(seed: int) -> list[Group]:
    """Three groups."""
    rng = random.Random(seed)
    ids = rng.sample(range(1, 261), 260)
    return [drawn_group(rng, ids, number) for number in range(3)]
