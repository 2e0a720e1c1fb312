"""Records that a run's keys do not vouch for: every way to forge one, on every topic that is signed.

    for topic, key, value, headers in forged(1_000, ring, other): MemoryLog.append(log, topics.name(topic), ...)

Each says what an attacker would like believed: a reward of 999, an end of a rollout, an epoch and a version of its own,
a step that never ran, an acknowledgement. `HOW` names the ways.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.streams.make import RUN_HASH, event, reward, rollout
from tests.versions import ack, claim, held_out, manifest, training_step
from tracegrad.schemas.ids import RunHash
from tracegrad.schemas.log.mac import SIGNED, KeyRing
from tracegrad.schemas.log.protocol import Headers
from tracegrad.schemas.records.rollouts import REWARDS, ROLLOUT_EVENTS, GroupRef, RolloutState
from tracegrad.schemas.records.training import (
    ADVANTAGES,
    TRAINING_STEPS,
    CallAdvantage,
    GroupAdvantages,
)
from tracegrad.schemas.records.weights import WEIGHT_ACKS, WEIGHTS, RollbackRequest
from tracegrad.schemas.topics import Topic

Forged = tuple[Topic, bytes, bytes, Headers]
HOW = (
    "unsigned",
    "wrong_key",
    "another_runs_key",
    "another_topics_mac",
    "changed_value",
    "changed_key",
    "moved_to_another_key",
    "two_macs",
)
OTHER = RunHash("0badcafe")
"""A run that the attacked one selects, so that its key is on the ring."""
OTHER_KEY = b"o" * 32


def forged(num: int, ring: KeyRing, *, seed: int = 0) -> Iterator[Forged]:
    """So many, of each topic and way in turn. `ring` signs for the run, as what the attacker has seen was signed."""
    draw = random.Random(seed)
    topics = sorted(SIGNED)
    wrong = KeyRing(RunHash(RUN_HASH), {RunHash(RUN_HASH): b"w" * 32})
    other = KeyRing(OTHER, {OTHER: OTHER_KEY})
    for number in range(num):
        topic, how = topics[number % len(topics)], HOW[number // len(topics) % len(HOW)]
        key, value = _wish(topic, number, draw)
        headers: Headers = {
            "unsigned": (),
            "wrong_key": (wrong.sign(topic, key, value),),
            "another_runs_key": (other.sign(topic, key, value),),
            "another_topics_mac": (ring.sign(topics[(number + 1) % len(topics)], key, value),),
            "changed_value": (ring.sign(topic, key, value + b" "),),
            "changed_key": (ring.sign(topic, key[:-1] + bytes([key[-1] ^ 1]), value),),
            "moved_to_another_key": (ring.sign(topic, b"x" + key[1:], value),),
            "two_macs": (wrong.sign(topic, key, value), ring.sign(topic, key, value)),
        }[how]
        yield topic, key, value, headers


def _wish(topic: Topic, number: int, draw: random.Random) -> tuple[bytes, bytes]:
    """Key and value of what the attacker would like believed."""
    own = rollout(draw.randrange(9))
    match topic:
        case Topic.REWARDS:
            return own.encode(), REWARDS.encode(reward(own, 999.0))
        case Topic.ROLLOUT_EVENTS:
            group = GroupRef(id=f"{RUN_HASH}{90 + number:016x}", size=2, member=0, index=90 + number)
            state = draw.choice((RolloutState.STARTED, RolloutState.FAILED, RolloutState.GIVEN_UP))
            return own.encode(), ROLLOUT_EVENTS.encode(event(rollout(90 + number), state, group=group))
        case Topic.WEIGHTS:
            wish = draw.choice(
                (
                    claim(99, trainer_id="thief"),
                    held_out(9, 9.0, version=9),
                    manifest(99, epoch=draw.choice((1, 99))),
                    RollbackRequest(
                        policy="policy",
                        run=RunHash(RUN_HASH),
                        to_version=9,
                        request_id=f"r{number}",
                        requested_by="thief",
                    ),
                )
            )
            return b"policy", WEIGHTS.encode(wish)
        case Topic.WEIGHT_ACKS:
            return b"engine-9", WEIGHT_ACKS.encode(ack(99, engine_id=f"engine-{number}"))
        case Topic.ADVANTAGES:
            call = CallAdvantage(call_id="chatcmpl-1", mean=9.0, low=9.0, high=9.0, num_tokens=1)
            wish_of = GroupAdvantages(
                run=RunHash(RUN_HASH), policy="policy", step=1, epoch=9, group_id=f"{RUN_HASH}{9:016x}", calls=(call,)
            )
            return b"policy", ADVANTAGES.encode(wish_of)
    void = training_step(
        99,
        epoch=9,
        begin_offset=0,
        next_offset=9,
        group_ids=(f"{RUN_HASH}{9:016x}",),
        reward=9.0,
        num_rollouts=9,
        num_tokens=9,
    )
    return b"policy", TRAINING_STEPS.encode(void)  # all others would be void
