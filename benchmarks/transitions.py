"""What a token costs between an episode and the trainer's tensors: nanoseconds of CPU for each step, in one run.

    python benchmarks/transitions.py [--rollouts 8] [--turns 4] [--tokens 8192]

One group of so many rollouts; a rollout is a chain of turns, half of whose tokens are sampled. `credit` makes segments
and their Arrow bytes, `encode` the bytes alone, `judge` reads and checks them, `rows` adds advantages and weights,
`batches` pads. Prints the median of seven.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np

from tracegrad.schemas.ids import RunHash, RunName
from tracegrad.schemas.log.protocol import Record
from tracegrad.schemas.metrics import Metrics
from tracegrad.schemas.records.calls import Purpose, SpliceOutcome
from tracegrad.schemas.records.episodes import Episode, EpisodeCall
from tracegrad.schemas.records.rollouts import GroupRef, RolloutState
from tracegrad.schemas.records.tokens import ids_to_bytes, logprobs_to_bytes
from tracegrad.schemas.records.transitions import decode_group, encode_group
from tracegrad.schemas.records.versions import VersionSpan
from tracegrad.schemas.topics import Topics
from tracegrad.streams.credit.write_group import credit_group
from tracegrad.trainer.algorithm.recipes import DEFAULT, RECIPES
from tracegrad.trainer.batch.groups import GroupLimits, judge
from tracegrad.trainer.batch.packing import micro_batches
from tracegrad.trainer.batch.rows import training_rows

_VOCABULARY = 151_936


def _episode(member: int, size: int, num_turns: int, num_tokens: int) -> Episode:
    rng = np.random.default_rng(member)
    half = num_tokens // num_turns // 2
    calls = []
    for turn in range(num_turns):
        calls.append(
            EpisodeCall(
                call_id=f"call-{turn}",
                turn=turn,
                agent="solver",
                joined_by="response_id",
                policy="policy",
                parent_call_id=f"call-{turn - 1}" if turn else None,
                shared_tokens=2 * half * turn,
                suffix_ids=ids_to_bytes(rng.integers(0, _VOCABULARY, half)),
                sampled_ids=ids_to_bytes(rng.integers(0, _VOCABULARY, half)),
                logprobs=logprobs_to_bytes(-rng.random(half)),
                versions=(VersionSpan(run=RunHash("0" * 8), version=1, epoch=1, start=0),),
                temperature=1.0,
                finish_reason="stop",
                content=None,
                splice=SpliceOutcome(kind="first"),
            )
        )
    return Episode(
        episode_id=f"{member:032x}",
        rollout_id=f"{member:028x}",
        attempt_id="aaaa",
        group=GroupRef(id="0" * 24, size=size, member=member, index=0),
        task_id="task",
        policy="policy",
        purpose=Purpose.TRAIN,
        state=RolloutState.SUCCEEDED,
        is_final=True,
        closed_by="complete",
        calls=tuple(calls),
        reward=float(member % 2),
    )


def _nanoseconds(call: Callable[[], object], num_tokens: int) -> float:
    seconds = []
    for _ in range(7):
        started = time.process_time()
        call()
        seconds.append(time.process_time() - started)
    return 1e9 * statistics.median(seconds) / num_tokens


def main() -> None:
    """Prints one line a step."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rollouts", type=int, default=8)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=8192, help="of a rollout")
    given = parser.parse_args()
    topics = Topics(run=RunName("benchmark"))
    members = [_episode(member, given.rollouts, given.turns, given.tokens) for member in range(given.rollouts)]
    value = credit_group(members, "policy", topics, Metrics())
    summary, rows = decode_group(value)
    record = Record(topic="transitions", partition=0, offset=0, key=b"policy", value=value)
    limits = GroupLimits("policy", _VOCABULARY, max_row_tokens=given.tokens)
    group = judge(record, limits).group
    assert group is not None and len(group.rows) == given.rollouts
    recipe = RECIPES[DEFAULT].recipe
    ready, _ = training_rows([group], recipe)
    num_tokens = sum(len(row.token_ids) for row in rows)
    steps: dict[str, Callable[[], object]] = {
        "credit": lambda: credit_group(members, "policy", topics, Metrics()),
        "encode": lambda: encode_group(summary, rows),
        "judge": lambda: judge(record, limits),
        "rows": lambda: training_rows([group], recipe),
        "batches": lambda: [*micro_batches(ready, max_tokens=16384)],
    }
    print(f"{num_tokens} tokens, {len(value)} bytes")
    for name, step in steps.items():
        cost = _nanoseconds(step, num_tokens)
        print(f"{name:8} {cost:8.2f} ns a token {cost * num_tokens / 1e6:8.3f} ms")


if __name__ == "__main__":
    main()
